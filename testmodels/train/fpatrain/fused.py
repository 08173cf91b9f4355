"""The penalised softmax and RMSNorm with their gradients, fused: fused.c where a C compiler is
found, the same in torch operations otherwise.

In torch the softmax makes about twenty passes over [T, T] matrices in memory and has a loop over
rows in Python; in C a matrix stays in cache.
"""

import ctypes
import hashlib
import math
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch

from .attention import causal_mask, range_minimum

SOURCE = Path(__file__).with_name("fused.c")
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled fused.c, None without a compiler. FPATRAIN_FUSED=0 asks for torch."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if os.environ.get("FPATRAIN_FUSED") == "0" or compiler is None:
        return None
    source = SOURCE.read_bytes()
    name = hashlib.sha256(source + " ".join(FLAGS).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fpatrain"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fused-{name}.so"
    if not path.exists():
        fresh = folder / f"fused-{name}.{os.getpid()}.so"
        done = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(fresh), "-lm"], capture_output=True)
        if done.returncode:
            return None
        os.replace(fresh, path)
    return ctypes.CDLL(str(path))


def _call(name: str, n: int, size: int, given: list[torch.Tensor | float | None]) -> None:
    """Calls a function of the library; tensors become pointers, None NULL.

    Tensors must be contiguous float32, and are kept alive by the list until the call returns."""
    told = [ctypes.c_float(t) if isinstance(t, float)
            else ctypes.c_void_p(None if t is None else t.data_ptr()) for t in given]
    getattr(library(), name)(ctypes.c_int64(n), ctypes.c_int64(size), *told)


class _Fused(torch.autograd.Function):
    """logits [n, T, T], field, level [n, T], slope, unit [n], all float32, to
    weights [n, T, T] and living [n]. field None: plain causal softmax."""

    @staticmethod
    def forward(ctx, logits, *given):
        n, steps, _ = logits.shape
        weights, living, low = torch.empty_like(logits), logits.new_zeros(n), logits.new_empty(steps)
        _call("fpa_forward", n, steps, [logits, weights, *given, living, low])
        ctx.save_for_backward(weights, *given)
        return weights, living

    @staticmethod
    def backward(ctx, grad_weights, grad_living):
        weights, *given = ctx.saved_tensors
        n, steps, _ = weights.shape
        grad = torch.empty_like(weights)
        out = [None if t is None else torch.empty_like(t) for t in given[:3]]
        low, carry = weights.new_empty(steps, steps), weights.new_empty(steps)
        _call("fpa_backward", n, steps, [
            weights, grad_weights.contiguous(), grad, *given, grad_living.contiguous(), *out, low, carry])
        return grad, *out, None


def penalised_softmax(
    logits: torch.Tensor,
    field: torch.Tensor | None = None,
    level: torch.Tensor | None = None,
    slope: torch.Tensor | None = None,
    unit: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention weights [..., T, T], softmax over j <= i of logits - penalty, and living [...],
    the sum over j < i of relu(1 - unit * penalty): how much of the cache is alive.

    logits [..., T, T]; field, level [..., T], None for plain softmax; slope, unit broadcast to
    [...]; unit None counts every key as alive."""
    shape, steps = logits.shape[:-2], logits.shape[-1]
    if field is None:
        level = slope = unit = None
    else:
        unit = torch.zeros(()) if unit is None else unit
        slope, unit = (t.to(logits.dtype).expand(shape) for t in (slope, unit))
        field, level = field.expand(*shape, steps), level.expand(*shape, steps)
    if library() is None or logits.dtype != torch.float32:
        return _in_torch(logits, field, level, slope, unit)
    flat = [None if t is None else t.to(torch.float32).reshape(-1, *t.shape[len(shape):]).contiguous()
            for t in (field, level, slope, unit)]
    weights, living = _Fused.apply(logits.reshape(-1, steps, steps).contiguous(), *flat)
    return weights.view(logits.shape), living.view(shape)


def _in_torch(logits, field, level, slope, unit):
    """penalised_softmax by its definition, in the type of the logits."""
    steps = logits.shape[-1]
    mask = causal_mask(steps, logits.device)
    if field is None:
        return torch.softmax(logits.masked_fill(mask, -math.inf), -1), logits.new_zeros(logits.shape[:-2])
    rise = torch.relu(level.unsqueeze(-2) - range_minimum(field)).to(logits.dtype)
    penalty = slope[..., None, None] * rise
    left = torch.relu(1 - unit[..., None, None] * penalty).masked_fill(~mask.mT, 0)
    weights = torch.softmax((logits - penalty).masked_fill(mask, -math.inf), -1)
    return weights, left.sum((-1, -2))


class _RMSNorm(torch.autograd.Function):
    """x [n, d] and weight [d], contiguous float32."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        n, size = x.shape
        out, inverse = torch.empty_like(x), x.new_empty(n)
        _call("rms_forward", n, size, [x, weight, eps, out, inverse])
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx, given):
        x, weight, inverse = ctx.saved_tensors
        grad, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        _call("rms_backward", *x.shape, [x, weight, inverse, given.contiguous(), grad, grad_weight])
        return grad, grad_weight, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last axis; weight broadcasts to x."""
    if library() is None or x.dtype != torch.float32 or weight.dim() != 1:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return _RMSNorm.apply(x.reshape(-1, x.shape[-1]).contiguous(), weight, eps).view(x.shape)
