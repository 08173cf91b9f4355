"""Speed of a Llama decoder in PyTorch: the shape that testmodels/synthetic writes,
with random weights, float32 or bfloat16, F.scaled_dot_product_attention.

    python torch_llama.py --prefill 512 --decode 64 --depth 0 --dtype f32

Prints one JSON object with tokens a second. The cache is allocated once and written
in place, and a decode computes the logits of every token, a prefill those of the last.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

HIDDEN, BLOCKS, HEADS, FFN, VOCAB = 768, 12, 12, 2048, 32000
HEAD = HIDDEN // HEADS


class Decoder:
    def __init__(self, dtype: torch.dtype, capacity: int):
        def matrix(rows: int, cols: int) -> torch.Tensor:
            return (torch.randn(rows, cols) / cols**0.5).to(dtype)

        self.embed = matrix(VOCAB, HIDDEN)
        self.layers = [
            {
                "qkv": matrix(3 * HIDDEN, HIDDEN),
                "o": matrix(HIDDEN, HIDDEN),
                "gate_up": matrix(2 * FFN, HIDDEN),
                "down": matrix(HIDDEN, FFN),
                "k": torch.zeros(1, HEADS, capacity, HEAD, dtype=dtype),
                "v": torch.zeros(1, HEADS, capacity, HEAD, dtype=dtype),
            }
            for _ in range(BLOCKS)
        ]
        self.weight = torch.ones(HIDDEN, dtype=dtype)
        angles = torch.outer(torch.arange(capacity), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.length = 0

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[2]
        cos, sin = self.cos[self.length : self.length + n], self.sin[self.length : self.length + n]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def feed(self, ids: torch.Tensor) -> torch.Tensor:
        """Feeds ids [n], returns the logits of the last [V]."""
        n = len(ids)
        x = self.embed[ids]
        end = self.length + n
        for layer in self.layers:
            h = F.rms_norm(x, (HIDDEN,), self.weight)
            q, k, v = F.linear(h, layer["qkv"]).view(1, n, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
            layer["k"][:, :, self.length : end] = self.rotate(k)
            layer["v"][:, :, self.length : end] = v
            keys, values = layer["k"][:, :, :end], layer["v"][:, :, :end]
            mask = None
            if n > 1 and self.length > 0:
                mask = torch.ones(n, end, dtype=torch.bool).tril(self.length)
            y = F.scaled_dot_product_attention(
                self.rotate(q), keys, values, attn_mask=mask, is_causal=n > 1 and mask is None
            )
            x = x + F.linear(y.transpose(1, 2).reshape(n, HIDDEN), layer["o"])
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.weight), layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        self.length = end
        return F.linear(F.rms_norm(x[-1:], (HIDDEN,), self.weight), self.embed)[0]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prefill")
    parser.add_argument("--decode", type=int, default=0, help="tokens of a decode")
    parser.add_argument("--depth", type=int, default=0, help="tokens fed before")
    parser.add_argument("--repeat", type=int, default=2, help="measurements, of which the mean is printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    tokens = max(args.prefill, args.decode)
    model = Decoder({"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype], args.depth + tokens + 8)

    def draw(n: int) -> torch.Tensor:
        return torch.randint(VOCAB, (n,))

    # Depth is reached in chunks of 512, as by the other engines.
    for at in range(0, args.depth, 512):
        model.feed(draw(min(512, args.depth - at)))
    base = model.length
    result: dict[str, float] = {}

    def measure(name: str, n: int, run) -> None:
        seconds = []
        for _ in range(1 + args.repeat):  # the first warms up
            model.length = base
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        result[name] = n * args.repeat / sum(seconds[1:])

    if args.prefill:
        measure("prefill", args.prefill, lambda: model.feed(draw(args.prefill)))
    if args.decode:

        def decode() -> None:
            for _ in range(args.decode):
                model.feed(draw(1))

        measure("decode", args.decode, decode)
    print(json.dumps(result))


main()
