"""First Passage Attention with its gradient, in three forms that must agree (fused.py has a
fourth, which training uses).

Over positions 0..T-1 of one head

    logit[i, j] = scale * q[i].k[j] - slope * max(0, level[j] - low[i, j])   j <= i
    low[i, j]   = min of field[t] over j < t <= i   (+inf for j = i)

`attend` takes all rows at once and is differentiable, `attend_loops` is the definition
written out, and `Cache` the form with a key-value cache: two numbers a key, its level and
its low so far, and nothing about its position.
"""

import math

import torch


class RangeMinimum(torch.autograd.Function):
    """field [..., T] -> low [..., T, T], +inf on and above the diagonal.

    Row i follows from row i-1 by low[i, j] = min(low[i-1, j], field[i]), so each of the
    two passes costs O(T^2) and needs no table of argmins. The gradient of an entry
    belongs to the first position that attains the minimum (also on ties): going up
    from the last row, what has gathered in column j leaves it at the row where
    low[., j] last became strictly smaller.
    """

    @staticmethod
    def forward(ctx, field):
        steps = field.shape[-1]
        rows = field.movedim(-1, 0).contiguous()  # rows first: each is one block of memory
        low = field.new_full((*rows.shape, steps), math.inf)  # [i, ..., j]
        for i in range(1, steps):
            torch.minimum(low[i - 1, ..., :i], rows[i].unsqueeze(-1), out=low[i, ..., :i])
        ctx.save_for_backward(low)
        return low.movedim(0, -2).contiguous()

    @staticmethod
    def backward(ctx, grad):
        (low,) = ctx.saved_tensors
        grad = grad.movedim(-2, 0).contiguous()
        carry = torch.zeros_like(low[0])
        out = torch.zeros_like(low[..., 0])
        for i in range(low.shape[0] - 1, 0, -1):
            held = carry[..., :i]
            held += grad[i, ..., :i]
            leaving = held * (low[i, ..., :i] < low[i - 1, ..., :i])
            out[i] = leaving.sum(-1)
            held -= leaving
        return out.movedim(0, -1)


def range_minimum(field):
    """low [..., T, T] of field [..., T]; see RangeMinimum."""
    return RangeMinimum.apply(field)


def penalties(field, level, slope):
    """slope[h] * max(0, level[j] - low[i, j]) of field, level [B, H, T]: [B, H, T, T]."""
    rise = torch.relu(level.unsqueeze(-2) - range_minimum(field))
    return slope.view(1, -1, 1, 1) * rise


def causal_mask(steps, device=None):
    """True where j > i: [T, T]."""
    return torch.ones(steps, steps, dtype=torch.bool, device=device).triu(1)


def attend(query, key, value, penalty, scale):
    """softmax(scale * q.k - penalty) v over j <= i; query, key, value [B, H, T, d].

    penalty is [B, H, T, T] or None (plain softmax attention)."""
    logits = (scale * query) @ key.transpose(-1, -2)
    if penalty is not None:
        logits -= penalty
    logits.masked_fill_(causal_mask(query.shape[-2], query.device), -math.inf)
    return torch.softmax(logits, -1) @ value


def attend_loops(query, key, value, field, level, slope, scale):
    """The definition, entry by entry; slow, for tests only. Shapes as in `attend`."""
    batch, heads, steps, _ = query.shape
    out = torch.zeros_like(value)
    for b in range(batch):
        for h in range(heads):
            for i in range(steps):
                logits = []
                for j in range(i + 1):
                    logit = scale * torch.dot(query[b, h, i], key[b, h, j])
                    if j < i:
                        low = min(field[b, h, t].item() for t in range(j + 1, i + 1))
                        logit = logit - slope[h] * max(0.0, level[b, h, j].item() - low)
                    logits.append(logit)
                weight = torch.softmax(torch.stack(logits), 0)
                out[b, h, i] = weight @ value[b, h, : i + 1]
    return out


class Cache:
    """Keys, values, levels and lows of one layer, with dead keys removed.

    bound is U [H], an upper bound of |scale * q.k|. A key with penalty p weighs at most
    exp(2U - p) in any later query, since a query sees itself at penalty 0 and penalties
    never fall. With eps given, keys are removed while the sum S of these bounds over the
    n keys removed so far stays below eps: the next one goes when its bound is at most
    (C(n) - S) / 2, where C(n) = eps (1 - 0.5 / (1 + ln(1 + n))). eps None keeps all.

    Slots are padded to the fullest head; an empty slot has level +inf.
    """

    def __init__(self, batch, heads, head_dim, bound, eps):
        self.key = torch.zeros(batch, heads, 0, head_dim)
        self.value = torch.zeros(batch, heads, 0, head_dim)
        self.level = torch.zeros(batch, heads, 0, dtype=torch.float64)
        self.low = torch.zeros(batch, heads, 0, dtype=torch.float64)
        self.bound = bound.double()
        self.eps = eps
        self.spent = torch.zeros(batch, heads, dtype=torch.float64)
        self.removed = torch.zeros(batch, heads, dtype=torch.int64)

    def attend(self, query, key, value, field, level, slope, scale):
        """Output [B, H, C, d] of C new positions after those cached, which then join them.

        field and level are float64, on one zero for the whole sequence."""
        steps = query.shape[-2]
        mask = causal_mask(steps)
        # Earlier keys: the minimum since is the smaller of their low and the chunk's
        # own running minimum.
        running = torch.cummin(field, -1).values
        old_low = torch.minimum(self.low.unsqueeze(-2), running.unsqueeze(-1))
        # New keys: minima within the chunk.
        spread = field.unsqueeze(-2).expand(*field.shape, steps)  # [., j, t] = field[t]
        later = torch.where(mask, spread, math.inf)  # only t > j
        new_low = torch.cummin(later, -1).values.transpose(-1, -2)  # [., i, j]

        low = torch.cat([old_low, new_low], -1)
        levels = torch.cat([self.level, level], -1)
        empty = torch.isposinf(levels)
        rise = torch.relu(levels.unsqueeze(-2) - low).masked_fill(empty.unsqueeze(-2), 0.0)
        penalty = (slope.double().view(1, -1, 1, 1) * rise).to(query.dtype)
        self.key = torch.cat([self.key, key], -2)
        self.value = torch.cat([self.value, value], -2)
        logits = scale * (query @ self.key.transpose(-1, -2)) - penalty
        logits = logits.masked_fill(empty.unsqueeze(-2), -math.inf)
        logits[..., -steps:] = logits[..., -steps:].masked_fill(mask, -math.inf)
        out = torch.softmax(logits, -1) @ self.value

        self.level, self.low = levels, low[..., -1, :]
        if self.eps is not None:
            self._remove(penalty[..., -1, :].double())
        return out

    def _remove(self, penalty):
        """Drops the dead keys, the most penalised first, and closes the gaps."""
        empty = torch.isposinf(self.level)
        cost = torch.exp(2 * self.bound.view(1, -1, 1) - penalty).masked_fill(empty, math.inf)
        cost, order = cost.sort(-1)
        before = cost.cumsum(-1) - cost + self.spent.unsqueeze(-1)
        before = before.nan_to_num(nan=math.inf)
        count = self.removed.unsqueeze(-1) + torch.arange(cost.shape[-1])
        allowed = self.eps * (1 - 0.5 / (1 + torch.log1p(count.double())))
        dead = ((cost <= (allowed - before) / 2).cumprod(-1)).bool()
        self.spent += torch.where(dead, cost, 0.0).sum(-1)
        self.removed += dead.sum(-1)

        # In `order` the dead come first, then the living, then the empty slots.
        level = self.level.gather(-1, order).masked_fill(dead, math.inf)
        alive = ~torch.isposinf(level)
        size = int(alive.sum(-1).max())
        order = order.gather(-1, alive.int().sort(dim=-1, descending=True, stable=True).indices)
        order = order[..., :size]
        kept = torch.arange(size) < alive.sum(-1, keepdim=True)
        wide = order.unsqueeze(-1).expand(*order.shape, self.key.shape[-1])
        self.key = self.key.gather(-2, wide)
        self.value = self.value.gather(-2, wide)
        self.low = self.low.gather(-1, order)
        self.level = self.level.gather(-1, order).masked_fill(~kept, math.inf)

    def live(self):
        """Number of keys held a head: [B, H]."""
        return (~torch.isposinf(self.level)).sum(-1)
