"""The decoder in JAX, as a user of JAX writes it: the weights are arguments of a jitted
step, the cache is of static capacity and donated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


class Decoder:
    """One sequence, in float32."""

    name = "JAX " + jax.__version__

    def __init__(self, model, capacity):
        self.model, self.capacity = model, capacity
        self.weights = jax.device_put(jax.tree.map(jnp.asarray, {str(k): v for k, v in model.weights.items()}))
        self.step = jax.jit(functools.partial(step, model), donate_argnums=1)
        self.reset()

    def reset(self):
        m, s = self.model, self.capacity
        zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
        self.cache = [{"k": zeros(m.heads, s, m.dim), "v": zeros(m.heads, s, m.dim)} for _ in range(m.layers)]
        for c in self.cache if m.field else []:
            c |= {"level": zeros(m.heads, s), "low": jnp.full((m.heads, s), jnp.inf), "walk": zeros(m.heads)}
        self.position = 0

    def feed(self, ids):
        """Takes in ids, [1, N], and returns the logits of the last one, [1, V], on the
        host. More than one are a prompt from the start."""
        ids = np.asarray(ids[0], np.int32)
        logits, self.cache = self.step(self.weights, self.cache, ids, self.position)
        self.position += len(ids)
        return np.asarray(logits)[None]


def norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + eps) * weight


def rotate(x, position, base):
    """x is [H, N, d]; dimension i turns with i + d/2."""
    half = x.shape[-1] // 2
    angle = position[:, None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def step(m, weights, cache, ids, position):
    n = ids.shape[0]
    first = n > 1
    x = weights["embed"][ids]
    at = position + jnp.arange(n)
    capacity = cache[0]["k"].shape[1]
    new = []
    for i in range(m.layers):
        w, c = weights[str(i)], dict(cache[i])
        h = norm(x, w["attn_norm"], m.eps)
        q, k, v = jnp.moveaxis((h @ w["qkv"].T).reshape(n, 3, m.heads, m.dim), 0, 2)
        if m.rope:
            q, k = rotate(q, at, m.rope), rotate(k, at, m.rope)
        if m.field:
            q, k = norm(q, w["q_norm"], m.eps), norm(k, w["k_norm"], m.eps)
        put = jax.lax.dynamic_update_slice
        c["k"], c["v"] = put(c["k"], k, (0, position, 0)), put(c["v"], v, (0, position, 0))
        # A prompt attends to itself, a token to the cache.
        keys, values, key_at = (k, v, at) if first else (c["k"], c["v"], jnp.arange(capacity))
        scores = jnp.einsum("hnd,hsd->hns", q, keys) / m.dim**0.5
        if m.field:
            walk = c["walk"][:, None] + jnp.cumsum(jax.nn.log_sigmoid(h @ w["field"].T + w["field_bias"]), 0).T
            level = put(c["level"], walk, (0, position))
            later = jnp.where(at[:, None] > key_at, walk[:, :, None], jnp.inf)  # [H, N, S]
            low = jax.lax.cummin(later, axis=1)
            if not first:
                low = jnp.minimum(low, c["low"][:, None])
            c["low"] = low[:, -1] if not first else put(c["low"], low[:, -1], (0, 0))
            c["level"], c["walk"] = level, walk[:, -1]
            level = walk if first else level
            scores -= w["slope"][:, None, None] * jnp.maximum(level[:, None] - low, 0)
        scores = jnp.where(key_at <= at[:, None], scores, -jnp.inf)
        y = jnp.einsum("hns,hsd->nhd", jax.nn.softmax(scores), values)
        x = x + y.reshape(n, -1) @ w["o"].T
        gate, up = jnp.split(norm(x, w["ffn_norm"], m.eps) @ w["in"].T, 2, -1)
        x = x + (jax.nn.silu(gate) * up) @ w["out"].T
        new.append(c)
    return weights["output"] @ norm(x[-1], weights["norm"], m.eps), new
