"""The decoder, its incremental run, training and export."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fpatrain import attention, evaluate, export, golden, tokens
from fpatrain.model import Config, Decoder, Session, rotate
from fpatrain.training import Recipe, pressure_weight, train

VARIANTS = [
    {},
    {"qk_norm": "head"},
    {"level_kind": "tied"},
    {"level_kind": "offset"},
    {"field_kind": "direct"},
    {"field_kind": "direct", "level_kind": "absolute", "field_activation": "identity"},
    {"field_activation": "log_sigmoid", "level_kind": "tied", "learned_slope": False},
    {"field_activation": "neg_softplus", "level_kind": "tied"},
    {"field_kind": "none", "rope_theta": 100.0},
]


def decoder(**changes):
    config = Config(vocab_size=60, hidden_size=32, intermediate_size=48, **changes)
    model = Decoder(config)
    with torch.no_grad():
        for block in model.layers:
            for weight in (block.self_attn.q_norm.weight, block.self_attn.k_norm.weight):
                weight.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("changes", VARIANTS)
def test_incremental_run_agrees(changes):
    model = decoder(**changes)
    ids = torch.randint(0, 60, (3, 50))
    want, _ = model(ids)
    for chunk, eps in ((1, None), (7, None), (7, evaluate.EXACT), (1, evaluate.EXACT)):
        session = Session(model, 3, eps)
        for part in ids.split(chunk, 1):
            got = session.feed(part)
        assert torch.allclose(got, want[:, -1], atol=2e-5)
        assert session.tokens == 50


def test_softmax_with_rope_is_relative():
    model = decoder(field_kind="none", rope_theta=10000.0)
    ids = torch.randint(0, 60, (1, 12))
    logits, alive = model(ids, 5.0)
    assert alive == 1 and torch.isfinite(logits).all()
    q = torch.randn(1, 1, 1, 8)
    dots = [(rotate(q, 100.0, n) * rotate(q.flip(-1), 100.0, n + 3)).sum() for n in (0, 5, 40)]
    assert torch.allclose(torch.stack(dots), dots[0].expand(3), atol=1e-4)


def test_absolute_level_on_a_walk_is_refused():
    with pytest.raises(ValueError, match="absolute"):
        decoder(level_kind="absolute")


@pytest.mark.parametrize("changes", VARIANTS[:4])
def test_export_round_trip(tmp_path, changes):
    model, tokenizer = decoder(**changes), tokens.build()
    with torch.no_grad():  # as export rounds
        for name, parameter in model.named_parameters():
            parameter.copy_(export.rounded(name, parameter))
    export.write_model(tmp_path, model, tokenizer)
    again = export.load(tmp_path)
    ids = torch.randint(0, 60, (2, 30))
    assert torch.allclose(model(ids)[0], again(ids)[0], atol=1e-5)
    export.write_model(tmp_path / "half", model, tokenizer, half=True)
    assert torch.equal(export.load(tmp_path / "half")(ids)[0], again(ids)[0])
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["lm_head.weight"].shape == (60, 32)
    slope = stored["model.layers.1.self_attn.slope"]
    assert slope.shape == (4,) and torch.equal(slope, model.layers[1].self_attn.slope())
    shape = (4, 8) if changes.get("qk_norm") == "head" else (8,)
    assert stored["model.layers.0.self_attn.q_norm.weight"].shape == shape
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["model_type"] == "fpa" and told["architectures"] == ["FPAForCausalLM"]


@pytest.mark.parametrize("changes", VARIANTS[:2])
def test_golden_forward_agrees(tmp_path, changes):
    """The numpy forward against the training model, both in float64."""
    model = decoder(**changes)
    export.write_model(tmp_path, model, tokens.build())
    config = json.loads((tmp_path / "config.json").read_text())
    ids = np.random.default_rng(0).integers(0, 60, 80)
    stored = golden.goldens(tmp_path / "model.safetensors", config, ids, (1, 7, 80))
    want = export.load(tmp_path).double()(torch.from_numpy(ids)[None])[0][0].detach().numpy()
    for steps in (1, 7, 80):
        assert np.allclose(stored[f"logits.{steps}"], want[stored[f"pos.{steps}"]], atol=1e-5)
        assert stored[f"pos.{steps}"][-1] == steps - 1


def test_alive_is_the_mean_over_pairs():
    model = decoder()
    ids = torch.randint(0, 60, (2, 9))
    terms, x = [], model.embed_tokens(ids)
    for block in model.layers:
        attn, h = block.self_attn, block.input_layernorm(x)
        field, level = attn.field(h)
        penalty, bound = attention.penalties(field, level, attn.slope()), attn.bound()
        terms += [max(0.0, 1 - penalty[b, h, i, j].item() / (2 * bound[h].item() + 5))
                  for b in range(2) for h in range(4) for i in range(9) for j in range(i)]
        x, _ = block(x)
    assert abs(model(ids, 5.0)[1].item() - sum(terms) / len(terms)) < 1e-5
    assert model(ids)[1] == 1


def test_pressure_rises_from_zero_to_full():
    recipe = Recipe(steps=100)
    weights = [pressure_weight(n, recipe) for n in range(100)]
    assert weights[60] == 0 and weights[75] == 1 and weights == sorted(weights) and 0 < weights[70] < 1


def test_training_learns_and_is_deterministic():
    tokenizer = tokens.build()
    config = Config(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=32)
    recipe = Recipe(steps=25, warmup=5, phases=((1.0, 64, 4, 1, 0.0),), pressure_from=0.2, pressure_full=0.4)
    lines = []
    first, second = (train(config, recipe, tokenizer, lines.append) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)
    losses = [float(line.split("text ")[1].split()[0]) for line in lines]
    assert losses[1] < losses[0] - 1
