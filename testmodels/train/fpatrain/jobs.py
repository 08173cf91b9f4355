"""All runs behind docs/claims.md, in the order in which they are wanted."""

from collections.abc import Iterator
from statistics import mean

from . import synthetic
from .results import Job, Results, settings_of

LENGTHS = (32, 64, 128, 256)
RATES = (3e-3, 1e-2, 3e-2)


def _run_synthetic(job: Job, folder, pause, log) -> dict:
    return synthetic.run(synthetic.Settings(**job.settings), pause, log)


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
    for n in lengths:
        for task in synthetic.TASKS:
            for method in synthetic.METHODS:
                if n == LENGTHS[0]:
                    for rate in RATES:
                        yield synthetic_job(task, method, n, rate)
                elif (rate := best_rate(results, task, method)) is not None:
                    yield synthetic_job(task, method, n, rate)


def all_jobs(results: Results, only: tuple[str, ...] = ()) -> Iterator[Job]:
    """Jobs of the experiments named, or of all."""
    if not only or "synthetic" in only:
        yield from synthetic_jobs(results)
