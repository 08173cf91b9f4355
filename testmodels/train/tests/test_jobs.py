"""The list of runs: sweeps first, then what depends on them."""

import pytest

from fpatrain import jobs, passkeys
from fpatrain.results import Results, settings_of


def finish(results, job, result):
    results.add(job, result, 1.0)


def test_synthetic_takes_the_best_rate(tmp_path):
    results = Results(tmp_path)
    first = list(jobs.synthetic_jobs(results))
    assert len(first) == 3 * 8 * len(jobs.RATES) and all(j.settings["n"] == 32 for j in first)
    for rate, misplaced in zip(jobs.RATES, (0.3, 0.1, 0.2)):
        finish(results, jobs.synthetic_job("scopes", "fox", 32, rate), {"scores": {"1": {"misplaced": [misplaced]}}})
    more = [j.settings for j in jobs.synthetic_jobs(results)][len(first):]
    assert [(s["n"], s["rate"]) for s in more] == [(n, jobs.RATES[1]) for n in (64, 128, 256)]


def test_passkey_takes_the_best_settings(tmp_path):
    results = Results(tmp_path)
    sweep = jobs.passkey_sweep("one", "fox", 0.0)
    assert [s.rate for s in sweep] == list(jobs.PASSKEY_RATES)
    assert len(jobs.passkey_sweep("three", "fox", 0.0)) == len(sweep) + 1
    for settings, right in zip(sweep, (0.8, 0.2, 0.9)):
        assert jobs.finalists(results, "one", "fox", 0.0) == []
        finish(results, jobs.passkey_job(settings), {"right": {"one": {"1": 1.0, "4": 2 * right - 1}}})
    assert jobs.finalists(results, "one", "fox", 0.0) == [sweep[2], sweep[0]]
    open_ = [j for j in jobs.passkey_jobs(results) if results.find("passkey", j.settings) is None
             and j.settings["method"] == "fox" and j.settings["task"] == "one" and not j.settings["pressure"]]
    assert [(j.settings["rate"], j.settings["seed"]) for j in open_] == [
        (sweep[2].rate, 1), (sweep[2].rate, 2), (sweep[0].rate, 1), (sweep[0].rate, 2)]
    for job, right in zip(open_, (0.9, 0.0, 0.8, 0.8)):
        assert jobs.best_passkey(results, "one", "fox", 0.0) is None
        finish(results, job, {"right": {"one": {"1": right}}})
    assert jobs.best_passkey(results, "one", "fox", 0.0) == sweep[0]


def test_language_order(tmp_path):
    results = Results(tmp_path)
    for method in jobs.LANGUAGE_METHODS:
        for rate in jobs.LANGUAGE_RATES:
            settings = jobs.language.Settings(method, rate, steps=jobs.SWEEP_STEPS)
            finish(results, jobs.language_job(settings, tmp_path), {"losses": {"1": rate}})
    long = [j.settings for j in jobs.language_jobs(results, tmp_path) if j.settings["steps"] > jobs.SWEEP_STEPS]
    assert [(s["method"], s["pressure"], s["seed"]) for s in long[:9]] == [
        ("fpa", 0, 0), ("fox", 0, 0), ("softmax-rope", 0, 0), ("fpa", 0.1, 0), ("fox", 0.1, 0),
        ("fpa", 0, 1), ("fox", 0, 1), ("fpa", 0, 2), ("fox", 0, 2)]
    assert len(long) == 11 and all(s["rate"] == min(jobs.LANGUAGE_RATES) for s in long)


def test_every_job_has_its_own_name(tmp_path):
    names = [job.name for job in jobs.all_jobs(Results(tmp_path))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("task, method, pressure", [("one", "fpa", 1.0), ("three", "softmax-rope", 0.0)])
def test_passkey_run(tmp_path, monkeypatch, task, method, pressure):
    monkeypatch.setattr(passkeys, "FACTORS", (1,))
    settings = passkeys.Settings(task, method, pressure, 4e-3)
    result = passkeys.run(settings, tmp_path, log=lambda text: None, shorten=200, count=2)
    assert set(result["right"]) == set(passkeys.MEASURED[task])
    assert (tmp_path / "model.safetensors").exists()
    assert passkeys.Settings(**settings_of(settings)) == settings
