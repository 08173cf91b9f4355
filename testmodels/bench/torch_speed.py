"""Speed of a synthetic model of the kind llama in PyTorch on the processor.

    python torch_speed.py synthetic-llama.gguf --prefill 512 --decode 64 --depth 4096

Prints one JSON object with tokens a second.
"""

import argparse
import json
import time

import numpy as np
import torch

import torch_decoder
import weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prefill")
    parser.add_argument("--decode", type=int, default=0, help="tokens of a decode")
    parser.add_argument("--depth", type=int, default=0, help="tokens fed before")
    parser.add_argument("--repeat", type=int, default=2, help="measurements, of which the mean is printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    model = weights.load(args.model)
    capacity = args.depth + max(args.prefill, args.decode)
    decoder = torch_decoder.Decoder(model, capacity, dtype=getattr(torch, args.dtype))
    random = np.random.default_rng(1)

    def feed(count: int) -> None:
        decoder.feed(random.integers(model.vocab, size=(1, count)))

    for at in range(0, args.depth, 512):  # in chunks, as by the other engines
        feed(min(512, args.depth - at))
    result: dict[str, float] = {}

    def measure(name: str, count: int, run) -> None:
        seconds = []
        for _ in range(1 + args.repeat):  # the first warms up
            decoder.position = args.depth
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        result[name] = count * args.repeat / sum(seconds[1:])

    if args.prefill:
        measure("prefill", args.prefill, lambda: feed(args.prefill))
    if args.decode:

        def decode() -> None:
            for _ in range(args.decode):
                feed(1)

        measure("decode", args.decode, decode)
    print(json.dumps(result))


main()
