"""Python's word on escaping text as JSON, with the standard library alone.

Without an argument it answers requests, a JSON object a line: {"escape": [text, ...]} or {"unescape": [text, ...]}. With the argument
"table" it writes the lines of table.jsonl: a text and its escaped form, or an escaped form and its text.

Undoing is null where the standard library and the package differ by design (see EscapeJSON): in a text that is not the inside of a JSON
string, characters outside ASCII, "\\/", "\\N" and surrogates.
"""
import json
import random
import sys
import warnings

warnings.simplefilter("ignore")  # unicode_escape warns of escapes that it does not know


def escape(text):
    return json.dumps(text)[1:-1]


def whole(text):
    """Half a surrogate pair cannot be written as UTF-8."""
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)


def unescape(text):
    try:
        return whole(json.loads('"' + text + '"'))
    except json.JSONDecodeError:
        pass
    found = text.encode().decode("unicode_escape", "ignore")
    if not text.isascii() or "\\/" in text or "\\N" in text or whole(found) != found:
        return None
    return found


SEPARATE = ["", " ", "a", "é", "日", "😀", "\x7f", "\x00", "\x1f", "\n", "\r\n", "\t", "\b", "\f", "\v", '"', "'", "/", "\\", "\\n", "\\u0041", "\u0080",
            "\u2028", "\ufeff", "\ufffd", "\uffff", "\U00010000", "\U0010ffff", "\ud7ff", "\ue000", "</s>", "<|endoftext|>"]
PARTS = ["\\", "\\", "\\u", "\\u00", "\\u0041", "\\u00e9", "\\uD83D", "\\ud83d", "\\ude00", "\\uDE00", "\\ud83d\\ude00", "\\U0001f600", "\\U00110000", "\\U",
         "\\x", "\\x4", "\\x41", "\\xff", "\\0", "\\12", "\\377", "\\777", "\\8", "\\n", "\\t", "\\b", "\\f", "\\r", "\\a", "\\v", "\\'", '\\"', "\\\\", "\\/",
         "\\N", "\\q", "\\\n", '"', "'", "a", "0", "7", "f", "g", " ", "\n", "u", "x", "é", "日", "😀", "\ufffd"]


def random_texts(rng, n):
    for _ in range(n):
        out = []
        for _ in range(rng.randrange(12)):
            if rng.random() < 0.5:
                out.append(rng.choice(SEPARATE))
            else:
                c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
                out.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
        yield "".join(out)


def random_escaped(rng, n):
    for _ in range(n):
        yield "".join(rng.choice(PARTS) for _ in range(rng.randrange(8)))


def table():
    rng = random.Random(20)
    for text in SEPARATE + ["".join(map(chr, range(0x100)))] + list(random_texts(rng, 150)):
        print(json.dumps({"text": text, "escaped": escape(text)}))
    done = 0
    for escaped in PARTS + list(random_escaped(rng, 600)):
        text = unescape(escaped)
        if text is not None and done < 350:
            done += 1
            print(json.dumps({"escaped": escaped, "decoded": text}))


def answer():
    for line in sys.stdin:
        request = json.loads(line)
        if "escape" in request:
            results = [escape(text) for text in request["escape"]]
        else:
            results = [unescape(text) for text in request["unescape"]]
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    table() if sys.argv[1:] == ["table"] else answer()
