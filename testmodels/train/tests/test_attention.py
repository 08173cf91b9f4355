"""The operator: its minimum and gradient, its forms against each other, its special cases."""

import math

import pytest
import torch

from fpatrain import attention


def walk(batch, heads, steps, ties):
    """A field; with ties, a walk in whole numbers, which meets its minima again and again."""
    if ties:
        return torch.randint(-1, 2, (batch, heads, steps)).double().cumsum(-1)
    return torch.randn(batch, heads, steps, dtype=torch.float64).cumsum(-1)


def inputs(batch=2, heads=3, steps=17, size=4, ties=False):
    q, k, v = (torch.randn(batch, heads, steps, size, dtype=torch.float64) for _ in range(3))
    field = walk(batch, heads, steps, ties)
    level = field + torch.randn(batch, heads, steps, dtype=torch.float64)
    slope = torch.rand(heads, dtype=torch.float64) + 0.2
    return q, k, v, field, level, slope


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 9, 30])
def test_minimum_by_definition(steps, ties):
    field = walk(2, 3, steps, ties)
    low = attention.range_minimum(field)
    for i in range(steps):
        for j in range(steps):
            want = field[..., j + 1 : i + 1].amin(-1) if j < i else torch.full((2, 3), math.inf)
            assert torch.equal(low[..., i, j], want.to(low.dtype))


@pytest.mark.parametrize("ties", [False, True])
def test_minimum_gradient_goes_to_first_argmin(ties):
    field = walk(2, 3, 25, ties).requires_grad_()
    weight = torch.randn(2, 3, 25, 25, dtype=torch.float64).tril(-1)
    low = attention.range_minimum(field)
    low.backward(weight)
    want = torch.zeros_like(field)
    for i in range(25):
        for j in range(i):
            # argmin of torch does not promise the first one: look for it.
            span = field[..., j + 1 : i + 1]
            first = span.eq(span.amin(-1, keepdim=True)).int().argmax(-1) + j + 1
            want.scatter_add_(-1, first.unsqueeze(-1), weight[..., i, j].unsqueeze(-1))
    assert torch.allclose(field.grad, want, atol=1e-12)


def test_gradcheck_without_ties():
    q, k, v, field, level, slope = inputs(1, 2, 8, 3)

    def run(q, k, v, field, level, slope):
        return attention.attend(q, k, v, attention.penalties(field, level, slope), 0.5)

    tensors = [t.requires_grad_() for t in (q, k, v, field, level, slope)]
    assert torch.autograd.gradcheck(run, tensors, eps=1e-7, atol=1e-6)


def test_gradcheck_with_ties():
    """On ties the minimum has a kink, so its own difference quotient says nothing; but where
    equal values come from one variable the sum over them is smooth."""
    base = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 1, 2, 1, 3, 0, 2, 1, 0])
    level = torch.randn(1, 2, 9, dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)

    def run(base, level, slope):
        return attention.penalties(base[..., index], level, slope).sin()

    assert torch.autograd.gradcheck(run, (base, level, slope), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_three_forms_agree(ties):
    q, k, v, field, level, slope = inputs(ties=ties)
    want = attention.attend_loops(q, k, v, field, level, slope, 0.5)
    rows = attention.attend(q, k, v, attention.penalties(field, level, slope), 0.5)
    assert torch.allclose(rows, want, atol=1e-12)
    for chunk in (1, 5, 17):
        cache = attention.Cache(2, 3, 4, torch.ones(3), None)
        cache.key, cache.value = cache.key.double(), cache.value.double()
        parts = [
            cache.attend(*(t[..., n : n + chunk, :] for t in (q, k, v)),
                         field[..., n : n + chunk], level[..., n : n + chunk], slope, 0.5)
            for n in range(0, 17, chunk)]
        assert torch.allclose(torch.cat(parts, -2), want, atol=1e-12)


def test_fox_is_a_special_case():
    """A falling walk with level = field and slope 1 is the sum of log forget gates."""
    q, k, v, _, _, _ = inputs(steps=20)
    gates = torch.nn.functional.logsigmoid(torch.randn(2, 3, 20, dtype=torch.float64))
    field = gates.cumsum(-1)
    ours = attention.attend(q, k, v, attention.penalties(field, field, torch.ones(3).double()), 0.5)
    logits = 0.5 * q @ k.mT + field.unsqueeze(-1) - field.unsqueeze(-2)
    logits = logits.masked_fill(attention.causal_mask(20), -math.inf)
    assert torch.allclose(ours, torch.softmax(logits, -1) @ v, atol=1e-12)


def test_slope_zero_is_softmax():
    q, k, v, field, level, slope = inputs()
    ours = attention.attend(q, k, v, attention.penalties(field, level, 0 * slope), 0.5)
    assert torch.equal(ours, attention.attend(q, k, v, None, 0.5))


def test_removal_keeps_its_promise():
    """The weight removed stays below eps for every query, and keys do go."""
    torch.manual_seed(3)
    steps, eps = 200, 1e-3
    q, k, v, _, _, slope = inputs(1, 3, steps, 4)
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))  # |0.5 q.k| <= 0.5
    field = -torch.rand(1, 3, steps, dtype=torch.float64).cumsum(-1)
    level = field + 3 * torch.randn(1, 3, steps, dtype=torch.float64)
    full = attention.attend(q, k, v, attention.penalties(field, level, slope), 0.5)
    cache = attention.Cache(1, 3, 4, torch.full((3,), 0.5), eps)
    cache.key, cache.value = cache.key.double(), cache.value.double()
    parts = [
        cache.attend(*(t[..., n : n + 1, :] for t in (q, k, v)),
                     field[..., n : n + 1], level[..., n : n + 1], slope, 0.5)
        for n in range(steps)]
    moved = (torch.cat(parts, -2) - full).abs().amax((0, 2, 3))
    assert (moved <= 2 * eps * v.abs().max()).all() and moved.max() > 0
    assert (cache.spent <= eps).all()
    assert (cache.live() < steps / 2).all()
    assert torch.equal(cache.live() + cache.removed, torch.full((1, 3), steps))
