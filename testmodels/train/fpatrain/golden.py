"""Reference logits in float64: a forward pass over the exported tensors, in numpy, that
shares no code with the model used for training."""

import numpy as np
from safetensors.numpy import load_file


def _norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def _attention(x, tensors, prefix, config):
    """Output of one attention layer for its normalised input x [T, D]."""
    heads, size, eps = config["num_attention_heads"], config["head_dim"], config["rms_norm_eps"]
    steps = len(x)

    def split(name):
        return (x @ tensors[f"{prefix}{name}.weight"].T).reshape(steps, heads, size)

    q = _norm(split("q_proj"), tensors[prefix + "q_norm.weight"], eps)
    k = _norm(split("k_proj"), tensors[prefix + "k_norm.weight"], eps)
    v = split("v_proj")
    inc = np.tanh(x @ tensors[prefix + "field_proj.weight"].T + tensors[prefix + "field_proj.bias"])
    field = np.cumsum(inc, 0)  # [T, H]
    level = field + x @ tensors[prefix + "level_proj.weight"].T + tensors[prefix + "level_proj.bias"]
    slope = tensors[prefix + "slope"]

    out = np.empty((steps, heads, size))
    for h in range(heads):
        low = np.full(steps, np.inf)  # of every key, from the query at hand back
        for i in range(steps):
            low[:i] = np.minimum(low[:i], field[i, h])
            penalty = slope[h] * np.maximum(0.0, level[: i + 1, h] - low[: i + 1])
            logit = k[: i + 1, h] @ q[i, h] / np.sqrt(size) - penalty
            weight = np.exp(logit - logit.max())
            out[i, h] = weight @ v[: i + 1, h] / weight.sum()
    return out.reshape(steps, -1) @ tensors[prefix + "o_proj.weight"].T


def forward(folder_tensors, config, ids):
    """Logits [T, V] in float64 of token ids, for walk, tanh, relative levels, QK-norm and
    no rotary embedding (other configurations are refused)."""
    want = {"field_kind": "walk", "field_activation": "tanh", "level_kind": "relative",
            "rope_theta": None, "field_interval": "exclusive", "hidden_act": "silu"}
    for key, value in want.items():
        if config[key] != value:
            raise ValueError(f"config.json: {key} is {config[key]!r}, goldens need {value!r}")
    tensors = {name: t.astype(np.float64) for name, t in folder_tensors.items()}
    eps = config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        x = x + _attention(_norm(x, tensors[at + "input_layernorm.weight"], eps),
                           tensors, at + "self_attn.", config)
        h = _norm(x, tensors[at + "post_attention_layernorm.weight"], eps)
        gate = h @ tensors[at + "mlp.gate_proj.weight"].T
        up = h @ tensors[at + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[at + "mlp.down_proj.weight"].T
    return _norm(x, tensors["model.norm.weight"], eps) @ tensors["lm_head.weight"].T


def positions(steps):
    """All positions of short runs, 16 spread ones of longer runs."""
    if steps <= 64:
        return np.arange(steps, dtype=np.int32)
    return np.unique(np.linspace(0, steps - 1, 16).round().astype(np.int32))


LENGTHS = (1, 7, 64, 300, 1024, 2048)


def goldens(weights_path, config, ids, lengths=LENGTHS):
    """Tensors of golden.safetensors: ids.T, pos.T, logits.T for the first T of `ids`.

    The model is causal, so one run over the longest serves all."""
    logits = forward(load_file(weights_path), config, np.asarray(ids[: max(lengths)]))
    out = {}
    for steps in lengths:
        pos = positions(steps)
        out[f"ids.{steps}"] = np.asarray(ids[:steps], dtype=np.int32)
        out[f"pos.{steps}"] = pos
        out[f"logits.{steps}"] = logits[pos].astype(np.float32)
    return out
