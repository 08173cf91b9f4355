#!/usr/bin/env python3
"""Measures fparun beside llama.cpp, PyTorch and ONNX Runtime on this machine.

    python3 testmodels/bench/bench.py                  everything, two hours with the installation
    python3 testmodels/bench/bench.py --rounds 1       a first look
    python3 testmodels/bench/bench.py --only SmolLM2   rows whose name a regular expression finds

Installs the other engines below --folder (llama.cpp is built from source; it needs
cmake and a C++ compiler), writes the models, then measures in rounds: in every round
each row runs each engine once, one process after the other, so that whatever else the
machine does meets all of them. Prints medians and ratios as Markdown, and writes
results.json, bars.svg and depth.svg into --folder; rows of an earlier run that are not
measured again stay. All engines get the same number of threads; the machine should do
nothing else.
"""

import argparse
import csv
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import install
import plot

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROMPT = "The quick brown fox jumps over the lazy dog, and then it sleeps until the evening."


@dataclass
class Row:
    """What is measured: its name, and for each engine a function that measures it once."""

    name: str
    unit: str
    engines: dict[str, Callable[[], float]]
    more_is_better: bool = True
    bytes_a_token: int = 0  # weights read, where that limits the speed
    figures: dict[str, list[float]] = field(default_factory=dict)

    def median(self, engine: str) -> float:
        return statistics.median(self.figures[engine])

    def best(self, prefix: str) -> float | None:
        """The best median of an engine's settings, such as those of llama.cpp."""
        found = [self.median(e) for e in self.figures if e.startswith(prefix)]
        return (max if self.more_is_better else min)(found) if found else None


class Engines:
    """The programs, and how each is asked for a figure."""

    def __init__(self, args: argparse.Namespace):
        self.folder = args.folder
        self.threads = args.threads
        self.llama = args.llama_bin or install.llama_cpp(args.folder, args.cmake_args.split())
        self.python = args.python or install.python(args.folder)
        for name in ("fparun", "fpaconv"):
            install.run(["go", "build", "-o", self.folder / name, f"./cmd/{name}"], cwd=ROOT)

    def output(self, command: list) -> str:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-300:]}")
        return done.stdout

    def fparun(self, model: Path, prefill: int = 0, decode: int = 0, depth: int = 0, *options: str) -> float:
        out = self.output([self.folder / "fparun", "bench", "-m", model, "-p", prefill, "-n", decode, "-d", depth,
                           "-r", 2, "-t", self.threads, "--backend", "cpu", "--json", *options])
        return json.loads(out)[0]["mean"]

    def llama_bench(self, model: Path, prefill: int = 0, decode: int = 0, depth: int = 0, *options: str) -> float:
        out = self.output([self.llama / "llama-bench", "-m", model, "-p", prefill, "-n", decode, "-d", depth,
                           "-r", 2, "-t", self.threads, "-o", "csv", *options])
        return float(next(csv.DictReader(out.splitlines()))["avg_ts"])

    def script(self, name: str, what: str, *options) -> float:
        return json.loads(self.output([self.python, HERE / name, "--threads", self.threads, *options]))[what]

    def torch(self, model: Path, what: str, tokens: int, depth: int = 0, dtype: str = "float32") -> float:
        return self.script("torch_speed.py", what, model, f"--{what}", tokens, "--depth", depth, "--dtype", dtype)

    def onnxruntime(self, model: Path, what: str, tokens: int) -> float:
        return self.script("ort_speed.py", what, model, f"--{what}", tokens)

    def generate(self, program: str, model: Path) -> list:
        """The command that continues PROMPT by one token without sampling."""
        if program == "fparun":
            return [self.folder / "fparun", "-m", model, "-p", PROMPT, "-n", 1, "--temp", 0, "-t", self.threads, "--backend", "cpu"]
        return [self.llama / "llama-completion", "-m", model, "-p", PROMPT, "-n", 1, "--temp", 0, "-t", self.threads,
                "-no-cnv", "--no-display-prompt", "--no-warmup", "-c", 2048]

    def first_token(self, program: str, model: Path) -> float:
        """Milliseconds from start to the first byte of the answer, the least of three."""

        def once() -> float:
            start = time.perf_counter()
            command = [str(c) for c in self.generate(program, model)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as p:
                if not p.stdout.read(1):
                    raise RuntimeError(f"{program} wrote nothing")
                elapsed = time.perf_counter() - start
                p.stdout.read()
            return 1000 * elapsed

        return min(once() for _ in range(3))

    def peak_memory(self, program: str, model: Path) -> float:
        """Largest resident size in MB, mapped weights included."""
        command = [str(c) for c in self.generate(program, model)]
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode != 0:
            raise RuntimeError(f"{program} ended with {p.returncode}")
        return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def make_models(e: Engines, smollm2: Path) -> dict[str, Path]:
    """The 110M model in four types and as ONNX, SmolLM2 in two, and the FPA model whose
    live keys level off. Files that exist are kept."""
    f = e.folder
    m = {name: f / f"llama-110m-{name}.gguf" for name in ("f16", "q8_0", "q4_0")}
    m |= {"onnx": f / "llama-110m.onnx", "smollm2": smollm2, "smollm2-f16": f / "smollm2-f16.gguf", "fpa": f / "fpa-110m.gguf"}
    convert = f / "fpaconv"

    def make(name: str, command: list) -> None:
        if not m[name].exists():
            print("writing", m[name].name, file=sys.stderr)
            install.run(command, cwd=ROOT)

    make("f16", ["go", "run", "./testmodels/synthetic", "--kind", "llama", "--gguf", m["f16"]])
    for t in ("q8_0", "q4_0"):
        make(t, [convert, "quantize", m["f16"], "--type", t, "-o", m[t]])
    make("onnx", [convert, m["f16"], "--type", "f32", "--onnx-op", "attention", "--onnx-last-logits", "-o", m["onnx"]])
    make("smollm2-f16", [convert, "quantize", smollm2, "--type", "f16", "-o", m["smollm2-f16"]])
    if not m["fpa"].exists():
        checkpoint = f / "fpa-110m"
        install.run(["go", "run", "./testmodels/synthetic", "--kind", "level-off", "-o", checkpoint], cwd=ROOT)
        make("fpa", [convert, checkpoint, "-o", m["fpa"]])
    return m


DEPTHS = (1024, 4096, 8192)


def rows(e: Engines, m: dict[str, Path]) -> list[Row]:
    off = ("--cache", "off")
    found = []
    for t in ("f16", "q8_0", "q4_0"):
        model = m[t]
        engines = {"fparun": lambda model=model: e.fparun(model, 0, 64, 0, *off),
                   "llama.cpp": lambda model=model: e.llama_bench(model, 0, 64),
                   "llama.cpp, no mmap": lambda model=model: e.llama_bench(model, 0, 64, 0, "-lm", "none")}
        if t == "f16":
            engines |= {"PyTorch f32": lambda: e.torch(m["f16"], "decode", 32), "PyTorch bf16": lambda: e.torch(m["f16"], "decode", 32, 0, "bfloat16"),
                        "ONNX Runtime f32": lambda: e.onnxruntime(m["onnx"], "decode", 32)}
        found.append(Row(f"decode 110M {t.upper()}", "tokens/s", engines, bytes_a_token=model.stat().st_size))
    for depth in DEPTHS:
        found.append(Row(f"decode 110M F16 at depth {depth}", "tokens/s", {
            "fparun": lambda d=depth: e.fparun(m["f16"], 0, 32, d, *off),
            "fparun, FPA exact": lambda d=depth: e.fparun(m["fpa"], 0, 32, d),
            "llama.cpp, no flash attention": lambda d=depth: e.llama_bench(m["f16"], 0, 32, d, "-fa", "0"),
            "llama.cpp, flash attention": lambda d=depth: e.llama_bench(m["f16"], 0, 32, d, "-fa", "1"),
            "PyTorch f32": lambda d=depth: e.torch(m["f16"], "decode", 16, d),
        }))
    for n in (512, 4096):
        found.append(Row(f"prefill {n} 110M F16", "tokens/s", {
            "fparun": lambda n=n: e.fparun(m["f16"], n, 0, 0, *off),
            "llama.cpp": lambda n=n: e.llama_bench(m["f16"], n),
            "PyTorch f32": lambda n=n: e.torch(m["f16"], "prefill", n),
            "ONNX Runtime f32": lambda n=n: e.onnxruntime(m["onnx"], "prefill", n),
        }))
    for what, n in (("decode", (0, 64)), ("prefill 512", (512, 0))):
        found.append(Row(f"{what} SmolLM2 Q4_1", "tokens/s", {
            "fparun": lambda n=n: e.fparun(m["smollm2"], *n, 0, *off),
            "fparun, int8 activations": lambda n=n: e.fparun(m["smollm2"], *n, 0, *off, "--activations", "int8"),
            "llama.cpp": lambda n=n: e.llama_bench(m["smollm2"], *n),
        }))
    found.append(Row("decode 110M F16, 8 sequences", "tokens/s", {
        "fparun": lambda: e.fparun(m["f16"], 0, 64, 0, *off, "--parallel", "8"),
        "fparun, 1 sequence": lambda: e.fparun(m["f16"], 0, 64, 0, *off),
    }))
    for name, model in (("SmolLM2 Q4_1", "smollm2"), ("SmolLM2 F16", "smollm2-f16")):
        found.append(Row(f"start to first token, {name}", "ms", {
            p: lambda p=p, model=model: e.first_token(p, m[model]) for p in ("fparun", "llama.cpp")}, more_is_better=False))
        found.append(Row(f"peak memory, {name}", "MB", {
            p: lambda p=p, model=model: e.peak_memory(p, m[model]) for p in ("fparun", "llama.cpp")}, more_is_better=False))
    return found


def memory_bandwidth() -> float:
    """GB/s that all threads together read in large pages, by the benchmark in
    ops/kernels; 0 where it does not run."""
    out = install.run(["go", "test", "-run", "^$", "-bench", "ReadMemory", "-benchtime", "20x", "./ops/kernels"], cwd=ROOT)
    return max((float(x) for x in re.findall(r"([\d.]+) MB/s", out)), default=0) / 1000


def report(measured: list[Row], bandwidth: float) -> str:
    lines = ["| | engine | median | least to most | rounds | fparun against it |", "|---|---|---|---|---|---|"]
    for row in measured:
        ours = row.best("fparun") if "fparun" not in row.figures else row.median("fparun")
        name = f"{row.name}, {row.unit}"
        for engine, values in row.figures.items():
            median = row.median(engine)
            ratio = ""
            if engine != "fparun" and ours:
                ratio = f"{ours / median if row.more_is_better else median / ours:.2f}"
            if engine == "fparun" and row.bytes_a_token and bandwidth:
                share = median * row.bytes_a_token / 1e9 / bandwidth
                ratio = f"({share:.0%} of memory bandwidth)"
            spread = f"{min(values):,.1f} to {max(values):,.1f}"
            lines.append(f"| {name} | {engine} | {median:,.1f} | {spread} | {len(values)} | {ratio} |")
            name = ""
    lines += ["", f"Memory bandwidth {bandwidth:.1f} GB/s; {platform.machine()}, {os.cpu_count()} processors."]
    return "\n".join(lines)


def draw(measured: list[Row], folder: Path) -> None:
    engines = ("fparun", "llama.cpp", "PyTorch", "ONNX Runtime")
    chart = []
    for row in measured:
        if row.more_is_better and "depth" not in row.name and "sequences" not in row.name:
            figures = {e: row.median("fparun") if e == "fparun" else row.best(e) for e in engines}
            chart.append((row.name, {e: v for e, v in figures.items() if v}))
    if chart:
        plot.bars(folder / "bars.svg", "Tokens a second, each engine at its best setting", chart)
    lines: dict[str, dict[int, float]] = {}
    for row in measured:
        depth = re.search(r"at depth (\d+)", row.name)
        if depth or row.name == "decode 110M F16":
            at = int(depth[1]) if depth else 0
            for engine in ("fparun", "fparun, FPA exact", "llama.cpp", "PyTorch"):
                value = row.figures.get(engine) and row.median(engine) or engine in ("llama.cpp", "PyTorch") and row.best(engine)
                if value:
                    lines.setdefault(engine, {})[at] = value
    if any(len(line) > 1 for line in lines.values()):
        plot.curve(folder / "depth.svg", "Decode, 110M F16: tokens a second at depth", lines, "tokens in the cache")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "fpa-bench", help="for engines, models and results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="measure rows whose name this regular expression finds")
    parser.add_argument("--llama-bin", type=Path, help="folder of llama-bench and llama-completion, to use a build that exists")
    parser.add_argument("--cmake-args", default="", help="further arguments to the build of llama.cpp")
    parser.add_argument("--python", type=Path, help="interpreter with torch, numpy and onnxruntime, to use one that exists")
    args = parser.parse_args()
    args.folder = args.folder.expanduser().resolve()
    args.folder.mkdir(parents=True, exist_ok=True)

    engines = Engines(args)
    models = make_models(engines, install.smollm2(args.folder))
    bandwidth = memory_bandwidth()
    table = rows(engines, models)
    now = [r for r in table if re.search(args.only, r.name)]
    if not now:
        raise SystemExit(f"no row is found by --only {args.only}; the rows are: " + ", ".join(r.name for r in table))
    for turn in range(args.rounds):
        for row in now:
            for engine, measure in row.engines.items():
                try:
                    value = measure()
                except (RuntimeError, KeyError, StopIteration, ValueError) as error:
                    print(f"no figure: {row.name}, {engine}: {error}", file=sys.stderr)
                    continue
                row.figures.setdefault(engine, []).append(value)
                print(f"round {turn + 1}: {row.name}, {engine}: {value:,.1f} {row.unit}", file=sys.stderr)
    results = args.folder / "results.json"
    before = json.loads(results.read_text())["figures"] if results.exists() else {}
    for row in table:
        row.figures = row.figures or before.get(row.name, {})
    measured = [r for r in table if r.figures]
    print(report(measured, bandwidth))
    figures = {r.name: r.figures for r in measured}
    results.write_text(json.dumps({"bandwidth_GBps": bandwidth, "threads": args.threads, "figures": figures}, indent=1) + "\n")
    draw(measured, args.folder)


if __name__ == "__main__":
    main()
