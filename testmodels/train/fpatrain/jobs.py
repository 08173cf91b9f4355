"""All runs behind docs/claims.md, in the order in which they are wanted."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

from . import language, passkeys, synthetic, tool
from .results import Job, Results, settings_of

LENGTHS = (32, 64, 128, 256)
RATES = (1e-2, 3e-3, 3e-2)


def _run_synthetic(job: Job, folder, pause, log) -> dict:
    """What is trained on the shortest sequences is tried on longer ones, too."""
    settings = synthetic.Settings(**job.settings)
    return synthetic.run(settings, pause, log, (1, 2, 4) if settings.n == LENGTHS[0] else (1,))


def synthetic_job(task: str, method: str, n: int, rate: float) -> Job:
    return Job("synthetic", settings_of(synthetic.Settings(task, method, n, rate)), _run_synthetic)


def best_rate(results: Results, task: str, method: str, n: int = LENGTHS[0]) -> float | None:
    """The rate with the least misplaced attention at length n; None before all are measured."""
    found = {}
    for rate in RATES:
        job = synthetic_job(task, method, n, rate)
        result = results.find(job.experiment, job.settings)
        if result is None:
            return None
        found[rate] = mean(result["scores"]["1"]["misplaced"])
    return min(found, key=found.get)


def synthetic_jobs(results: Results, lengths=LENGTHS) -> Iterator[Job]:
    """Every rate at the shortest length; the best of them at the others."""
    every = [(task, method) for task in synthetic.TASKS for method in synthetic.METHODS]
    for rate in RATES:
        yield from (synthetic_job(*which, lengths[0], rate) for which in every)
    for n in lengths[1:]:
        for which in every:
            if (rate := best_rate(results, *which)) is not None:
                yield synthetic_job(*which, n, rate)


# Passkey: methods with their pressure on living keys, and what is tried for each of them.
VARIANTS = {
    "one": (("fpa", 1.0), ("fox", 0.0), ("softmax-rope", 0.0), ("fox", 1.0), ("fpa", 0.0)),
    "three": (("fpa", 1.0), ("fox", 0.0), ("softmax-rope", 0.0)),
}
PASSKEY_RATES = (2e-3, 4e-3, 8e-3)
SEEDS = (0, 1, 2)
FINALISTS = {"one": 2, "three": 1}


def _run_passkey(job: Job, folder, pause, log) -> dict:
    return passkeys.run(passkeys.Settings(**job.settings), folder, pause, log)


def passkey_job(settings: passkeys.Settings) -> Job:
    return Job("passkey", settings_of(settings), _run_passkey)


def passkey_sweep(task: str, method: str, pressure: float) -> list[passkeys.Settings]:
    """What is tried, on seed 0: every rate, and the task's other schedule at the middle one."""
    tried = [passkeys.Settings(task, method, pressure, rate) for rate in PASSKEY_RATES]
    others = [name for of, name in passkeys.SCHEDULES if of == task and name != tried[0].schedule]
    return tried + [replace(tried[1], schedule=name) for name in others]


def passkey_scores(results: Results, settings: passkeys.Settings) -> list[float]:
    """Share of right answers, mean over the lengths measured, of every seed that is done."""
    found = (results.find("passkey", settings_of(replace(settings, seed=seed))) for seed in SEEDS)
    return [mean(result["right"][settings.task].values()) for result in found if result is not None]


def finalists(results: Results, task: str, method: str, pressure: float) -> list[passkeys.Settings]:
    """The settings of the sweep that all seeds are trained with, best first; none before the
    sweep is complete."""
    sweep = passkey_sweep(task, method, pressure)
    if any(results.find("passkey", settings_of(settings)) is None for settings in sweep):
        return []
    return sorted(sweep, key=lambda s: -passkey_scores(results, s)[0])[: FINALISTS[task]]


def best_passkey(results: Results, task: str, method: str, pressure: float) -> passkeys.Settings | None:
    """The finalist with the most right answers over all seeds; None before all are done."""
    scores = {s: passkey_scores(results, s) for s in finalists(results, task, method, pressure)}
    if not scores or any(len(of) < len(SEEDS) for of in scores.values()):
        return None
    return max(scores, key=lambda s: mean(scores[s]))


def passkey_jobs(results: Results) -> Iterator[Job]:
    """The sweeps, then the other seeds of the finalists."""
    for task in passkeys.STEPS:
        for variant in VARIANTS[task]:
            yield from map(passkey_job, passkey_sweep(task, *variant))
        for variant in VARIANTS[task]:
            for settings in finalists(results, task, *variant):
                yield from (passkey_job(replace(settings, seed=seed)) for seed in SEEDS[1:])


LANGUAGE_METHODS = ("fpa", "fox", "softmax-rope")
LANGUAGE_RATES = (2e-3, 4e-3, 8e-3)
SWEEP_STEPS = 120
LANGUAGE_PRESSURE = 0.1


def language_job(settings: language.Settings, text: Path) -> Job:
    """The short runs of the sweep are measured at the training length alone."""
    factors = (1,) if settings.steps <= SWEEP_STEPS else (1, 2, 4, 8)
    return Job("language", settings_of(settings), lambda job, folder, pause, log: language.run(
        language.Settings(**job.settings), text, folder, pause, log, factors))


def best_language(results: Results, method: str) -> float | None:
    """The rate with the least loss in the short runs; None before all are done."""
    found = {}
    for rate in LANGUAGE_RATES:
        result = results.find("language", settings_of(language.Settings(method, rate, steps=SWEEP_STEPS)))
        if result is None:
            return None
        found[rate] = result["losses"]["1"]
    return min(found, key=found.get)


def language_jobs(results: Results, text: Path) -> Iterator[Job]:
    """Short runs at every rate, then long ones: all methods with seed 0, what pressure costs
    FPA and does to FoX, and the other seeds, those of softmax last."""
    for method in LANGUAGE_METHODS:
        for rate in LANGUAGE_RATES:
            yield language_job(language.Settings(method, rate, steps=SWEEP_STEPS), text)
    wanted = [(method, 0.0, SEEDS[0]) for method in LANGUAGE_METHODS]
    wanted += [(method, LANGUAGE_PRESSURE, SEEDS[0]) for method in ("fpa", "fox")]
    wanted += [(method, 0.0, seed) for methods in (LANGUAGE_METHODS[:2], LANGUAGE_METHODS[2:])
               for seed in SEEDS[1:] for method in methods]
    for method, pressure, seed in wanted:
        rate = best_language(results, method)
        if rate is not None:
            yield language_job(language.Settings(method, rate, seed, pressure=pressure), text)


def all_jobs(results: Results, only: tuple[str, ...] = (), text: Path = Path("english")) -> Iterator[Job]:
    """Jobs of the experiments named, or of all; `text` is where english.fetch put the text."""
    if not only or "synthetic" in only:
        yield from synthetic_jobs(results)
    if not only or "passkey" in only:
        yield from passkey_jobs(results)
    if not only or "language" in only:
        yield from language_jobs(results, text)


def tool_jobs(programs: tool.Tool, checkpoints: Path, text: Path, results: Results) -> Iterator[Job]:
    """An evaluation by the tool for every checkpoint in the folder (those with a run.json). What
    the sweeps did not choose is measured where training measured it; of what they chose, seed 0
    runs on every engine."""
    for path in sorted(checkpoints.glob("*/run.json")):
        told = json.loads(path.read_text())

        def run(job, folder, pause, log, checkpoint=path.parent):
            given = dict(job.settings)
            if given.pop("experiment") == "passkey":
                settings = passkeys.Settings(**given)
                best = best_passkey(results, settings.task, settings.method, settings.pressure)
                shown = best is None or best == replace(settings, seed=best.seed)
                # What only tells pressure and method apart is not followed to the end.
                main = (settings.method, settings.pressure) in VARIANTS["three"]
                factors = passkeys.FACTORS
                if shown:
                    factors = tool.PASSKEY_FACTORS if main else tuple(f for f in tool.PASSKEY_FACTORS if f <= 16)
                ways = tool.ways(settings.method, factors, shown and main and settings.seed == 0)
                return tool.passkey(programs, checkpoint, settings, checkpoints, ways, pause, log)
            settings = language.Settings(**given)
            shown = settings.steps > SWEEP_STEPS
            engines = shown and not settings.pressure and settings.seed == 0
            ways = tool.ways(settings.method, (1, 2, 4, 8) if shown else (1,), engines)
            return tool.perplexity(programs, checkpoint, settings, text, ways, pause, log)

        yield Job("tool", told, run)
