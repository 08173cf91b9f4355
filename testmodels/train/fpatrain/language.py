"""Language models on English prose: FPA, FoX and softmax with rotary embedding, equal in all
but attention, on the same tokens in the same order.

A run saves its state every few minutes and goes on from there when it is started again.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from . import english, export
from .methods import METHODS
from .model import Config, Decoder
from .training import Recipe, learning_rate, parameter_groups, pressure_weight

LENGTH = 256
SAVE_EVERY = 180  # seconds
SHAPE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6}


@dataclass(frozen=True)
class Settings:
    """One run. pressure is the weight of the pressure on living keys (see training.Recipe)."""

    method: str
    rate: float
    seed: int = 0
    steps: int = 600
    batch: int = 16
    pressure: float = 0.0


class Corpus:
    """train and valid, int64 ids, of the text in a folder that english.fetch filled; the
    tokenizer is trained once and kept there."""

    def __init__(self, folder: Path):
        train, valid = ((folder / name).read_text() for name in ("train.txt", "valid.txt"))
        path = folder / "tokenizer.json"
        if not path.exists():
            fresh = path.with_suffix(f".{os.getpid()}")
            english.tokenizer(train).save(str(fresh))
            fresh.replace(path)
        self.tokenizer = Tokenizer.from_file(str(path))
        self.train, self.valid = (torch.tensor(self.tokenizer.encode(text).ids) for text in (train, valid))


def windows(ids: Tensor, batch: int, step: int, seed: int) -> Tensor:
    """Batch `step` of windows of LENGTH + 1 tokens, [batch, LENGTH + 1]: every epoch cuts the
    text anew, from an offset of its own, and shuffles the windows."""
    per_epoch = (len(ids) // LENGTH - 1) // batch
    epoch, place = divmod(step, per_epoch)
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    offset = int(torch.randint(LENGTH, (), generator=generator))
    order = torch.randperm(per_epoch * batch, generator=generator)
    starts = offset + LENGTH * order[place * batch : (place + 1) * batch]
    return ids[starts.unsqueeze(1) + torch.arange(LENGTH + 1)]


@contextmanager
def half_products() -> Iterator[None]:
    """Matrix products of float32 with bfloat16 factors and float32 sums, where the processor has
    instructions for them: a step takes two thirds of the time. What is measured afterwards is not
    touched."""
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


@torch.no_grad()
def loss_at(model: Decoder, ids: Tensor, window: int, pause: Callable[[], None] = lambda: None) -> float:
    """Mean loss in nats over windows of so many tokens, each on its own, its first token not
    scored: what `fparun eval perplexity --window` computes."""
    total = 0.0
    rows = ids[: len(ids) // window * window].view(-1, window)
    for part in rows.split(max(1, 2048 // window)):
        pause()
        logits, _ = model(part[:, :-1])
        total += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
    return total / (rows.shape[0] * (window - 1))


def train(settings: Settings, corpus: Corpus, folder: Path,
          pause: Callable[[], None] = lambda: None, log=print) -> tuple[Decoder, float]:
    """The model, and the seconds its training took in all."""
    torch.manual_seed(settings.seed)
    model = Decoder(Config(vocab_size=corpus.tokenizer.get_vocab_size(), max_position_embeddings=LENGTH,
                           **SHAPE, **METHODS[settings.method]))
    recipe = Recipe(steps=settings.steps, rate=settings.rate, warmup=settings.steps // 15,
                    pressure=settings.pressure, pressure_from=0.4, pressure_full=0.6)
    optimiser = torch.optim.AdamW(parameter_groups(model, recipe.rate), betas=(0.9, 0.98))
    first, before = 0, 0.0
    state = folder / "state.pt"
    if state.exists():
        saved = torch.load(state)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        first, before = saved["step"], saved["seconds"]
    began = saved_at = time.time()
    for step in range(first, settings.steps):
        pause()
        ids = windows(corpus.train, settings.batch, step, settings.seed)
        weight = pressure_weight(step, recipe)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, recipe) * group["factor"]
        optimiser.zero_grad(set_to_none=True)
        with half_products():
            logits, alive = model(ids[:, :-1], recipe.margin if weight else None)
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            (loss + weight * alive).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == settings.steps - 1:
            log(f"step {step} of {settings.steps}  loss {loss:.3f}  alive {alive:.3f}  {time.time() - began:.0f} s")
        if time.time() - saved_at > SAVE_EVERY:
            saved_at = time.time()
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(),
                        "step": step + 1, "seconds": before + time.time() - began}, folder / "state.new")
            (folder / "state.new").replace(state)
    return model, before + time.time() - began


def run(settings: Settings, text: Path, folder: Path,
        pause: Callable[[], None] = lambda: None, log=print, factors=(1, 2, 4, 8)) -> dict:
    """Trains, exports and measures; what is measured is the exported model."""
    corpus = Corpus(text)
    model, seconds = train(settings, corpus, folder, pause, log)
    export.write_model(folder, model, corpus.tokenizer, half=True)
    model = export.load(folder)
    losses = {str(f): round(loss_at(model, corpus.valid, f * LENGTH, pause), 5) for f in factors}
    log(f"{settings}  losses {losses}")
    (folder / "state.pt").unlink(missing_ok=True)
    return {"losses": losses, "perplexities": {f: round(math.exp(x), 4) for f, x in losses.items()},
            "parameters": sum(p.numel() for p in model.parameters()),
            "tokens": settings.steps * settings.batch * LENGTH, "training_seconds": round(seconds, 1)}
