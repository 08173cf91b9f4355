"""The page and the plots from results, few or none; the tool's figures against training's."""

import json
import shutil
import stat
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from fpatrain import evaluate, export, jobs, language, passkeys, plots, report, stock, tokens, tool
from fpatrain.model import Config, Decoder
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


def test_compare():
    trained = {"right": {"one": {"1": 1.0, "2": 0.5}}, "kept": {}}
    same = tool.compare("passkey", trained, {"exact": {"right": {"one": {"1": 1.0, "2": 0.5, "64": 0.0}}}})
    assert [(c.way, c.where, c.agree) for c in same] == [("exact", "one, 1x, right", True), ("exact", "one, 2x, right", True)]
    assert [c.agree for c in tool.compare("passkey", trained, {"xla": {"right": {"one": {"1": 0.98}}}})] == [False]
    assert [c.agree for c in tool.compare("language", {"losses": {"1": 3.0}}, {"exact": {"1": {"loss": 3.0001}}})] == [True]
    assert [c.agree for c in tool.compare("language", {"losses": {"1": 3.0}}, {"exact": {"1": {"loss": 3.01}}})] == [False]


def test_what_is_measured():
    shown = tool.ways("fpa", tool.PASSKEY_FACTORS, True)
    assert [w.name for w in shown] == ["exact", "bounded", "xla", "onnxruntime"]
    assert shown[1].factors == (1, 8, 64)
    assert [w.name for w in tool.ways("softmax-rope", (1, 2, 4, 8), False)] == ["off"]
    assert [w.name for w in tool.ways("fox", (1,), False)] == ["exact"]


def test_in_stock_onnxruntime(tmp_path):
    """The answers and the loss of a fresh model are PyTorch's."""
    pytest.importorskip("onnxruntime")
    fpaconv = shutil.which("fpaconv") or pytest.skip("fpaconv is not on the PATH")
    tokenizer = tokens.build()
    torch.manual_seed(0)
    model = Decoder(Config(vocab_size=tokenizer.get_vocab_size()))
    export.write_model(tmp_path, model, tokenizer, half=False)
    found = stock.Stock(tool.Tool(fpaconv).convert(tmp_path, True))
    ids = torch.randint(512, (2 * 512 + 3,))
    assert abs(found.loss(ids.numpy(), 2) - language.loss_at(model, ids, 512)) < 1e-5
    assert found.right("one", 1, 3) == evaluate.measure(model, tokenizer, "one", 1, 3, None)[0]
    # An answer is right only if all of it is, the end token too.
    class Oracle(stock.Stock):
        def __init__(self, wrong):
            self.wrong = wrong

        def logits(self, ids):
            out = np.zeros((*ids.shape, 512), np.float32)
            answer = list(ids[0, -tool.data.ANSWER_TOKENS + 1:]) + [tokens.END_ID]
            for place, token in enumerate(answer):
                out[0, place - len(answer), token if place != self.wrong else token + 1] = 1
            return out

    assert Oracle(None).right("one", 1, 3) == 1 and Oracle(tool.data.ANSWER_TOKENS - 1).right("one", 1, 3) == 0


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
    settings = passkeys.Settings("one", "softmax-rope", 0.0, 1e-3, seed=1)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"experiment": "passkey", **settings_of(settings)}))
    (job,) = jobs.tool_jobs(tool.Tool(fpaconv, fparun), tmp_path, tmp_path, Results(tmp_path))
    got = job.run(job, tmp_path / "unused", lambda: None, lambda text: None)
    right = {"1": 1.0, "2": 1.0} | {str(f): 0.0 for f in (4, 8, 16, 32, 64, 128, 256)}
    assert got == {"off": {"right": {"one": right},
                           "kept": {"one": {f: 0.25 for f in ("1", "2", "4", "8")}}}}
    assert len(calls.read_text().splitlines()) == 4 and "--cache off" in calls.read_text()
    bad = program(tmp_path / "bad", "sys.exit('no such model')")
    with pytest.raises(RuntimeError, match="no such model"):
        tool.Tool(bad, bad).convert(folder)
