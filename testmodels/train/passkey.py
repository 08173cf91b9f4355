#!/usr/bin/env python3
"""Trains the passkey model, measures it and writes its folder.

    python testmodels/train/passkey.py --out testmodels/passkey

reproduces the published folder (seeds fixed; other versions of torch or another number of
threads round differently and may end at a model of other quality).

"""

import argparse
import json
from pathlib import Path

import torch

from fpatrain import data, evaluate, export, tokens
from fpatrain.model import Config
from fpatrain.training import Recipe, train

SEED = 0


def write_data(folder, tokenizer):
    """Evaluation sets and prompts; they depend on the tokenizer only."""
    for task in ("one", "three"):
        export.write_evaluation(folder / f"eval-{task}.jsonl.gz", tokenizer, task, evaluate.FACTORS)
    export.write_prompts(folder, tokenizer)


def check_prompts(folder, model, tokenizer):
    """Every prompt-Nx.txt is answered rightly in exact mode."""
    for name, told in json.loads((folder / "prompts.json").read_text()).items():
        ids = tokenizer.encode((folder / name).read_text()).ids
        texts, _, _ = evaluate.generate(model, [ids], evaluate.EXACT)
        got = tokenizer.decode(texts[0], skip_special_tokens=False)
        if got != told["answer"] + tokens.END:
            raise SystemExit(f"{name}: answered {got!r}, expected {told['answer']!r} and the end token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--measure", action="store_true", help="print the table of accuracy and keys kept")
    parser.add_argument("--threads", type=int, default=1, help="threads (1: the published run)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    tokenizer = tokens.build()
    recipe = Recipe(seed=args.seed, steps=args.steps)
    model = train(Config(vocab_size=tokenizer.get_vocab_size()), recipe, tokenizer)
    export.write_model(args.out, model, tokenizer)
    export.write_goldens(args.out, tokenizer)
    write_data(args.out, tokenizer)
    # What is on disk is what is checked.
    model = export.load(args.out)
    check_prompts(args.out, model, tokenizer)
    if args.measure:
        evaluate.table(model, tokenizer)


if __name__ == "__main__":
    main()
