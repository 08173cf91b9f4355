"""Measures this module's engines beside JAX or PyTorch, in alternation.

    python compare.py --engine ./bench --model synthetic-llama.gguf --backend xla:cpu --rival jax

One process of ./bench (go build ./testmodels/bench) runs the model; the rival runs it
in this process. The two take turns, --rounds times; the table has the median of each
and the ratio, and, so that both are known to run the same model, how far the logits of
a prompt are apart. Everything is compiled and warm before it is measured, but for the
first token, whose time counts from the start of the process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import weights


def tokens(count, sequence, vocab):
    """The same as in main.go."""
    return (7919 * np.arange(1, count + 1) + 104729 * sequence) % vocab


class Ours:
    def __init__(self, engine, model, backend, cache, packed=False):
        self.start = time.perf_counter()
        self.process = subprocess.Popen(
            [engine, "-m", model, "--backend", backend, "--cache", cache] + ["--packed"] * packed,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.read()
        self.opened = time.perf_counter() - self.start
        first = self.ask(do="prefill", tokens=16)
        self.first_token = time.perf_counter() - self.start
        self.compiling = first["compile_seconds"]
        self.again = self.ask(do="prefill", tokens=16)["seconds"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        self.answer = self.read()
        return self.answer

    def measure(self, test):
        return self.ask(**test)["seconds"]

    def memory(self):
        """The largest resident size in bytes, and what a GPU has given, or None."""
        resident = 0
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmHWM:"):
                resident = int(line.split()[1]) << 10
        try:
            out = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                                 capture_output=True, text=True, check=True).stdout
            card = [int(u) << 20 for p, u in (line.split(",") for line in out.splitlines()) if int(p) == self.process.pid]
        except (OSError, subprocess.CalledProcessError, ValueError):
            card = []
        return resident, card[0] if card else None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Rival:
    """A decoder class of jax_decoder or torch_decoder."""

    def __init__(self, name, model, device):
        self.model, self.device, self.decoders = weights.load(model), device, {}
        if name == "jax":
            import jax_decoder as module
        else:
            import torch_decoder as module
        self.module, self.name = module, module.Decoder.name

    def decoder(self, capacity, sequences):
        key = capacity, sequences
        if key not in self.decoders:
            kind = self.module.Decoder
            if self.module.__name__ == "jax_decoder":
                if sequences > 1:
                    return None
                self.decoders[key] = kind(self.model, capacity)
            else:
                self.decoders[key] = kind(self.model, capacity, sequences, self.device)
        self.decoders[key].reset()
        return self.decoders[key]

    def measure(self, test):
        """Seconds, or None where the rival does not do it. Leaves the logits."""
        n, sequences, depth = test["tokens"], test.get("sequences", 1), test.get("depth", 0)
        capacity = n
        if test["do"] == "decode":
            capacity = 256
            while capacity < depth + n:
                capacity *= 2
        d = self.decoder(capacity, sequences)
        if d is None:
            return None
        prompt = depth if test["do"] == "decode" else n
        ids = np.stack([tokens(max(prompt, 1), i, self.model.vocab) for i in range(sequences)])
        if test["do"] == "prefill":
            start = time.perf_counter()
            self.logits = d.feed(ids)
            return time.perf_counter() - start
        if depth > 0:
            ids = d.feed(ids).argmax(-1)[:, None]
        start = time.perf_counter()
        for _ in range(n):
            ids = d.feed(ids).argmax(-1)[:, None]
        return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--engine", required=True, help="the program of this folder")
    p.add_argument("--model", required=True, help="synthetic model as a GGUF file")
    p.add_argument("--backend", default="xla:cpu", help="cpu, xla:cpu, xla:cuda, go")
    p.add_argument("--beside", help="another backend of ours, measured in the same rounds")
    p.add_argument("--packed", action="store_true", help="measure quantised weights that stay packed, too")
    p.add_argument("--cache", default="exact", help="off, exact")
    p.add_argument("--rival", choices=["jax", "torch", "none"], default="none")
    p.add_argument("--prefill", default="512", help="lengths, such as 512,4096")
    p.add_argument("--decode", type=int, default=64, help="tokens of a decode")
    p.add_argument("--sequences", default="1", help="numbers of sequences that decode, such as 1,32")
    p.add_argument("--depth", type=int, default=0, help="tokens before a decode")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--json", action="store_true", help="print the figures as a JSON object")
    a = p.parse_args()

    numbers = lambda s: [int(x) for x in s.split(",") if int(x) > 0]
    tests = [{"do": "prefill", "tokens": n} for n in numbers(a.prefill)]
    tests += [{"do": "decode", "tokens": a.decode, "sequences": n, "depth": a.depth} for n in numbers(a.sequences)]
    ours = {b: Ours(a.engine, a.model, b, a.cache) for b in [a.backend, a.beside] if b}
    if a.packed:
        ours["packed"] = Ours(a.engine, a.model, a.backend, a.cache, packed=True)
    runners = dict(ours)
    if a.rival != "none":
        runners[a.rival] = Rival(a.rival, a.model, "cuda" if a.backend.endswith("cuda") else "cpu")
    rows = []
    for test in tests:
        row = {"test": test["do"], "tokens": test["tokens"], "sequences": test.get("sequences", 1), "rate": {}}
        seconds = {}
        for name, r in runners.items():  # compiles and warms up
            if r.measure(test) is not None:
                seconds[name] = []
        for _ in range(a.rounds):
            for name in seconds:
                seconds[name].append(runners[name].measure(test))
        for name, s in seconds.items():
            row["rate"][name] = test["tokens"] * row["sequences"] / statistics.median(s)
        row["kept"], row["cache"] = ours[a.backend].answer["kept"], ours[a.backend].answer["cache"]
        rows.append(row)
    result = {"model": os.path.basename(a.model), "rows": rows, "engines": {}}
    for name, r in ours.items():
        resident, card = r.memory()
        last = r.answer
        result["engines"][name] = {
            "about": r.about["engine"], "opened": r.opened, "first_token": r.first_token, "of_it_compiling": r.compiling,
            "first_token_compiled": r.again, "programs": last["compilations"], "compile_seconds": last["compile_seconds"],
            "weights": r.about.get("weights"), "memory": resident, "memory_card": card}
    if a.rival != "none":
        rival = runners[a.rival]
        n = min(numbers(a.prefill) or [64])
        rival.measure({"do": "prefill", "tokens": n})
        result["rival"] = rival.name
        result["logits_apart"] = {}
        for name, r in ours.items():
            logits = np.array(r.ask(do="prefill", tokens=n, logits=True)["logits"])
            result["logits_apart"][name] = float(np.abs(logits - rival.logits[0]).max())
    for r in ours.values():
        r.close()
    if a.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    print_table(result, a.backend)


def print_table(result, backend):
    others = [n for n in result["rows"][0]["rate"] if n != backend]
    print(f"{result['model']}; tokens/s, medians")
    for name, e in result["engines"].items():
        print(f"{name}: {e['about']}")
    if "rival" in result:
        apart = ", ".join(f"{n} {d:.1e}" for n, d in result["logits_apart"].items())
        print(f"rival: {result['rival']}; logits of a prompt apart by: {apart}")
    print(f"{'test':<22}{backend:>10}" + "".join(f"{n:>10}{'ratio':>7}" for n in others) + f"{'kept':>8}{'cache MB':>10}")
    for r in result["rows"]:
        name = f"{r['test']} {r['tokens']}" + (f" x {r['sequences']}" if r["sequences"] > 1 else "")
        line = f"{name:<22}{r['rate'][backend]:>10.1f}"
        for n in others:
            if n in r["rate"]:
                line += f"{r['rate'][n]:>10.1f}{r['rate'][backend] / r['rate'][n]:>7.2f}"
            else:
                line += f"{'-':>10}{'-':>7}"
        print(line + f"{100 * r['kept']:>7.1f}%{r['cache'] / 1e6:>10.1f}")
    for name, e in result["engines"].items():
        card = f", {e['memory_card'] / 1e6:.0f} MB on the card" if e["memory_card"] else ""
        print(f"{name}: opened in {e['opened']:.2f} s, first token after {e['first_token']:.2f} s ({e['of_it_compiling']:.2f} s of it "
              f"compiling; {e['first_token_compiled']:.3f} s once compiled); {e['programs']} programs compiled in {e['compile_seconds']:.1f} s; "
              f"{e['memory'] / 1e6:.0f} MB resident{card}")


if __name__ == "__main__":
    main()
