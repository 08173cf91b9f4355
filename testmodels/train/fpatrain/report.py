"""docs/claims.md from the results: tables between marks in the page, and the plots.

A block of the page is `<!-- claims:NAME -->` … `<!-- end -->`; what stands between is written
anew by `update`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

from . import jobs, language, passkeys, plots, synthetic, tool
from .results import Results, settings_of

BLOCK = re.compile(r"(<!-- claims:([a-z-]+) -->\n).*?(<!-- end -->)", re.S)
OPEN = "–"  # not measured yet
NAMES = {
    "fpa-tied": "FPA, tied", "fpa-relative": "FPA, relative", "fpa-absolute": "FPA, direct field, absolute",
    "fpa": "FPA", "fox": "FoX", "softmax-learned": "softmax, learned positions",
    "softmax-rope": "softmax, rotary", "softmax-alibi": "softmax, ALiBi", "softmax-none": "softmax, no positions",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def percent(values: list[float]) -> str:
    """Mean and, where they differ, the range of shares."""
    told = [f"{100 * v:.{1 if v < 0.0995 else 0}f}" for v in (mean(values), min(values), max(values))]
    return f"{told[0]} %" if told[1] == told[2] else f"{told[0]} ({told[1]}–{told[2]}) %"


def _synthetic(results: Results, task: str, method: str, n: int) -> dict | None:
    rate = jobs.best_rate(results, task, method)
    if rate is None:
        # Before the sweep is complete: the best of what is there.
        found = [r for rate in jobs.RATES if (r := results.find(
            "synthetic", jobs.synthetic_job(task, method, n, rate).settings))]
        return min(found, key=lambda r: mean(r["scores"]["1"]["misplaced"]), default=None)
    return results.find("synthetic", jobs.synthetic_job(task, method, n, rate).settings)


def synthetic_table(results: Results) -> str:
    """A row a task and method: misplaced attention and exact sets at each length."""
    rows = []
    for task in synthetic.TASKS:
        for method in synthetic.METHODS:
            cells = []
            for n in jobs.LENGTHS:
                result = _synthetic(results, task, method, n)
                scores = result and result["scores"]["1"]
                cells.append(f"{percent(scores['misplaced'])}, {percent(scores['exact'])}" if scores else OPEN)
            rows.append([task, NAMES[method], *cells])
    return table(["task", "method", *(f"{n} keys" for n in jobs.LENGTHS)], rows)


def synthetic_longer_table(results: Results) -> str:
    """Exact sets at 2 and 4 times the length trained at, for the methods that solve a task."""
    rows = []
    for task in synthetic.TASKS:
        for method in synthetic.METHODS:
            result = _synthetic(results, task, method, jobs.LENGTHS[0])
            if result and mean(result["scores"]["1"]["exact"]) > 0.9:
                cells = [percent(result["scores"][f]["exact"]) for f in ("1", "2", "4")]
                rows.append([task, NAMES[method], *cells])
    return table(["task", "method", "32 keys, as trained", "64", "128"], rows)


def synthetic_sweep_table(results: Results) -> str:
    """Misplaced attention at the shortest length for every learning rate."""
    rows = []
    for task in synthetic.TASKS:
        for method in synthetic.METHODS:
            found = [results.find("synthetic", jobs.synthetic_job(task, method, jobs.LENGTHS[0], rate).settings)
                     for rate in sorted(jobs.RATES)]
            rows.append([task, NAMES[method], *(percent(r["scores"]["1"]["misplaced"]) if r else OPEN for r in found)])
    return table(["task", "method", *(f"rate {rate:g}" for rate in sorted(jobs.RATES))], rows)


def synthetic_plot(results: Results) -> str:
    panels = []
    for task in synthetic.TASKS:
        panel = plots.Panel(task, "keys", "attention misplaced", top=0.8)
        for method in synthetic.METHODS:
            points = []
            for n in jobs.LENGTHS:
                if result := _synthetic(results, task, method, n):
                    values = result["scores"]["1"]["misplaced"]
                    points.append((n, median(values), min(values), max(values)))
            if points:
                panel.lines.append(plots.Line(NAMES[method], points))
        panels.append(panel)
    return plots.charts("Survivor sets: attention on wrong keys, by number of keys", panels)


def sizes_plot(results: Results) -> str:
    """Size of the set found against that of the living set, at the shortest length, run 0."""
    panels = []
    for task in synthetic.TASKS:
        panel = plots.Panel(task, "keys alive", "keys found", top=24, percent=False, linear=True)
        for method in synthetic.METHODS:
            if result := _synthetic(results, task, method, jobs.LENGTHS[0]):
                points = [(size, found, found, found) for size, found, count in result["sizes"] if count >= 20]
                panel.lines.append(plots.Line(NAMES[method], points))
        panels.append(panel)
    return plots.charts("Survivor sets: size of the set found by that of the living set", panels)


def maps_plot(results: Results, task: str = "scopes") -> str:
    """One sequence's attention: the target, and what methods learned."""
    pictures = []
    for method in ("fpa-tied", "fox", "softmax-rope", "softmax-learned"):
        if result := _synthetic(results, task, method, jobs.LENGTHS[0]):
            if not pictures:
                pictures.append(("target", result["target"]))
            pictures.append((NAMES[method], result["rows"]))
    return plots.maps(f"Attention of one sequence of the task {task}", pictures or [("not measured yet", [[0.0]])])


def _variant(method: str, pressure: float) -> str:
    return NAMES[method] + (" + pressure" if pressure else "")


def _passkey(results: Results, task: str, method: str, pressure: float) -> list[tuple[dict, dict | None]]:
    """(result, result of the tool) of every seed at the best settings; of the sweep's best so
    far before it is complete."""
    best = jobs.best_passkey(results, task, method, pressure)
    if best is None:
        done = [(s, r) for s in jobs.passkey_sweep(task, method, pressure) if (r := results.find("passkey", settings_of(s)))]
        wanted = [max(done, key=lambda d: mean(d[1]["right"][task].values()))[0]] if done else []
    else:
        wanted = [passkeys.Settings(**{**settings_of(best), "seed": seed}) for seed in jobs.SEEDS]
    found = []
    for settings in map(settings_of, wanted):
        if result := results.find("passkey", settings):
            found.append((result, results.find("tool", {"experiment": "passkey", **settings})))
    return found


def passkey_table(results: Results, task: str, what: str = "right", measured: str | None = None) -> str:
    """A row a variant: `right` or `kept` (exact) by length; the tool's figures where there are
    some, else PyTorch's."""
    rows, measured = [], measured or task
    for variant in jobs.VARIANTS[task]:
        found = _passkey(results, task, *variant)
        cells = []
        for factor in map(str, tool.PASSKEY_FACTORS):
            values = []
            for trained, told in found:
                mode = told and (told.get("exact") or told["off"])
                source = mode[what][measured] if mode else trained[what][measured]
                if factor in source:
                    values.append(source[factor])
            cells.append(percent(values) if values else OPEN)
        rows.append([_variant(*variant), str(len(found)), *cells])
    return table(["method", "seeds", *(f"{f}x" for f in tool.PASSKEY_FACTORS)], rows)


def bounded_table(results: Results) -> str:
    """What the bounded cache keeps and answers beside the exact one, at the lengths it was tried at."""
    factors, rows = ("1", "8", "64"), []
    for task in passkeys.STEPS:
        for variant in jobs.VARIANTS["three"]:
            told = [t for _, t in _passkey(results, task, *variant) if t and "bounded" in t]
            cells = []
            for factor in factors if told else ():
                kept, right = ({mode: [t[mode][what][task][factor] for t in told] for mode in ("exact", "bounded")}
                               for what in ("kept", "right"))
                same = "same answers" if right["exact"] == right["bounded"] else f"right {percent(right['bounded'])}"
                cells.append(f"{percent(kept['exact'])}, {percent(kept['bounded'])}, {same}")
            if cells:
                rows.append([{"one": "one key", "three": "three keys"}[task], _variant(*variant), str(len(told)), *cells])
    return table(["task", "method", "seeds", *(f"{f}x" for f in factors)], rows)


def passkey_sweep_table(results: Results, task: str) -> str:
    """Mean share right over passkeys.FACTORS, of seed 0 and, for finalists, of the others."""
    schedules = [name for of, name in passkeys.SCHEDULES if of == task]
    rows = []
    for variant in jobs.VARIANTS[task]:
        for schedule in schedules:
            cells = []
            for rate in jobs.PASSKEY_RATES:
                scores = jobs.passkey_scores(results, passkeys.Settings(task, *variant, rate, schedule))
                cells.append(", ".join(percent([x]) for x in scores) or OPEN)
            rows.append([_variant(*variant), schedule, *cells])
    return table(["method", "schedule", *(f"rate {rate:g}" for rate in jobs.PASSKEY_RATES)], rows)


def language_table(results: Results) -> str:
    """Perplexity by window, mean over seeds, and the cache kept in exact mode by the tool."""
    rows = []
    variants = [(m, 0.0) for m in jobs.LANGUAGE_METHODS] + [(m, jobs.LANGUAGE_PRESSURE) for m in ("fpa", "fox")]
    for method, pressure in variants:
        rate, found = jobs.best_language(results, method), []
        for seed in jobs.SEEDS if rate else ():
            settings = settings_of(language.Settings(method, rate, seed, pressure=pressure))
            if result := results.find("language", settings):
                found.append((result, results.find("tool", {"experiment": "language", **settings})))
        cells = []
        for factor in ("1", "2", "4", "8"):
            values = [trained["perplexities"][factor] for trained, _ in found]
            kept = [told["exact"][factor]["kept"] for _, told in found if told and "exact" in told]
            text = OPEN
            if values:
                text = f"{mean(values):.3f}" + (f" ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else "")
                text += f", kept {percent(kept)}" if kept else ""
            cells.append(text)
        rows.append([_variant(method, pressure), str(len(found)), *cells])
    return table(["method", "seeds", *(f"window {f * language.LENGTH:,}" for f in (1, 2, 4, 8))], rows)


def language_sweep_table(results: Results) -> str:
    rows = []
    for method in jobs.LANGUAGE_METHODS:
        cells = []
        for rate in jobs.LANGUAGE_RATES:
            result = results.find("language", settings_of(language.Settings(method, rate, steps=jobs.SWEEP_STEPS)))
            cells.append(f"{result['perplexities']['1']:.2f}" if result else OPEN)
        rows.append([NAMES[method], *cells])
    return table(["method", *(f"rate {rate:g}" for rate in jobs.LANGUAGE_RATES)], rows)


def passkey_plot(results: Results) -> str:
    panels = []
    for task, title in (("one", "one key"), ("three", "three keys among distractors")):
        panel = plots.Panel(title, "length, times that of training", "right answers")
        for variant in jobs.VARIANTS[task]:
            by_factor: dict[int, list[float]] = {}
            for trained, told in _passkey(results, task, *variant):
                mode = told and (told.get("exact") or told["off"])
                for factor, right in (mode or trained)["right"][task].items():
                    by_factor.setdefault(int(factor), []).append(right)
            points = [(f, mean(v), min(v), max(v)) for f, v in sorted(by_factor.items())]
            if points:
                panel.lines.append(plots.Line(_variant(*variant), points))
        panels.append(panel)
    return plots.charts("Passkey: right answers by length", panels)


def compared(results: Results, measured: Results) -> list[tuple[str, tool.Compared]]:
    """Figures of the tool, in `measured`, beside those of training, each with the run it is of."""
    out = []
    for entry in measured.read("tool"):
        settings = dict(entry["settings"])
        experiment = settings.pop("experiment")
        trained = results.find(experiment, settings)
        if trained is not None:
            out += [(f"{experiment} {settings}", c) for c in tool.compare(experiment, trained, entry["result"])]
    return out


WAYS = {"off": "CPU engine, cache off", "exact": "CPU engine, exact", "bounded": "CPU engine, bounded",
        "xla": "XLA CPU", "onnxruntime": "ONNX Runtime"}


def tool_table(results: Results) -> str:
    """How many figures the tool and training have in common, and how many are the same."""
    found, rows = compared(results, results), []
    for way, name in WAYS.items():
        for what in ("right", "loss"):
            own = [(run, c) for run, c in found if c.way == way and c.where.endswith(what)]
            if own:
                apart = max(abs(c.got - c.want) for _, c in own)
                rows.append([name, "right answers" if what == "right" else "loss", str(len({run for run, _ in own})), str(len(own)),
                             str(sum(c.agree for _, c in own)), f"{apart:.2g}"])
    return table(["by", "figure", "models", "figures", "that agree", "furthest apart"], rows)


def progress_table(results: Results, text: Path) -> str:
    """Runs finished and known to be open, and processor time so far, by experiment."""
    rows = []
    for experiment in ("synthetic", "passkey", "language"):
        known = [job for job in jobs.all_jobs(results, (experiment,), text)]
        done = sum(results.find(job.experiment, job.settings) is not None for job in known)
        hours = sum(entry["seconds"] for entry in results.read(experiment)) / 3600
        rows.append([experiment, str(done), str(len(known) - done), f"{hours:.1f}"])
    return table(["experiment", "runs finished", "open", "hours (shared cores)"], rows)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "synthetic": synthetic_table,
    "synthetic-longer": synthetic_longer_table,
    "synthetic-sweep": synthetic_sweep_table,
    "passkey-one": lambda r: passkey_table(r, "one"),
    "passkey-one-kept": lambda r: passkey_table(r, "one", "kept"),
    "passkey-three": lambda r: passkey_table(r, "three"),
    "passkey-three-kept": lambda r: passkey_table(r, "three", "kept"),
    "passkey-bounded": bounded_table,
    "passkey-unseen": lambda r: passkey_table(r, "three", "right", "unseen"),
    "passkey-number-first": lambda r: passkey_table(r, "three", "right", "number-first"),
    "passkey-one-sweep": lambda r: passkey_sweep_table(r, "one"),
    "passkey-three-sweep": lambda r: passkey_sweep_table(r, "three"),
    "language": language_table,
    "language-sweep": language_sweep_table,
    "tool": tool_table,
    "progress": lambda r: progress_table(r, Path("english")),
}
PLOTS: dict[str, Callable[[Results], str]] = {
    "synthetic.svg": synthetic_plot,
    "sizes.svg": sizes_plot,
    "maps.svg": maps_plot,
    "passkey.svg": passkey_plot,
}


def update(results: Results, page: Path, folder: Path) -> None:
    """Writes the blocks of the page and the plots of the folder anew."""

    def block(match: re.Match) -> str:
        if match[2] not in BLOCKS:
            raise ValueError(f"{page}: no block is called {match[2]!r}")
        return match[1] + BLOCKS[match[2]](results) + match[3]

    page.write_text(BLOCK.sub(block, page.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        (folder / name).write_text(draw(results))
