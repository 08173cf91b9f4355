"""Results of training runs, one JSON object a line, and a queue of jobs over them.

A job is known by its experiment and settings; a finished one is never run again, and several
programs may work on one queue.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch


@dataclass(frozen=True)
class Job:
    """run(job, folder, pause, log) returns the result; folder is the job's own, for checkpoints."""

    experiment: str
    settings: dict
    run: Callable = field(compare=False)

    @property
    def name(self) -> str:
        """Short and unlike that of any other settings; a file name."""
        told = json.dumps([self.experiment, self.settings], sort_keys=True)
        words = [self.experiment] + [str(v) for v in list(self.settings.values())[:4]]
        return "-".join(words).replace("/", "_") + "-" + hashlib.sha256(told.encode()).hexdigest()[:8]


def commit() -> str:
    """The commit this code is at, with + when files differ from it; "unknown" outside git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


COMMIT = commit()  # when the code was loaded, not when a run ends


def _canonical(settings: dict) -> str:
    return json.dumps(settings, sort_keys=True)


class Results:
    """The results files of a folder, EXPERIMENT.jsonl each."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self._known: dict[str, tuple[int, list[dict], dict[str, dict]]] = {}

    def _load(self, experiment: str) -> tuple[int, list[dict], dict[str, dict]]:
        """Size of the file, its entries, and their results by settings; read again when the
        file has grown (nothing is ever taken away)."""
        path = self.folder / f"{experiment}.jsonl"
        size = path.stat().st_size if path.exists() else 0
        known = self._known.get(experiment)
        if known is None or known[0] != size:
            entries = [json.loads(line) for line in path.read_text().splitlines() if line] if size else []
            known = size, entries, {_canonical(e["settings"]): e["result"] for e in entries}
            self._known[experiment] = known
        return known

    def read(self, experiment: str) -> list[dict]:
        """All finished runs of an experiment, in the order they finished."""
        return self._load(experiment)[1]

    def find(self, experiment: str, settings: dict) -> dict | None:
        """The result of a finished run with exactly these settings."""
        return self._load(experiment)[2].get(_canonical(settings))

    def add(self, job: Job, result: dict, seconds: float) -> None:
        """Appends a finished run."""
        entry = {
            "settings": job.settings, "result": result, "seconds": round(seconds, 1),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": COMMIT, "torch": torch.__version__}
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{job.experiment}.jsonl", "a") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            out.write(json.dumps(entry, separators=(",", ":")) + "\n")


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this program alone holds the lock file, until the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def pauser(log: Callable = print) -> Callable[[], None]:
    """A function that waits while another program holds the lock file that the environment
    variable FPATRAIN_PAUSE names (someone measures on this machine)."""
    path = os.environ.get("FPATRAIN_PAUSE")
    last = 0.0

    def pause() -> None:
        nonlocal last
        if path is None or time.monotonic() - last < 0.3 or not os.path.exists(path):
            return
        with open(path) as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.5)
        last = time.monotonic()

    return pause


def work(jobs: Callable[[Results], Iterable[Job]], results: Results, checkpoints: Path, log=print,
         stop: float = float("inf")) -> int:
    """Runs jobs until none is left that is neither finished nor under way elsewhere, or the
    time `stop` (seconds since the epoch) has passed. jobs() is asked again after each, for the
    next may depend on the results. Returns the number of jobs run."""
    count = 0
    pause = pauser(log)

    def step() -> bool:
        for job in jobs(results):
            if results.find(job.experiment, job.settings) is not None:
                continue
            with claimed(results.folder / "locks" / job.name) as mine:
                # It may have been finished since the list was made.
                if not mine or results.find(job.experiment, job.settings) is not None:
                    continue
                log(f"--- {job.name}")
                began = time.time()
                folder = checkpoints / job.name
                result = job.run(job, folder, pause, log)
                if folder.is_dir():
                    told = {"experiment": job.experiment, **job.settings}
                    (folder / "run.json").write_text(json.dumps(told, indent=2) + "\n")
                results.add(job, result, time.time() - began)
                return True
        return False

    while time.time() < stop and step():
        count += 1
    return count


def settings_of(value) -> dict:
    """A dataclass as plain JSON values."""
    return json.loads(json.dumps(asdict(value)))
