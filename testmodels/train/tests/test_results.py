"""The queue: order, no repetition, no sharing of a job, waiting."""

import fcntl
import threading
import time

from fpatrain.results import Job, Results, claimed, pauser, work


def test_a_job_runs_once(tmp_path):
    ran = []

    def run(job, folder, pause, log):
        ran.append((job.settings["x"], folder.name == job.name))
        return {"square": job.settings["x"] ** 2}

    def jobs(results):
        yield Job("try", {"x": 2}, run)
        if results.find("try", {"x": 2}) is not None:  # depends on the first
            yield Job("try", {"x": 3}, run)

    results = Results(tmp_path)
    assert work(jobs, results, tmp_path / "models", lambda text: None) == 2
    assert work(jobs, results, tmp_path / "models", lambda text: None) == 0
    assert ran == [(2, True), (3, True)]
    assert results.find("try", {"x": 3}) == {"square": 9}
    assert results.find("try", {"x": 4}) is None
    assert {"settings", "result", "seconds", "finished", "commit", "torch"} == set(results.read("try")[0])


def test_a_claimed_job_is_left_alone(tmp_path):
    results = Results(tmp_path)
    job = Job("try", {"x": 1}, lambda *args: {})
    with claimed(tmp_path / "locks" / job.name) as mine:
        assert mine
        assert work(lambda results: [job], results, tmp_path, lambda text: None) == 0
    assert work(lambda results: [job], results, tmp_path, lambda text: None) == 1


def test_time_is_up(tmp_path):
    job = Job("try", {"x": 1}, lambda *args: {})
    assert work(lambda results: [job], Results(tmp_path), tmp_path, stop=time.time() - 1) == 0


def test_pause_waits_for_the_lock(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    monkeypatch.setenv("FPATRAIN_PAUSE", str(path))
    pause = pauser()
    pause()  # no file, no wait
    passed = threading.Event()
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: (pause(), passed.set()), daemon=True)
        waiting.start()
        assert not passed.wait(0.3)
    assert passed.wait(10)


def test_names_differ():
    first, second = (Job("try", {"a": 1, "b": b}, lambda *args: {}) for b in (1, 2))
    assert first.name != second.name and "/" not in first.name
