"""A Llama-like decoder with FPA heads; its configuration and tensor names are those of
the FPA checkpoint (docs/checkpoints.md), so that export is a plain dump."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .attention import Cache
from .fused import penalised_softmax, rms_norm

ACTIVATIONS = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "log_sigmoid": F.logsigmoid,
    "neg_softplus": lambda x: -F.softplus(x),
}


@dataclass
class Config:
    """Shape of a model; the names are the keys of config.json.

    qk_norm "shared" has one weight [head_dim] for all heads, "head" one a head.
    field_kind "none" is plain softmax attention, which then usually wants rope_theta.
    learned_slope False fixes every slope at 1 (FoX: log_sigmoid, tied, slope 1)."""

    vocab_size: int = 512
    hidden_size: int = 96
    intermediate_size: int = 192
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 256
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    qk_norm: str = "shared"
    field_kind: str = "walk"
    field_activation: str = "tanh"
    level_kind: str = "relative"
    learned_slope: bool = True

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads

    def checkpoint(self):
        """config.json of the exported model."""
        own = asdict(self)
        del own["learned_slope"]
        return {
            "architectures": ["FPAForCausalLM"],
            "model_type": "fpa",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "num_key_value_heads": self.num_attention_heads,
            "num_field_heads": self.num_attention_heads,
            "field_interval": "exclusive",
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            **own,
        }


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, shape, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


def rotate(x, theta, start=0):
    """Rotary embedding of x [B, H, T, d], halves paired as in Llama."""
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(start, start + x.shape[-2], dtype=torch.float64), freq)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# Slopes at the start, repeated over the heads: small, since a dead key passes no gradient.
SLOPES = (1.5, 0.5, 0.5, 0.5)


def starting_biases(activation, layer):
    """Biases of the field's increments at the start, repeated over the heads of a layer: three
    recency heads, one nearly without drift. Gates (log_sigmoid) forget within 1.4 to 400 tokens."""
    if activation == "log_sigmoid":
        return (0.0, 2.0, 4.0, 6.0)
    return (-1.5, -0.5, -0.15, -0.05 if layer == 0 else 0.05)


class Attention(nn.Module):
    """Self-attention of one layer; see forward for the order of its parts."""

    def __init__(self, config, number):
        super().__init__()
        self.config = config
        dim, heads = config.hidden_size, config.num_attention_heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        if config.qk_norm != "none":
            shape = (config.head_dim,) if config.qk_norm == "shared" else (heads, config.head_dim)
            self.q_norm = RMSNorm(shape, config.rms_norm_eps)
            self.k_norm = RMSNorm(shape, config.rms_norm_eps)
        if config.field_kind == "none":
            return
        self.field_proj = nn.Linear(dim, heads)
        nn.init.normal_(self.field_proj.weight, std=0.15 / math.sqrt(dim))
        biases = starting_biases(config.field_activation, number)
        with torch.no_grad():
            self.field_proj.bias.copy_(torch.tensor((biases * heads)[:heads]))
        if config.level_kind in ("relative", "absolute"):
            self.level_proj = nn.Linear(dim, heads)
            nn.init.normal_(self.level_proj.weight, std=0.5 / math.sqrt(dim))
            nn.init.zeros_(self.level_proj.bias)
        elif config.level_kind == "offset":
            self.level_offset = nn.Parameter(torch.zeros(heads))
        elif config.level_kind != "tied":
            raise ValueError(f"level_kind {config.level_kind!r}: want tied, offset, relative or absolute")
        if config.level_kind == "absolute" and config.field_kind != "direct":
            raise ValueError("level_kind 'absolute' needs field_kind 'direct'")
        if config.learned_slope:
            start = torch.tensor((SLOPES * heads)[:heads])
            self.slope_raw = nn.Parameter(torch.log(torch.expm1(start)))

    def slope(self):
        """Effective slopes [H], >= 0."""
        if self.config.field_kind == "none":
            return torch.zeros(self.config.num_attention_heads)
        if self.config.learned_slope:
            return F.softplus(self.slope_raw)
        return torch.ones(self.config.num_attention_heads)

    def bound(self):
        """U [H]: an upper bound of |scale * q.k|, from the QK-norm weights."""
        if self.config.qk_norm == "none":
            raise ValueError("no bound without QK-norm")
        wq, wk = self.q_norm.weight.detach().abs(), self.k_norm.weight.detach().abs()
        size = math.sqrt(self.config.head_dim)
        if self.config.rope_theta is None:
            largest = (wq * wk).amax(-1)
        else:
            largest = wq.amax(-1) * wk.amax(-1)
        return (size * largest).reshape(-1).expand(self.config.num_attention_heads)

    def per_unit(self, margin):
        """1 / (2U + margin) [H]; a key is as alive as 1 - penalty times this is above 0."""
        return 1 / (2 * self.bound() + margin)

    def heads(self, x, start=0):
        """Queries, keys, values [B, H, T, d] of the normalised input x [B, T, D], whose first
        position is `start`."""
        batch, steps, _ = x.shape
        shape = (batch, steps, self.config.num_attention_heads, self.config.head_dim)
        q, k, v = (p(x).view(shape) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.config.qk_norm != "none":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.config.rope_theta is not None:
            q, k = (rotate(t, self.config.rope_theta, start) for t in (q, k))
        return q, k, v

    def field(self, x, start=0.0):
        """field and level [B, H, T] in float64; start [B, H] is the walk before x. Both are 0
        for softmax."""
        if self.config.field_kind == "none":
            flat = torch.zeros(x.shape[0], self.config.num_attention_heads, x.shape[1], dtype=torch.float64)
            return flat, flat
        inc = ACTIVATIONS[self.config.field_activation](self.field_proj(x)).transpose(1, 2).double()
        if self.config.field_kind == "walk":
            field = inc.cumsum(-1) + (start if isinstance(start, float) else start.unsqueeze(-1))
        else:
            field = inc
        if self.config.level_kind == "tied":
            return field, field
        if self.config.level_kind == "offset":
            return field, field + self.level_offset.double().view(1, -1, 1)
        offset = self.level_proj(x).transpose(1, 2).double()
        if self.config.level_kind == "absolute":
            return field, offset
        return field, field + offset

    def forward(self, x, margin=None):
        """Output [B, T, D] and how alive the cache is: the mean over heads and pairs j < i of
        relu(1 - penalty / (2U + margin)); 1 for softmax, or with margin None."""
        q, k, v = self.heads(x)
        field = level = slope = unit = None
        if self.config.field_kind != "none":
            field, level = (t.to(q.dtype) for t in self.field(x))
            slope = self.slope()
            unit = None if margin is None else self.per_unit(margin)
        logits = (self.config.head_dim**-0.5 * q) @ k.mT
        weights, living = penalised_softmax(logits, field, level, slope, unit)
        y = weights @ v
        alive = torch.ones(())
        if unit is not None:
            pairs = living.numel() * x.shape[1] * (x.shape[1] - 1) / 2
            alive = living.sum() / max(1.0, pairs)
        return self.o_proj(y.transpose(1, 2).reshape(x.shape)), alive


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config):
        super().__init__()
        dim, wide = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(dim, wide, bias=False)
        self.up_proj = nn.Linear(dim, wide, bias=False)
        self.down_proj = nn.Linear(wide, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and MLP, each on the normalised stream and added to it."""

    def __init__(self, config, number):
        super().__init__()
        self.input_layernorm = RMSNorm((config.hidden_size,), config.rms_norm_eps)
        self.self_attn = Attention(config, number)
        self.post_attention_layernorm = RMSNorm((config.hidden_size,), config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, margin=None):
        y, alive = self.self_attn(self.input_layernorm(x), margin)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), alive


class Decoder(nn.Module):
    """Token ids [B, T] to logits [B, T, V]."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.norm = RMSNorm((config.hidden_size,), config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._start()

    def _start(self):
        """Starting weights: variance 1 / inputs; what is added to the stream smaller."""
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        nn.init.normal_(self.lm_head.weight, std=0.5 / math.sqrt(self.config.hidden_size))
        added = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            for layer in (attn.q_proj, attn.k_proj, attn.v_proj, mlp.gate_proj, mlp.up_proj):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            for layer in (attn.o_proj, mlp.down_proj):
                nn.init.normal_(layer.weight, std=added * layer.in_features**-0.5)

    def forward(self, ids, margin=None):
        """Logits [B, T, V], and how alive the cache is, the mean over layers (see Attention)."""
        x = self.embed_tokens(ids)
        alive = []
        for block in self.layers:
            x, share = block(x, margin)
            alive.append(share)
        return self.lm_head(self.norm(x)), torch.stack(alive).mean()


class Session:
    """Incremental run of a batch of sequences with caches that drop dead keys.

    eps is the removed weight allowed in total a query head (2^-25: exact mode), None
    keeps all keys, as softmax does anyway."""

    def __init__(self, model, batch, eps):
        config = model.config
        self.model = model
        self.tokens = 0
        self.caches, self.walks, self.slopes = [], [], []
        for block in model.layers:
            # Enlarged as a runtime with a 16-bit cache must.
            bound = block.self_attn.bound() * (1 + 2.0**-10)
            self.caches.append(
                Cache(batch, config.num_attention_heads, config.head_dim, bound, eps))
            self.walks.append(torch.zeros(batch, config.num_attention_heads, dtype=torch.float64))
            self.slopes.append(block.self_attn.slope().detach())

    @torch.no_grad()
    def feed(self, ids):
        """Logits [B, V] after the last of the new tokens ids [B, C]."""
        x = self.model.embed_tokens(ids)
        scale = self.model.config.head_dim**-0.5
        for n, block in enumerate(self.model.layers):
            attn = block.self_attn
            h = block.input_layernorm(x)
            q, k, v = attn.heads(h, self.tokens)
            field, level = attn.field(h, self.walks[n])
            self.walks[n] = field[..., -1]
            y = self.caches[n].attend(q, k, v, field, level, self.slopes[n], scale)
            x = x + attn.o_proj(y.transpose(1, 2).reshape(x.shape))
            x = x + block.mlp(block.post_attention_layernorm(x))
        self.tokens += ids.shape[1]
        return self.model.lm_head(self.model.norm(x[:, -1]))

    def live(self):
        """Keys held: [layers, B, H]."""
        return torch.stack([cache.live() for cache in self.caches])
