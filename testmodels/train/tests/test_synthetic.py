"""The tasks against plain simulations, and the layer."""

import pytest
import torch

from fpatrain import synthetic


def simulate(task, features):
    """Living sets, by the task's own rules: a stack, counters, heights. features [T, 5]."""
    alive, keys, sets = {0}, {}, []
    for t, (bos, key, event, told_key, told_event) in enumerate(features.tolist()):
        number = round(synthetic.LARGEST * (told_key + told_event))
        assert bos + key + event == 1
        if key:
            alive.add(t)
            keys[t] = number
        elif event and task == "scopes":
            alive.remove(max(alive))
        elif event and task == "lifetime":
            for j in list(keys):
                keys[j] -= 1
                if keys[j] == 0:
                    alive.discard(j)
        elif event:
            alive = {j for j in alive if j == 0 or keys[j] <= number}
        sets.append(set(alive))
    return sets


@pytest.mark.parametrize("task", synthetic.TASKS)
@pytest.mark.parametrize("n", [1, 32, 100])
def test_targets_follow_the_rules(task, n):
    drawn = synthetic.sequences(task, 20, n, 32, torch.Generator().manual_seed(5))
    for features, alive in zip(drawn.features, drawn.alive):
        want = simulate(task, features)
        assert [set(row.nonzero().flatten().tolist()) for row in alive] == want
    keys = drawn.features[..., 1].bool()
    assert (drawn.identity[keys] < 32).all() and (drawn.identity[~keys] == 32).all()
    if n == 32:
        for identity in drawn.identity:
            known = identity[identity < 32]
            assert len(known.unique()) == len(known)


@pytest.mark.parametrize("method", synthetic.METHODS)
def test_rows_are_causal_distributions(method):
    layer = synthetic.Layer(synthetic.METHODS[method], 2, 16)
    drawn = synthetic.sequences("lifetime", 6, 16, 16, torch.Generator().manual_seed(1))
    features, identity = drawn.features.unflatten(0, (2, 3)), drawn.identity.unflatten(0, (2, 3))
    rows = layer(features, identity)
    assert rows.shape == (2, 3, 17, 17)
    assert torch.allclose(rows.sum(-1), torch.ones(2, 3, 17), atol=1e-5)
    assert not rows.triu(1).any()
    # What comes later changes nothing; what a run holds is its own.
    changed = features.clone()
    changed[:, :, 9:] = changed[:, :, 9:].flip(2)
    assert torch.allclose(layer(changed, identity)[:, :, :9, :9], rows[:, :, :9, :9], atol=1e-6)
    rows[0].square().sum().backward()
    for parameter in layer.parameters():
        assert not parameter.grad[1].any()


def test_scores():
    drawn = synthetic.sequences("scopes", 5, 20, 20, torch.Generator().manual_seed(2))
    perfect = synthetic.targets(drawn.alive)
    got = synthetic.scores(perfect, drawn.alive)
    assert got["error"] == 0 and got["misplaced"] == 0 and got["exact"] == 1
    plain = torch.ones(21, 21).tril()
    plain = (plain / plain.sum(-1, keepdim=True)).expand(5, -1, -1)
    got = synthetic.scores(plain, drawn.alive)
    assert torch.isclose(got["error"], torch.tensor(1.0)) and got["exact"] < 0.5
    assert all(size == found for size, found, _ in synthetic.set_sizes(perfect, drawn.alive))


@pytest.mark.parametrize("task, method", [
    ("scopes", "fpa-tied"), ("lifetime", "fpa-relative"), ("barrier", "fpa-absolute")])
def test_learns(task, method):
    """A few steps bring FPA below what FoX ever reaches."""
    settings = synthetic.Settings(task, method, 16, 1e-2, runs=1, steps=150, tokens=512)
    result = synthetic.run(settings, log=lambda text: None)
    assert result["scores"]["1"]["misplaced"][0] < 0.2


def test_clipping_is_by_run():
    p = torch.nn.Parameter(torch.zeros(2, 3))
    p.grad = torch.tensor([[3.0, 0, 4], [0.3, 0, 0.4]])
    synthetic.clip_each([p], 1.0)
    assert torch.allclose(p.grad, torch.tensor([[0.6, 0, 0.8], [0.3, 0, 0.4]]))
