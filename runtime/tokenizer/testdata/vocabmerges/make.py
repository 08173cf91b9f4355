"""Writes cases.jsonl with transformers 4.44.2: folders with vocab.json and merges.txt, and what their tokenizers give.

Run it in this folder: python3 make.py > cases.jsonl. The vocabulary is that of ../bbpe_gpt2/tokenizer.json, changed as each case says. A
case has the files of the folder, then rows: text, ids, ids_special (with the tokens around a text), ids_special_as_text; or ids, decoded,
decoded_skip. Expected is GPT2TokenizerFast; for JSONGPT2Tokenizer the Python class, which is GPT2Tokenizer with the text escaped before
and unescaped after, as ../textescape/escape.py does it. Where both classes exist, they are checked to agree.
"""
import json
import os
import random
import sys
import tempfile

sys.path.insert(0, "../textescape")
from escape import escape, unescape
from transformers import GPT2Tokenizer, GPT2TokenizerFast


class JSONGPT2Tokenizer(GPT2Tokenizer):
    def prepare_for_tokenization(self, text, **kwargs):
        text, kwargs = super().prepare_for_tokenization(text, **kwargs)
        return escape(text), kwargs

    def decode(self, ids, **kwargs):
        return unescape(super().decode(ids, **kwargs))


def token(content, special=True, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": special} | flags


def named(content, **flags):
    t = token(content, **flags) | {"__type": "AddedToken"}
    del t["special"]
    return t


EOT = "<|endoftext|>"
CASES = [
    {"name": "no configuration"},
    {"name": "in the vocabulary", "add": {EOT: 900}},
    {"name": "saved by 4.44", "add": {EOT: 900}, "config": {
        "add_bos_token": True, "add_prefix_space": False, "added_tokens_decoder": {"900": token(EOT)}, "bos_token": EOT, "eos_token": EOT,
        "unk_token": EOT, "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer"},
        "special_tokens_map": {"bos_token": "<ignored>"}},
    {"name": "bos beside the vocabulary", "config": {"add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"}},
    {"name": "names as tokens", "config": {"add_bos_token": True, "bos_token": named("<s>", normalized=True), "eos_token": named("</s>"), "unk_token": None,
                                           "pad_token": "<pad>", "tokenizer_class": "GPT2Tokenizer"}},
    {"name": "special tokens map", "config": {"bos_token": "<one>"}, "special_tokens_map": {
        "bos_token": "<s>", "eos_token": token("</s>"), "additional_special_tokens": ["<a>", token("<b>", lstrip=True), "<a>"]}},
    {"name": "added tokens file", "special_tokens_map": {"eos_token": EOT, "sep_token": "<sep>"},
     "added_tokens": {"<extra>": 901, EOT: 900, "<sep>": 902, "!": 0}},
    {"name": "flags", "config": {"added_tokens_decoder": {
        "900": token(EOT), "901": token("<l>", lstrip=True), "902": token("<r>", rstrip=True), "903": token("<n>", special=False, normalized=True)}}, "slow": False},
    {"name": "prefix space", "config": {"add_prefix_space": True, "add_bos_token": True}, "slow": False},
    {"name": "bytes missing", "drop": ["!", "A", "Ã"], "slow": False},
    {"name": "JSON, saved by 4.44", "add": {EOT: 900}, "config": {
        "add_bos_token": True, "add_prefix_space": False, "added_tokens_decoder": {"900": token(EOT)}, "bos_token": EOT, "eos_token": EOT,
        "unk_token": EOT, "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 16384, "tokenizer_class": "JSONGPT2Tokenizer"}},
    {"name": "JSON, auto map", "config": {"add_bos_token": False, "tokenizer_class": "GPT2Tokenizer",
                                          "auto_map": {"AutoTokenizer": ["tokenizer.JSONGPT2Tokenizer", None]}}},
    {"name": "JSON, special tokens", "config": {"tokenizer_class": "JSONGPT2Tokenizer", "additional_special_tokens": ["<é>", "\n", "\\n", "\"x\"", "<x>"]}},
    {"name": "JSON, bytes missing", "add": {EOT: 900}, "drop": ["!", "A"], "config": {"tokenizer_class": "JSONGPT2Tokenizer"}},
]
TEXTS = ["", " ", "the", " the", "The quick brown fox's 123 jumps.", "a\nb\r\n\tc", 'say "hi" \\ /', "naïve café", "日本語 😀 👩‍👧", "\x00\x1f\x7f\u2028",
         EOT, f"a{EOT}b", f"  {EOT}  the{EOT}", "<s> x </s>", "x <a>y <b> z<c>", "<extra><sep>the other", "x <l> y <r> z", "<n>the<n>", "A!é A", "<pad>",
         "<é> \n \\n \"x\" <x>", "<x><x> \\\\n", "\ufffd\U0010ffff", "it's I'LL  two   spaces\n\n"]


def read(tok, text, slow, **options):
    if slow:
        return tok.encode(text, **options)
    tok.backend_tokenizer.encode_special_tokens = options.get("split_special_tokens", False)
    return tok.backend_tokenizer.encode(text, add_special_tokens=options["add_special_tokens"]).ids


def rows(tok, slow, case):
    out = []
    known = [i for i in range(len(tok)) if tok.convert_ids_to_tokens(i) is not None]
    as_text = not any(not t.special for t in tok.added_tokens_decoder.values())
    for text in TEXTS:
        row = {"text": text, "ids": read(tok, text, slow, add_special_tokens=False), "ids_special": read(tok, text, slow, add_special_tokens=True)}
        if as_text:
            row["ids_special_as_text"] = read(tok, text, slow, add_special_tokens=False, split_special_tokens=True)
        out.append(row)
    rng = random.Random(7)
    pieces = [tok.convert_tokens_to_ids(t) for t in ["\\", "u", "n", "x", '"', "0", "d", "8", "3", "e"] if t not in case.get("drop", [])]
    for ids in [r["ids_special"] for r in out] + [[rng.choice(pieces if k % 2 else known) for _ in range(rng.randrange(9))] for k in range(40)]:
        options = {"clean_up_tokenization_spaces": False} | ({"spaces_between_special_tokens": False} if slow else {})
        decoded = [tok.decode(ids, skip_special_tokens=skip, **options) for skip in (False, True)]
        if None not in decoded:
            out.append({"ids": ids, "decoded": decoded[0], "decoded_skip": decoded[1]})
    return out


base = json.load(open("../bbpe_gpt2/tokenizer.json", encoding="utf-8"))["model"]
for case in CASES:
    with tempfile.TemporaryDirectory() as folder:
        def save(name, content):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(content)

        drop = set(case.get("drop", []))
        vocab = {t: i for t, i in base["vocab"].items() if t not in drop} | case.get("add", {})
        merges = [m for m in base["merges"] if not drop & {*m.split(" "), m.replace(" ", "")}]
        if drop:  # ids without gaps
            vocab = {t: i for i, t in enumerate(sorted(vocab, key=vocab.get))}
        save("vocab.json", json.dumps(vocab))
        save("merges.txt", "#version: 0.2\n" + "".join(m + "\n" for m in merges))
        for name, key in ("tokenizer_config", "config"), ("special_tokens_map", "special_tokens_map"), ("added_tokens", "added_tokens"):
            if key in case:
                save(name + ".json", json.dumps(case[key]))
        is_json = "JSONGPT2Tokenizer" in json.dumps(case.get("config"))
        if is_json:
            found = rows(JSONGPT2Tokenizer.from_pretrained(folder), True, case)
        else:
            found = rows(GPT2TokenizerFast.from_pretrained(folder), False, case)
            if case.pop("slow", True):
                for fast, slow in zip(found, rows(GPT2Tokenizer.from_pretrained(folder), True, case), strict=True):
                    assert fast == slow, (case["name"], fast, slow)
        print(json.dumps(case | {"rows": found}))
