"""The page and the plots from results, few or none; the tool's figures against training's."""

import json
import stat
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from fpatrain import jobs, language, passkeys, plots, report, tool
from fpatrain.results import Results, settings_of


def scores(value):
    return {"misplaced": [value, value / 2], "exact": [1 - value, 1.0], "error": [value, value]}


@pytest.fixture
def results(tmp_path):
    """A few finished runs."""
    out = Results(tmp_path / "results")
    for rate in jobs.RATES:
        out.add(jobs.synthetic_job("scopes", "fpa-tied", 32, rate), {
            "scores": {f: scores(rate) for f in ("1", "2", "4")}, "sizes": [[1, 1.0, 50], [2, 2.1, 30]],
            "rows": [[1.0], [0.4, 0.6]], "target": [[1], [0, 1]]}, 5.0)
    settings = passkeys.Settings("three", "fox", 0.0, 4e-3)
    right = {task: {"1": 1.0, "2": 0.5, "4": 0.02, "8": 0.0} for task in passkeys.MEASURED["three"]}
    out.add(jobs.passkey_job(settings), {"right": right, "kept": right}, 60.0)
    for rate in jobs.LANGUAGE_RATES:
        out.add(jobs.language_job(language.Settings("fox", rate, steps=jobs.SWEEP_STEPS), tmp_path),
                {"losses": {"1": rate}, "perplexities": {"1": 30.0}}, 60.0)
    out.add(jobs.language_job(language.Settings("fox", min(jobs.LANGUAGE_RATES)), tmp_path),
            {"losses": {}, "perplexities": {f: 20.0 for f in ("1", "2", "4", "8")}}, 60.0)
    return out


def test_the_page(results, tmp_path):
    page = tmp_path / "claims.md"
    page.write_text("# Claims\n\n" + "".join(f"<!-- claims:{name} -->\n<!-- end -->\n\n" for name in report.BLOCKS))
    report.update(results, page, tmp_path / "claims")
    text = page.read_text()
    assert "| scopes | FPA, tied | 0.2 (0.1–0.3) %, 100 % | – |" in text.replace("99.9", "100").replace("100 (100–100)", "100")
    assert "| FoX | 1 | 100 % | 50 % | 2.0 % | 0.0 % | – |" in text
    assert "| FoX | 1 | 20.000 | 20.000 |" in text
    report.update(results, page, tmp_path / "claims")
    assert page.read_text() == text
    for name in report.PLOTS:
        assert ElementTree.parse(tmp_path / "claims" / name).getroot().tag.endswith("svg")


def test_nothing_measured_yet(tmp_path):
    page = tmp_path / "claims.md"
    page.write_text("".join(f"<!-- claims:{name} -->\n<!-- end -->\n" for name in report.BLOCKS))
    report.update(Results(tmp_path), page, tmp_path / "claims")
    assert report.OPEN in page.read_text()
    for name in report.PLOTS:
        ElementTree.parse(tmp_path / "claims" / name)


def test_an_unknown_block_is_named(tmp_path):
    page = tmp_path / "claims.md"
    page.write_text("<!-- claims:nothing -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="nothing"):
        report.update(Results(tmp_path), page, tmp_path)


def test_a_chart_shows_its_points():
    panel = plots.Panel("A < B", "x", "y", [plots.Line("one", [(1, 0.5, 0.25, 1.0), (4, 1.0, 1.0, 1.0)])])
    root = ElementTree.fromstring(plots.charts("Title", [panel], wide=124, high=100))
    spots = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert spots == [(74.0, 96.0), (174.0, 46.0)]
    assert "A < B" in [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_disagreements():
    trained = {"right": {"one": {"1": 1.0, "2": 0.5}}, "kept": {}}
    same = {"exact": {"right": {"one": {"1": 1.0, "2": 0.5, "64": 0.0}}}}
    assert tool.disagreements("passkey", trained, same) == []
    other = {"exact": {"right": {"one": {"1": 0.98}}}}
    assert len(tool.disagreements("passkey", trained, other)) == 2
    assert tool.disagreements("language", {"losses": {"1": 3.0}}, {"exact": {"1": {"loss": 3.0001}}}) == []
    assert tool.disagreements("language", {"losses": {"1": 3.0}}, {"exact": {"1": {"loss": 3.01}}})


def program(path, body):
    path.write_text(f"#!{sys.executable}\nimport sys, json\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_tool_is_asked_until_it_fails_twice(tmp_path):
    """With programs that stand in for fpaconv and fparun: right up to 512 tokens."""
    calls = tmp_path / "calls"
    fpaconv = program(tmp_path / "fpaconv", "open(sys.argv[3], 'w').write('model')")
    fparun = program(tmp_path / "fparun", f"""
a = sys.argv
import gzip
n = json.loads(gzip.open(a[a.index('--data') + 1]).readline())['length']
print(json.dumps({{'lengths': [{{'right': 50 if n <= 512 else 0, 'prompts': 50, 'mean_kept': 0.25}}]}}))
open({str(calls)!r}, 'a').write(' '.join(a[1:]) + '\\n')""")
    settings = passkeys.Settings("one", "softmax-rope", 0.0, 1e-3)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"experiment": "passkey", **settings_of(settings)}))
    (job,) = jobs.tool_jobs(tool.Tool(fpaconv, fparun), tmp_path, tmp_path)
    got = job.run(job, tmp_path / "unused", lambda: None, lambda text: None)
    assert got == {"off": {"right": {"one": {"1": 1.0, "2": 1.0, "4": 0.0, "8": 0.0}},
                           "kept": {"one": {f: 0.25 for f in ("1", "2", "4", "8")}}}}
    assert len(calls.read_text().splitlines()) == 4 and "--cache off" in calls.read_text()
    bad = program(tmp_path / "bad", "sys.exit('no such model')")
    with pytest.raises(RuntimeError, match="no such model"):
        tool.Tool(bad, bad).convert(folder)
