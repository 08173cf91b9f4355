"""Trained models through fpaconv and fparun: the same checkpoints, measured by the tool, and by
ONNX Runtime.

A folder of checkpoints holds one folder a run, each with run.json (experiment and settings).
"""

import json
import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import data, export, language, passkeys, tokens
from .methods import METHODS
from .stock import Stock

PASSKEY_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BOUNDED = "0.001"


@dataclass(frozen=True)
class Tool:
    """Paths of the two programs, and threads for the second."""

    fpaconv: str = "fpaconv"
    fparun: str = "fparun"
    threads: int = 1

    def convert(self, checkpoint: Path, onnx: bool = False) -> Path:
        """model.gguf or model.onnx in the checkpoint's folder, verified by fpaconv, written anew."""
        out = checkpoint / ("model.onnx" if onnx else "model.gguf")
        _output([self.fpaconv, str(checkpoint), "-o", str(out), "--type", "f32", "--force", "--quiet"])
        return out

    def evaluate(self, what: str, model: Path, *flags: str) -> dict:
        """The JSON of `fparun eval`."""
        told = _output([self.fparun, "eval", what, "-m", str(model), "-t", str(self.threads), "--json", *flags])
        return json.loads(told)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Way:
    """A way to run a model, its name in the results, and the multiples of the training length
    to measure. flags are fparun's; None means ONNX Runtime."""

    name: str
    flags: tuple[str, ...] | None
    factors: tuple[int, ...]


def ways(method: str, factors: tuple[int, ...], engines: bool) -> list[Way]:
    """The cache that never changes an answer at all factors, and the bounded cache at up to
    three; engines: other engines at two, too."""
    softmax = METHODS[method].get("field_kind") == "none"  # never drops a key
    cache = ("--cache", "off" if softmax else "exact")
    out = [Way(cache[1], cache, factors)]
    if not softmax and 8 in factors:
        out.append(Way("bounded", ("--cache", "bounded", "--cache-eps", BOUNDED), tuple(f for f in factors if f in (1, 8, 64))))
    if engines:
        out += [Way("xla", (*cache, "--backend", "xla:cpu"), (1, 4)), Way("onnxruntime", None, (1, 4))]
    return out


def prompts(folder: Path, task: str, factor: int) -> Path:
    """The prompts of a task at factor x the training length: 50, or 10 above 32x; the same
    bytes at every run."""
    path = folder / f"prompts-{task}-{factor}.jsonl.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        export.write_evaluation(fresh, tokens.build(), task, (factor,), _count(factor))
        fresh.replace(path)
    return path


def _count(factor: int) -> int:
    return 50 if factor <= 32 else 10


def passkey(tool: Tool, checkpoint: Path, settings: passkeys.Settings, prompt_folder: Path, measured: list[Way],
            pause: Callable[[], None] = lambda: None, log=print) -> dict:
    """By way, task and factor: share of right answers, and mean share of the cache kept (not
    by ONNX Runtime). Once two lengths in a row had no right answer, longer ones count as 0;
    wordings never trained on are tried at up to 16x."""
    out: dict = {}
    for way in measured:
        model = tool.convert(checkpoint, way.flags is None)
        right: dict = {}
        kept: dict = {}
        stock = Stock(model, tool.threads) if way.flags is None else None
        for task in passkeys.MEASURED[settings.task]:
            right[task], kept[task] = {}, {}
            for factor in way.factors if task == settings.task else [f for f in way.factors if f <= 16]:
                pause()
                if len(right[task]) > 1 and not any(list(right[task].values())[-2:]):
                    right[task][str(factor)] = 0.0
                elif stock is not None:
                    right[task][str(factor)] = stock.right(task, factor, _count(factor), pause)
                else:
                    told = tool.evaluate("passkey", model, "--data", str(prompts(prompt_folder, task, factor)),
                                         *way.flags, "--cache-type", "f32")
                    row = told["lengths"][0]
                    right[task][str(factor)] = row["right"] / row["prompts"]
                    kept[task][str(factor)] = round(row["mean_kept"], 6)
            log(f"{settings}  {way.name}  {task}  right {right[task]}  kept {kept[task]}")
        out[way.name] = {"right": right, "kept": kept}
    return out


def perplexity(tool: Tool, checkpoint: Path, settings: language.Settings, text: Path, measured: list[Way],
               pause: Callable[[], None] = lambda: None, log=print) -> dict:
    """By way and factor: mean loss in nats, perplexity, mean share of the cache kept (not by
    ONNX Runtime)."""
    out: dict = {}
    for way in measured:
        model = tool.convert(checkpoint, way.flags is None)
        stock = Stock(model, tool.threads) if way.flags is None else None
        found = {}
        for factor in way.factors:
            pause()
            if stock is not None:
                loss = stock.loss(language.Corpus(text).valid.numpy(), factor, pause)
                found[str(factor)] = {"loss": round(loss, 5), "perplexity": round(math.exp(loss), 4)}
                continue
            told = tool.evaluate("perplexity", model, "-f", str(text / "valid.txt"), *way.flags,
                                 "--window", str(factor * language.LENGTH), "--cache-type", "f32")
            found[str(factor)] = {"loss": round(told["mean_nll"], 5), "perplexity": round(told["perplexity"], 4),
                                  "kept": round(told["mean_kept"], 5)}
        out[way.name] = found
        log(f"{settings}  {way.name}  {found}")
    return out


@dataclass(frozen=True)
class Compared:
    """A figure of training beside that of the tool."""

    way: str
    where: str
    want: float
    got: float
    agree: bool


def compare(experiment: str, trained: dict, measured: dict, loss: float = 2e-4) -> list[Compared]:
    """All figures that both have. Shares of right answers must be equal; losses may differ by
    `loss` nats (perplexity files: float32 in both). A bounded cache may change a loss."""
    out = []
    for way, found in measured.items():
        if experiment == "passkey":
            for task, by_factor in trained["right"].items():
                for factor, want in by_factor.items():
                    if (got := found["right"][task].get(factor)) is not None:
                        out.append(Compared(way, f"{task}, {factor}x, right", want, got, math.isclose(got, want)))
        elif way != "bounded":
            for factor, want in trained["losses"].items():
                if factor in found:
                    got = found[factor]["loss"]
                    out.append(Compared(way, f"{factor}x, loss", want, got, abs(got - want) <= loss))
    return out
