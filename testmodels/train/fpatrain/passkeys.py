"""The passkey comparison: FPA, FoX and softmax with rotary embedding under the same budget.

Tasks are those of data.evaluation_sample: models trained on one key, and models trained on one
to three among distractor numbers (measured on wordings never trained on, too).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import data, evaluate, export, tokens
from .methods import METHODS
from .model import Config
from .training import Recipe, train

# Phases of training as in data.PHASES, by task. "long" goes without the easy start.
SCHEDULES = {
    ("one", "short first"): ((0.45, 64, 24, 1, data.DISTRACTORS), (0.25, 128, 12, 1, data.DISTRACTORS),
                             (0.30, 256, 6, 1, data.DISTRACTORS)),
    ("three", "short first"): data.PHASES,
    ("three", "long"): ((0.40, 96, 16, 3, data.DISTRACTORS), (0.30, 160, 9, 3, data.DISTRACTORS),
                        (0.30, 256, 6, 3, data.DISTRACTORS)),
}
STEPS = {"one": 800, "three": 1700}
MEASURED = {"one": ("one",), "three": ("three", "unseen", "number-first")}
FACTORS = (1, 2, 4)  # in PyTorch; the tool goes on


@dataclass(frozen=True)
class Settings:
    """One run. pressure is the weight of the pressure on living keys (see training.Recipe)."""

    task: str
    method: str
    pressure: float
    rate: float
    schedule: str = "short first"
    seed: int = 0


def run(settings: Settings, folder: Path, pause: Callable[[], None] = lambda: None, log=print,
        shorten: int = 1, count: int = 50) -> dict:
    """Trains, exports and measures the exported model: by task measured and multiple of the
    training length, the share of right answers and of keys kept (exact mode)."""
    tokenizer = tokens.build()
    config = Config(vocab_size=tokenizer.get_vocab_size(), **METHODS[settings.method])
    recipe = Recipe(
        seed=settings.seed, steps=STEPS[settings.task] // shorten, rate=settings.rate,
        pressure=settings.pressure, phases=SCHEDULES[settings.task, settings.schedule],
        pressure_from=0.4 if settings.task == "one" else 0.6,
        pressure_full=0.6 if settings.task == "one" else 0.75)
    began = time.time()
    model = train(config, recipe, tokenizer, log, pause=pause)
    seconds = time.time() - began
    export.write_model(folder, model, tokenizer, half=True)
    model = export.load(folder)
    out = {"training_seconds": round(seconds, 1), "right": {}, "kept": {},
           "parameters": sum(p.numel() for p in model.parameters())}
    for task in MEASURED[settings.task]:
        out["right"][task], out["kept"][task] = {}, {}
        for factor in FACTORS:
            right, kept, _ = evaluate.measure(
                model, tokenizer, task, factor, count,
                None if config.field_kind == "none" else evaluate.EXACT, pause=pause)
            out["right"][task][str(factor)], out["kept"][task][str(factor)] = right, round(kept, 5)
        log(f"{settings}  {task}  right {out['right'][task]}  kept {out['kept'][task]}")
    return out
