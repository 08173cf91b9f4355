"""Weights of the synthetic models (kinds llama and level-off) from a GGUF file."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Model:
    """A decoder: RMS norm, fused projections, RoPE or QK norm with a field, SwiGLU.

    Matrices are [outputs, inputs], as in the file, except that those of one input are
    one matrix.
    """

    layers: int
    heads: int
    dim: int  # of a head
    ffn: int
    vocab: int
    eps: float
    rope: float  # the base frequency; 0: no rotary embedding
    field: bool  # QK norm, log-sigmoid walk, tied level
    weights: dict  # numpy arrays

    @property
    def hidden(self):
        return self.heads * self.dim


def interleaved_to_halves(x, heads, dim):
    """Undoes the order of rows that files of the architecture llama have."""
    shape = x.shape
    return x.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def load(path, dtype=np.float32):
    from gguf import GGUFReader

    file = GGUFReader(path)
    arch = file.fields["general.architecture"].contents()

    def get(key, default=None):
        field = file.fields.get(arch + "." + key)
        return default if field is None else field.contents()

    heads = get("attention.head_count")
    if get("attention.head_count_kv") != heads:
        raise SystemExit(f"{path}: grouped heads are not supported by this benchmark")
    tensors = {t.name: t for t in file.tensors}

    def tensor(name):
        t = tensors[name]
        return np.asarray(t.data).reshape(tuple(reversed(t.shape.tolist())))

    model = Model(
        layers=get("block_count"), heads=heads, dim=get("attention.key_length"), ffn=get("feed_forward_length"),
        vocab=get("vocab_size"), eps=get("attention.layer_norm_rms_epsilon"),
        rope=get("rope.freq_base", 10000.0) if arch == "llama" else 0.0, field=arch == "fpa", weights={})
    if arch not in ("llama", "fpa") or model.field and (
            get("attention.field.kind"), get("attention.field.activation"), get("attention.level.kind"),
            get("attention.qk_norm")) != ("walk", "log_sigmoid", "tied", "shared"):
        raise SystemExit(f"{path}: this benchmark runs the synthetic models of the kinds llama and level-off")

    def matrix(*names):
        return np.concatenate([tensor(n).astype(dtype) for n in names])

    w = model.weights
    w["embed"] = matrix("token_embd.weight")
    w["output"] = matrix("output.weight") if "output.weight" in tensors else w["embed"]
    w["norm"] = tensor("output_norm.weight").astype(np.float32)
    for i in range(model.layers):
        at = f"blk.{i}."
        layer = {name: tensor(at + name + ".weight").astype(np.float32) for name in ("attn_norm", "ffn_norm")}
        qkv = [tensor(at + f"attn_{x}.weight").astype(dtype) for x in "qkv"]
        if model.rope:
            qkv[:2] = [interleaved_to_halves(x, model.heads, model.dim) for x in qkv[:2]]
        layer["qkv"] = np.concatenate(qkv)
        layer["o"] = matrix(at + "attn_output.weight")
        layer["in"] = matrix(at + "ffn_gate.weight", at + "ffn_up.weight")
        layer["out"] = matrix(at + "ffn_down.weight")
        if model.field:
            layer["q_norm"] = tensor(at + "attn_q_norm.weight").astype(np.float32)
            layer["k_norm"] = tensor(at + "attn_k_norm.weight").astype(np.float32)
            layer["field"] = tensor(at + "attn_field.weight").astype(np.float32)
            layer["field_bias"] = tensor(at + "attn_field.bias").astype(np.float32)
            layer["slope"] = tensor(at + "attn_slope.weight").astype(np.float32)
        w[i] = layer
    return model
