"""The training loop: next-token loss, the answer's loss, and the pressure on the cache."""

import math
import random
import time
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from . import data
from .model import Decoder


@dataclass
class Recipe:
    """Settings of one run; passkey.py holds those of the published model."""

    seed: int = 0
    steps: int = 1700
    rate: float = 4e-3
    warmup: int = 60
    pressure: float = 1.0
    pressure_from: float = 0.60
    pressure_full: float = 0.75
    # A key is pressed until its penalty is 2U + margin: dead to 2^-25 even when all of
    # 2^32 keys weigh alike.
    margin: float = math.log(2.0**32) + math.log(2.0**25)
    phases: tuple = data.PHASES
    # Share of keys of few digits.
    repetitive: float = 0.0


def parameter_groups(model, rate):
    """Weight decay on matrices only; slopes learn ten times as fast."""
    slopes = [p for n, p in model.named_parameters() if n.endswith("slope_raw")]
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 and not n.endswith("slope_raw")]
    return [
        {"params": matrices, "lr": rate, "factor": 1.0, "weight_decay": 0.01},
        {"params": rest, "lr": rate, "factor": 1.0, "weight_decay": 0.0},
        {"params": slopes, "lr": rate, "factor": 10.0, "weight_decay": 0.0},
    ]


def learning_rate(step, recipe):
    """Linear warm-up, then a cosine down to 5 %."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def pressure_weight(step, recipe):
    """0, then a linear rise to the full weight."""
    done = step / recipe.steps
    rise = (done - recipe.pressure_from) / (recipe.pressure_full - recipe.pressure_from)
    return recipe.pressure * min(1.0, max(0.0, rise))


def train(config, recipe, tokenizer, log=print, model=None, pause=lambda: None):
    """A trained Decoder: a new one, or `model` trained further (its optimiser starts anew).
    pause is called before every step. Deterministic for a seed and a number of threads."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(f"train-{recipe.seed}")
    pieces = data.Pieces(tokenizer)
    if model is None:
        model = Decoder(config)
    optimiser = torch.optim.AdamW(parameter_groups(model, recipe.rate), betas=(0.9, 0.98))
    began = time.time()
    for step in range(recipe.steps):
        pause()
        ids, answers, texts = data.training_batch(
            rng, pieces, *data.phase(step, recipe.steps, recipe.phases), recipe.repetitive)
        weight = pressure_weight(step, recipe)
        logits, alive = model(ids[:, :-1], recipe.margin if weight else None)
        nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        text_loss = nll[texts[:, 1:].flatten()].mean()
        answer_loss = nll[answers[:, 1:].flatten()].mean()
        loss = text_loss + answer_loss
        if weight:
            loss = loss + weight * alive
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, recipe) * group["factor"]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            with torch.no_grad():
                right = (logits.argmax(-1) == ids[:, 1:])[answers[:, 1:]].float().mean()
            log(f"step {step} of {recipe.steps}  text {text_loss:.3f}  answer {answer_loss:.3f} "
                f"({right:.0%} of its tokens)  alive {alive:.3f}  {time.time() - began:.0f} s")
    return model
