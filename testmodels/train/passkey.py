#!/usr/bin/env python3
"""Trains the passkey model and writes its folder.

    python testmodels/train/passkey.py --out testmodels/passkey --measure

The folder holds the model, goldens, evaluation sets and prompts. Seeds are fixed, but sums
round differently on other processors, versions of torch and numbers of threads, so weights are
not the same to the bit everywhere; --measure prints how good they are.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from fpatrain import data, evaluate, export, tokens
from fpatrain.model import Config
from fpatrain.training import Recipe, train

# The curriculum of data.PHASES, then three short runs, each from the weights of the one before:
# pressure from the first step, and in the last two numbers whose digits repeat.
MIXED = data.DISTRACTORS
LONG = ((0.4, 160, 9, 3, MIXED), (0.6, 256, 6, 3, MIXED))
SHORT = ((0.6, 96, 16, 3, MIXED), (0.4, 256, 6, 3, MIXED))
AT_ONCE = {"pressure_from": -1.0, "pressure_full": 0.0}
RUNS = (
    Recipe(seed=1, steps=1700, pressure=3.0),
    Recipe(seed=101, steps=600, rate=2e-3, pressure=3.0, phases=LONG, **AT_ONCE),
    Recipe(seed=102, steps=500, rate=1.5e-3, pressure=3.0, repetitive=0.4, phases=LONG, **AT_ONCE),
    Recipe(seed=103, steps=450, rate=1e-3, pressure=0.7, repetitive=0.4, phases=SHORT, **AT_ONCE),
)


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
    parser.add_argument("--seed", type=int, default=RUNS[0].seed, help="seed of the first run")
    parser.add_argument("--shorten", type=int, default=1, help="divide the steps, to try the program")
    parser.add_argument("--measure", action="store_true", help="print the table of accuracy and keys kept")
    parser.add_argument("--threads", type=int, default=1, help="threads (1: the published run)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    tokenizer = tokens.build()
    config = Config(vocab_size=tokenizer.get_vocab_size())
    model = None
    for recipe in (replace(RUNS[0], seed=args.seed), *RUNS[1:]):
        recipe = replace(recipe, steps=recipe.steps // args.shorten)
        model = train(config, recipe, tokenizer, model=model)
    export.write_model(args.out, model, tokenizer)
    export.write_goldens(args.out, tokenizer)
    write_data(args.out, tokenizer)
    model = export.load(args.out)  # what is on disk is what is measured
    if args.measure:
        evaluate.table(model, tokenizer)
    check_prompts(args.out, model, tokenizer)


if __name__ == "__main__":
    main()
