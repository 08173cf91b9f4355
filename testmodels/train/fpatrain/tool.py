"""Trained models through fpaconv and fparun: the same checkpoints, measured by the tool.

A folder of checkpoints holds one folder a run, each with run.json (experiment and settings).
"""

import json
import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import data, export, language, passkeys, tokens
from .methods import METHODS

PASSKEY_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BOUNDED = "0.001"


@dataclass(frozen=True)
class Tool:
    """Paths of the two programs, and threads for the second."""

    fpaconv: str = "fpaconv"
    fparun: str = "fparun"
    threads: int = 1

    def convert(self, checkpoint: Path, kind: str = "f32") -> Path:
        """model.gguf in the checkpoint's folder, verified by fpaconv, written anew."""
        out = checkpoint / "model.gguf"
        _output([self.fpaconv, str(checkpoint), "-o", str(out), "--type", kind, "--force", "--quiet"])
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


def caches(method: str) -> list[list[str]]:
    """Flags of the cache modes to measure: softmax never drops a key."""
    if METHODS[method].get("field_kind") == "none":
        return [["--cache", "off"]]
    return [["--cache", "exact"], ["--cache", "bounded", "--cache-eps", BOUNDED]]


def prompts(folder: Path, task: str, factor: int) -> Path:
    """The prompts of a task at factor x the training length: 50, or 10 above 64x; the same
    bytes at every run."""
    path = folder / f"prompts-{task}-{factor}.jsonl.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        export.write_evaluation(fresh, tokens.build(), task, (factor,), 50 if factor <= 64 else 10)
        fresh.replace(path)
    return path


def passkey(tool: Tool, checkpoint: Path, settings: passkeys.Settings, prompt_folder: Path,
            pause: Callable[[], None] = lambda: None, log=print, factors=PASSKEY_FACTORS) -> dict:
    """By cache mode, task and factor: share of right answers, and mean share of the cache kept.

    Longer prompts are left out once two lengths in a row had no right answer."""
    model, out = tool.convert(checkpoint), {}
    for flags in caches(settings.method):
        right, kept = {}, {}
        for task in passkeys.MEASURED[settings.task]:
            right[task], kept[task] = {}, {}
            for factor in factors:
                if len(right[task]) > 1 and not any(list(right[task].values())[-2:]):
                    break
                pause()
                told = tool.evaluate("passkey", model, "--data", str(prompts(prompt_folder, task, factor)),
                                     *flags, "--cache-type", "f32")
                row = told["lengths"][0]
                right[task][str(factor)] = row["right"] / row["prompts"]
                kept[task][str(factor)] = round(row["mean_kept"], 6)
            log(f"{settings}  {flags[1]}  {task}  right {right[task]}  kept {kept[task]}")
        out[flags[1]] = {"right": right, "kept": kept}
    return out


def perplexity(tool: Tool, checkpoint: Path, settings: language.Settings, text: Path,
               pause: Callable[[], None] = lambda: None, log=print, factors=(1, 2, 4, 8)) -> dict:
    """By cache mode and factor: mean loss in nats, perplexity, mean share of the cache kept."""
    model, out = tool.convert(checkpoint), {}
    for flags in caches(settings.method):
        found = {}
        for factor in factors:
            pause()
            told = tool.evaluate("perplexity", model, "-f", str(text / "valid.txt"), *flags,
                                 "--window", str(factor * language.LENGTH), "--cache-type", "f32")
            found[str(factor)] = {"loss": round(told["mean_nll"], 5), "perplexity": round(told["perplexity"], 4),
                                  "kept": round(told["mean_kept"], 5)}
        out[flags[1]] = found
        log(f"{settings}  {flags[1]}  {found}")
    return out


def disagreements(experiment: str, trained: dict, measured: dict, loss: float = 2e-4) -> list[str]:
    """Where the tool's figures are not PyTorch's: another share of right answers, or a loss
    that differs by more than `loss` nats (perplexity files: float32 in both)."""
    out = []
    for mode, found in measured.items():
        if experiment == "passkey":
            for task, by_factor in trained["right"].items():
                for factor, right in by_factor.items():
                    got = found["right"][task].get(factor, 0.0)
                    if not math.isclose(got, right):
                        out.append(f"{mode}, {task}, {factor}x: right {got:.0%}, PyTorch {right:.0%}")
        elif mode != "bounded":
            for factor, want in trained["losses"].items():
                got = found[factor]["loss"]
                if abs(got - want) > loss:
                    out.append(f"{mode}, {factor}x: loss {got}, PyTorch {want}")
    return out
