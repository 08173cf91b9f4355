"""The fused operation against the same in torch operations, float64."""

import math

import pytest
import torch

from fpatrain import attention, fused

needs_compiler = pytest.mark.skipif(fused.library() is None, reason="no C compiler")


def inputs(steps, kind):
    shape = (2, 3)
    field = torch.randn(*shape, steps).cumsum(-1)
    if kind == "ties":
        field = field.round()
    level = field + (0 if kind == "tied" else torch.randn(*shape, steps))
    if kind == "deep":
        field, level = 40 * field, 40 * level
    return torch.randn(*shape, steps, steps) * 3, field, level, torch.rand(3) + 0.2, torch.rand(3) * 0.2 + 0.05


def results(tensors, dtype, mixer):
    leaves = [t.to(dtype).requires_grad_() for t in tensors[:4]]
    weights, living = fused.penalised_softmax(leaves[0], *leaves[1:], tensors[4].to(dtype))
    # Through mT, so that the gradient that comes back is not contiguous.
    loss = (weights.mT * mixer.to(dtype)).sum() + (living * torch.arange(1, 4).to(dtype)).sum() / 7
    return weights, living, *torch.autograd.grad(loss, leaves)


@needs_compiler
@pytest.mark.parametrize("kind", ["tied", "free", "ties", "deep"])
@pytest.mark.parametrize("steps", [1, 2, 3, 17, 64, 65])
def test_against_float64(steps, kind):
    tensors = inputs(steps, kind)
    mixer = torch.randn(2, 3, steps, steps)
    got = results(tensors, torch.float32, mixer)
    want = results(tensors, torch.float64, mixer)
    for g, w in zip(got, want):
        assert torch.allclose(g.double(), w, rtol=2e-4, atol=2e-5 * (1 + w.abs().max().item()))


@needs_compiler
@pytest.mark.parametrize("steps", [1, 2, 33])
def test_plain_softmax(steps):
    logits, mixer = torch.randn(4, steps, steps) * 5, torch.randn(4, steps, steps)
    leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    weights, living = fused.penalised_softmax(leaf)
    masked = exact.masked_fill(attention.causal_mask(steps), -math.inf).softmax(-1)
    assert torch.allclose(weights.double(), masked, atol=1e-6) and not living.any()
    (weights * mixer).sum().backward()
    (masked * mixer).sum().backward()
    assert torch.allclose(leaf.grad.double(), exact.grad, atol=1e-5)


@needs_compiler
def test_slope_zero_counts_all_alive():
    weights, living = fused.penalised_softmax(
        torch.zeros(1, 9, 9), torch.randn(1, 9), torch.randn(1, 9), torch.zeros(()), torch.ones(()))
    assert torch.allclose(weights[0], torch.ones(9, 9).tril() / torch.arange(1, 10).view(-1, 1))
    assert living.item() == 9 * 8 / 2


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 1), (5, 24), (2, 3, 33), (2, 7, 4, 16)])
def test_rms_norm(shape):
    x, weight, given = torch.randn(shape) * 3, torch.randn(shape[-1]), torch.randn(shape)
    if len(shape) == 4:  # not contiguous
        x, given = x.transpose(1, 2), given.transpose(1, 2)
    got, want = [], []
    for dtype, out in ((torch.float32, got), (torch.float64, want)):
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight)]
        y = fused.rms_norm(*leaves, 1e-6)
        out += [y, *torch.autograd.grad((y * given.to(dtype)).sum(), leaves)]
    for g, w in zip(got, want):
        assert torch.allclose(g.double(), w, rtol=1e-5, atol=1e-5)
