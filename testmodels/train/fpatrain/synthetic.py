"""Synthetic survivor sets: which keys are alive is decided by later tokens, and one attention
layer must weigh the living alike and the rest not at all.

A sequence is BOS and n tokens. In all three tasks a token is either a key or an event:

    scopes    a key opens a scope, an event closes the one opened last; a key lives while its
              scope is open
    lifetime  a key tells a number b of 1 to 8; it dies at the b-th event after it
    barrier   a key tells a level, an event a height, both 1 to 8; a key lives while no event
              since was lower than its level

The target at a position is the uniform distribution over BOS and the living keys, and the
output is the attention row itself, mixed from the heads (so values are one-hot by position and
no rank but that of queries and keys limits a method). The loss is the cross-entropy.

Every method is one layer of four heads of dimension 16 over token embeddings of width 32 (type,
number and a random identity). Runs of several seeds are trained side by side: every parameter
and activation has a leading axis of runs.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .fused import penalised_softmax
from .model import ACTIVATIONS, rotate

TASKS = ("scopes", "lifetime", "barrier")
LARGEST = 8  # of the numbers that tokens tell
FEATURES = 5  # BOS, key, event, number of a key, number of an event
HEADS, HEAD_DIM, WIDTH = 4, 16, 32


@dataclass
class Sequences:
    """features [N, T, 5], identity [N, T] (n: none), alive [N, T, T] bool; T = n + 1."""

    features: Tensor
    identity: Tensor
    alive: Tensor


def sequences(task: str, count: int, n: int, scale: int, generator: torch.Generator) -> Sequences:
    """`count` random sequences of n tokens. `scale` is the length trained at: identities are
    below it, and about eight events fall on so many tokens (scopes: every second token)."""

    def uniform(*shape):
        return torch.rand(*shape, generator=generator)

    number = 1 + torch.floor(LARGEST * uniform(count, n))
    if task == "scopes":
        number[:] = 0
        opening, depth = (0.4 + 0.3 * uniform(count)).numpy(), np.zeros(count, np.float32)
        key, height = torch.empty(count, n, dtype=torch.bool), torch.empty(count, n)
        for t, draw in enumerate(uniform(n, count).numpy()):
            opens = (draw < opening) | (depth == 0)
            depth += np.where(opens, np.float32(1), np.float32(-1))
            key.numpy()[:, t], height.numpy()[:, t] = opens, depth
        level = height
    else:
        key = uniform(count, n) >= 8 / scale
        if task == "lifetime":
            number[~key] = 0
            height = -torch.cumsum(~key, 1).float()
            level = height - number + 0.5
        elif task == "barrier":
            # High events are more frequent, else hardly a key would live.
            number = torch.where(key, number, LARGEST - torch.floor(LARGEST * uniform(count, n) ** 2))
            height = torch.where(key, float(LARGEST), number)
            level = number
        else:
            raise ValueError(f"task {task!r}: want one of {', '.join(TASKS)}")

    # A key is alive while no height since is below its level. In NumPy, whose small operations
    # cost less.
    alive = torch.zeros(count, n + 1, n + 1, dtype=torch.bool)
    level = F.pad(level, (1, 0), value=-math.inf).numpy()
    row = np.zeros((count, n + 1), bool)
    row[:, 0] = True
    alive.numpy()[:, 0] = row
    for t in range(n):
        row &= level <= height.numpy()[:, t, None]
        row[:, t + 1] = key.numpy()[:, t]
        alive.numpy()[:, t + 1] = row

    features = torch.zeros(count, n + 1, FEATURES)
    features[:, 0, 0] = 1
    for column, which in ((1, key), (2, ~key)):
        features[:, 1:, column] = which.float()
        features[:, 1:, column + 2] = torch.where(which, number / LARGEST, 0)
    identity = uniform(count, max(n, scale)).argsort(1)[:, :n] % scale
    identity = F.pad(identity.masked_fill(~key, scale), (1, 0), value=scale)
    return Sequences(features, identity, alive)


@dataclass(frozen=True)
class Method:
    """How a layer tells living keys from dead ones.

    field "walk" or "direct" with its activation and level as in model.Config, or None for
    softmax with positions "learned", "rope", "alibi" or "none"."""

    field: str | None = None
    activation: str = "tanh"
    level: str = "tied"
    learned_slope: bool = True
    positions: str = "none"


METHODS = {
    "fpa-tied": Method("walk"),
    "fpa-relative": Method("walk", level="relative"),
    "fpa-absolute": Method("direct", "identity", "absolute"),
    "fox": Method("walk", "log_sigmoid", learned_slope=False),
    "softmax-learned": Method(positions="learned"),
    "softmax-rope": Method(positions="rope"),
    "softmax-alibi": Method(positions="alibi"),
    "softmax-none": Method(),
}
FOX_BIASES = (1.0, 2.0, 4.0, 6.0)  # gates that forget within 3 to 400 tokens at the start
ALIBI_SLOPES = tuple(2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS))


class Layer(nn.Module):
    """One attention layer for `runs` independent runs trained at length n."""

    def __init__(self, method: Method, runs: int, n: int):
        super().__init__()
        self.method, self.n = method, n

        def normal(*shape, std):
            return nn.Parameter(std * torch.randn(runs, *shape))

        root = 1 / math.sqrt(WIDTH)
        self.embed = normal(FEATURES, WIDTH, std=1.0)
        self.identity = normal(n + 1, WIDTH, std=0.3)
        self.query = normal(WIDTH, HEADS * HEAD_DIM, std=root)
        self.key = normal(WIDTH, HEADS * HEAD_DIM, std=root)
        self.mix = nn.Parameter(torch.zeros(runs, HEADS))
        if method.positions == "learned":
            self.position = normal(n + 1, WIDTH, std=0.3)
        if method.field is None:
            return
        self.field = normal(WIDTH, HEADS, std=0.3 * root)
        bias = torch.zeros(HEADS) if method.activation != "log_sigmoid" else torch.tensor(FOX_BIASES)
        self.field_bias = nn.Parameter(bias.repeat(runs, 1))
        if method.level in ("relative", "absolute"):
            self.level = normal(WIDTH, HEADS, std=0.3 * root)
            self.level_bias = nn.Parameter(torch.zeros(runs, HEADS))
        if method.learned_slope:
            self.slope = nn.Parameter(torch.full((runs, HEADS), math.log(math.e - 1)))

    def forward(self, features: Tensor, identity: Tensor) -> Tensor:
        """Attention rows [R, B, T, T] of features [R, B, T, 5] and identity [R, B, T]."""
        runs, batch, steps, _ = features.shape
        x = features.flatten(1, 2) @ self.embed
        index = identity.flatten(1).unsqueeze(-1).expand(-1, -1, WIDTH)
        known = torch.cat([self.identity[:, :-1], torch.zeros_like(self.identity[:, :1])], 1)
        x = x + known.gather(1, index)
        if self.method.positions == "learned":
            x = (x.unflatten(1, (batch, steps)) + self.position[:, None, :steps]).flatten(1, 2)

        def split(weight):  # [R, B, H, T, d]
            return (x @ weight).view(runs, batch, steps, HEADS, HEAD_DIM).transpose(2, 3)

        def scalars(weight, bias):  # [R, B, H, T]
            return (x @ weight + bias.unsqueeze(1)).view(runs, batch, steps, HEADS).transpose(2, 3)

        q, k = split(self.query), split(self.key)
        if self.method.positions == "rope":
            q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        logits = (q * HEAD_DIM**-0.5) @ k.mT
        field = level = slope = None
        if self.method.positions == "alibi":
            field = level = -torch.arange(steps, dtype=torch.float32)
            slope = torch.tensor(ALIBI_SLOPES)
        elif self.method.field is not None:
            increments = ACTIVATIONS[self.method.activation](scalars(self.field, self.field_bias))
            field = increments
            if self.method.field == "walk":
                field = increments.double().cumsum(-1).float()
            level = field
            if self.method.level == "relative":
                level = field + scalars(self.level, self.level_bias)
            elif self.method.level == "absolute":
                level = scalars(self.level, self.level_bias)
            slope = torch.ones(())
            if self.method.learned_slope:
                slope = F.softplus(self.slope).unsqueeze(1)
        weights, _ = penalised_softmax(logits, field, level, slope)
        share = torch.softmax(self.mix, -1)[:, None, None]
        return (share @ weights.flatten(3)).view(runs, batch, steps, steps)


def targets(alive: Tensor) -> Tensor:
    """Uniform distributions over the living, rows [..., T, T]."""
    return alive / alive.sum(-1, keepdim=True)


def scores(rows: Tensor, alive: Tensor) -> dict[str, Tensor]:
    """Figures of attention rows [N, T, T] against the truth; BOS's own row does not count.

    error      squared error over that of looking at all earlier tokens alike (1: no better)
    misplaced  share of the attention on wrong tokens, or missing
    exact      share of positions where the set of tokens with more than half of the weight due
               is the living set
    """
    steps = rows.shape[-1]
    rows, alive = rows[:, 1:], alive[:, 1:]
    want = targets(alive)
    causal = torch.ones(steps, steps).tril()[1:]
    plain = causal / causal.sum(-1, keepdim=True)
    found = rows > 0.5 / alive.sum(-1, keepdim=True)
    return {
        "error": (rows - want).square().sum() / (plain - want).square().sum(),
        "misplaced": (rows - want).abs().sum(-1).mean() / 2,
        "exact": (found == alive).all(-1).float().mean(),
    }


def set_sizes(rows: Tensor, alive: Tensor) -> list[list[float]]:
    """[size of the living set, mean size of the set found, number of positions], by size."""
    size = alive[:, 1:].sum(-1).flatten()
    found = (rows[:, 1:] > 0.5 / alive[:, 1:].sum(-1, keepdim=True)).sum(-1).flatten().float()
    return [[s, round(found[size == s].mean().item(), 2), int((size == s).sum())]
            for s in sorted(set(size.tolist()))]


@dataclass(frozen=True)
class Settings:
    """One job: `runs` runs, each with its own start and data, trained side by side."""

    task: str
    method: str
    n: int
    rate: float
    runs: int = 5
    seed: int = 0
    steps: int = 1000
    tokens: int = 1024  # a step and run
    warmup: int = 50


def clip_each(parameters: list[nn.Parameter], most: float) -> None:
    """Gradient clipping by norm, for every run of the leading axis by itself."""
    norms = sum(p.grad.flatten(1).square().sum(1) for p in parameters).sqrt()
    factor = (most / (norms + 1e-6)).clamp(max=1)
    for p in parameters:
        p.grad *= factor.view(-1, *[1] * (p.dim() - 1))


def train(settings: Settings, pause: Callable[[], None] = lambda: None, log=print) -> Layer:
    """The layer, trained; pause is called before every step."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    runs = settings.runs
    layer = Layer(METHODS[settings.method], runs, settings.n)
    parameters = list(layer.parameters())
    slopes = [p for name, p in layer.named_parameters() if name == "slope"]
    rest = [p for name, p in layer.named_parameters() if name != "slope"]
    optimiser = torch.optim.Adam(
        [{"params": rest, "factor": 1.0}, {"params": slopes, "factor": 10.0}], betas=(0.9, 0.98))
    batch = max(1, settings.tokens // settings.n)
    for step in range(settings.steps):
        pause()
        drawn = sequences(settings.task, runs * batch, settings.n, settings.n, generator)
        features, identity, alive = (
            t.unflatten(0, (runs, batch)) for t in (drawn.features, drawn.identity, drawn.alive))
        rows = layer(features, identity)
        # The sum over runs: no run's gradient touches another's parameters.
        loss = -(targets(alive) * torch.log(rows + 1e-12)).sum(-1).mean((1, 2))
        done = step / settings.steps
        rate = settings.rate * min((step + 1) / settings.warmup, 0.05 + 0.475 * (1 + math.cos(math.pi * done)))
        for group in optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        optimiser.zero_grad(set_to_none=True)
        loss.sum().backward()
        clip_each(parameters, 1.0)
        optimiser.step()
        if step % 200 == 0 or step == settings.steps - 1:
            log(f"{settings.task} {settings.method} n {settings.n} rate {settings.rate} step {step}  loss "
                + " ".join(f"{x:.3f}" for x in loss.tolist()))
    return layer


@torch.no_grad()
def evaluate(layer: Layer, settings: Settings, factors=(1, 2, 4), log=print) -> dict:
    """Scores of every run at the length trained and at multiples of it, on sequences that
    are the same for every method."""
    runs = settings.runs
    out: dict = {"scores": {}}
    for factor in factors:
        if factor > 1 and layer.method.positions == "learned":
            continue
        n = factor * settings.n
        count = max(8, 4096 // n)
        generator = torch.Generator().manual_seed(1_000_000 + n)
        test = sequences(settings.task, count, n, settings.n, generator)
        per_run: list[list] = [[] for _ in range(runs)]
        at_once = max(1, 2**23 // (runs * HEADS * (n + 1) ** 2))  # 32 MB a tensor
        for features, identity in zip(test.features.split(at_once), test.identity.split(at_once)):
            rows = layer(features.expand(runs, *features.shape), identity.expand(runs, *identity.shape))
            for run in range(runs):
                per_run[run].append(rows[run])
        found = [torch.cat(rows) for rows in per_run]
        figures = [scores(rows, test.alive) for rows in found]
        out["scores"][str(factor)] = {
            name: [round(f[name].item(), 6) for f in figures] for name in figures[0]}
        if factor == 1:
            out["sizes"] = set_sizes(found[0], test.alive)
            if n <= 32:  # a picture of one sequence
                out["rows"] = [[round(x, 3) for x in row[: i + 1]] for i, row in enumerate(found[0][0].tolist())]
                out["target"] = [[int(x) for x in row[: i + 1]] for i, row in enumerate(test.alive[0].tolist())]
        log(f"{settings.task} {settings.method} n {settings.n} rate {settings.rate} at {factor}x  "
            + "  ".join(f"{name} " + " ".join(f"{f[name]:.4f}" for f in figures) for name in figures[0]))
    return out


def run(settings: Settings, pause: Callable[[], None] = lambda: None, log=print, factors=(1, 2, 4)) -> dict:
    """Trains and evaluates; the result as it goes into the results file."""
    began = time.time()
    layer = train(settings, pause, log)
    out = evaluate(layer, settings, factors, log)
    out["seconds"] = round(time.time() - began, 1)
    return out
