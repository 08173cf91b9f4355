"""Answers requests (a JSON object a line) with Hugging Face's tokenizers.

A request has the text of a tokenizer.json, an operation and its items; the answer is a list, null for an item that failed.
"""
import json
import sys

from tokenizers import Tokenizer


def encode(t, text):
    t.encode_special_tokens = False
    ids = t.encode(text, add_special_tokens=False).ids
    special = t.encode(text, add_special_tokens=True).ids
    t.encode_special_tokens = True
    plain = t.encode(text, add_special_tokens=False).ids
    return [ids, special, plain]


OPERATIONS = {
    "normalize": lambda t, text: t.normalizer.normalize_str(text),
    "pretokenize": lambda t, text: [p[0] for p in t.pre_tokenizer.pre_tokenize_str(text)],
    "encode": encode,
    "decode": lambda t, ids: [t.decode(ids, skip_special_tokens=False), t.decode(ids, skip_special_tokens=True)],
    "join": lambda t, tokens: t.decoder.decode(tokens),
}

for line in sys.stdin:
    request = json.loads(line)
    try:
        t = Tokenizer.from_str(request["tokenizer"])
    except Exception as e:
        print(json.dumps({"error": str(e)}), flush=True)
        continue
    results = []
    for item in request["items"]:
        try:
            results.append(OPERATIONS[request["operation"]](t, item))
        except BaseException:
            results.append(None)
    print(json.dumps({"results": results}), flush=True)
