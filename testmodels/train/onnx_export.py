"""First Passage Attention in a PyTorch model, and that model as ONNX.

    python testmodels/train/onnx_export.py --out runtime/onnxedit/testdata

writes small models as torch.onnx.export makes them, torch-plain.onnx, torch-cached.onnx,
torch-fox.onnx and torch-sdpa*.onnx, and torch.safetensors with inputs and PyTorch's outputs. docs/onnx-export.md explains the
parts and what comes next: fpaconv onnx inject. Needs torch, onnx, onnxscript and
safetensors.
"""

import argparse
import pathlib

import onnx
import onnxscript
import safetensors.torch
import torch
from torch import Tensor


# --- the operator for PyTorch

@torch.library.custom_op("firstpassage::attention", mutates_args=())
def attention(
    query: Tensor,  # [B, Hq, T, D]
    key: Tensor,  # [B, Hkv, T, D]
    value: Tensor,  # [B, Hkv, T, Dv]
    field: Tensor,  # [B, Hf, T] float32
    level: Tensor,  # [B, Hf, T] float32
    slope: Tensor,  # [Hf] float32
    past_key: Tensor | None = None,  # [B, Hkv, P, D]
    past_value: Tensor | None = None,  # [B, Hkv, P, Dv]
    past_level: Tensor | None = None,  # [B, Hf, P] float32
    past_low: Tensor | None = None,  # [B, Hf, P] float32
    scale: float = 0.0,  # 0: 1/sqrt(D)
    interval: str = "exclusive",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output and what the next call takes as past: keys, values, levels, lows.

    By definition, for checking: all pairs of positions at once."""
    steps, past = query.shape[2], 0 if past_key is None else past_key.shape[2]
    first = 0 if interval == "inclusive" else 1
    skip = torch.isposinf(level)
    heard = torch.where(skip, torch.inf, field)
    # Lows of the new keys: the least field over (j, i], or [j, i].
    since = torch.ones(steps, steps, dtype=torch.bool, device=field.device).triu(first)
    low = torch.where(since, heard.unsqueeze(-2), torch.inf)  # [..., j, t]
    low = torch.cummin(low, -1).values.transpose(-1, -2)  # [..., i, j]
    if past_key is not None:
        before = torch.cummin(heard, -1).values.unsqueeze(-1)
        low = torch.cat([torch.minimum(past_low.unsqueeze(-2), before), low], -1)
        key = torch.cat([past_key, key], 2)
        value = torch.cat([past_value, value], 2)
        level = torch.cat([past_level, level], 2)
    skip = torch.isposinf(level)
    fall = torch.relu(torch.where(skip, 0.0, level).unsqueeze(-2) - low)
    unseen = torch.ones(steps, past + steps, dtype=torch.bool, device=field.device).triu(past + 1)
    penalty = torch.where(skip.unsqueeze(-2) | unseen, torch.inf, slope.view(-1, 1, 1) * fall)

    heads = query.shape[1]
    penalty = penalty.repeat_interleave(heads // penalty.shape[1], 1)
    keys = key.repeat_interleave(heads // key.shape[1], 1).float()
    values = value.repeat_interleave(heads // value.shape[1], 1).float()
    logits = (scale or query.shape[-1] ** -0.5) * query.float() @ keys.transpose(-1, -2) - penalty
    weights = torch.softmax(logits, -1).nan_to_num()  # no key at all: zeros
    output = (weights @ values).to(query.dtype)
    last = low[..., -1, :] if steps > 0 else past_low
    # What a custom operator returns must not be one of its inputs.
    return output, key.clone(), value.clone(), level.clone(), torch.where(skip, torch.inf, last)


@attention.register_fake
def _(query, key, value, field, level, slope, past_key=None, past_value=None, past_level=None, past_low=None,
      scale=0.0, interval="exclusive"):
    slots = key.shape[2] + (0 if past_key is None else past_key.shape[2])
    return (
        query.new_empty(*query.shape[:3], value.shape[3]),
        key.new_empty(*key.shape[:2], slots, key.shape[3]),
        value.new_empty(*value.shape[:2], slots, value.shape[3]),
        level.new_empty(*level.shape[:2], slots),
        level.new_empty(*level.shape[:2], slots),
    )


# --- the operator for the exporter

def schema():
    """The operator's signature, by which onnxscript makes its node."""
    parameter, optional = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption.Optional
    whole = [("query", "T"), ("key", "T"), ("value", "T"), ("field", "F"), ("level", "F"), ("slope", "F")]
    past = [("past_key", "T"), ("past_value", "T"), ("past_level", "F"), ("past_low", "F")]
    present = [("present_key", "T"), ("present_value", "T"), ("present_level", "F"), ("present_low", "F")]
    return onnx.defs.OpSchema(
        "FirstPassageAttention", "ai.firstpassage", 1,
        inputs=[parameter(n, t) for n, t in whole] + [parameter(n, t, param_option=optional) for n, t in past],
        outputs=[parameter("output", "T")] + [parameter(n, t, param_option=optional) for n, t in present],
        type_constraints=[
            ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "queries, keys and values"),
            ("F", ["tensor(float)"], "fields, levels and slopes"),
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute("scale", onnx.helper.make_attribute("scale", 0.0)),
            onnx.defs.OpSchema.Attribute("interval", onnx.helper.make_attribute("interval", "exclusive")),
        ],
    )


onnx.defs.register_schema(schema())
firstpassage = onnxscript.values.Opset("ai.firstpassage", 1)


def translate(query, key, value, field, level, slope, past_key=None, past_value=None, past_level=None, past_low=None,
              scale: float = 0.0, interval: str = "exclusive"):
    return firstpassage.FirstPassageAttention(
        query, key, value, field, level, slope, past_key, past_value, past_level, past_low,
        scale=scale, interval=interval,
    )


translation = {torch.ops.firstpassage.attention.default: translate}


# --- a model that uses it

class Layer(torch.nn.Module):
    """Attention with a signed walk as field and relative levels, one field for each
    key head; the running sum is in float64."""

    def __init__(self, dim, heads, key_heads, width):
        super().__init__()
        self.shape = heads, key_heads, width
        self.norm = torch.nn.LayerNorm(dim)
        self.query = torch.nn.Linear(dim, heads * width, bias=False)
        self.key = torch.nn.Linear(dim, key_heads * width, bias=False)
        self.value = torch.nn.Linear(dim, key_heads * width, bias=False)
        self.increment = torch.nn.Linear(dim, key_heads)
        self.rise = torch.nn.Linear(dim, key_heads)
        self.slope = torch.nn.Parameter(torch.rand(key_heads) + 0.5)
        self.out = torch.nn.Linear(heads * width, dim, bias=False)

    def forward(self, x, past=None):
        heads, key_heads, width = self.shape
        batch, steps, _ = x.shape

        def split(y, n):
            return y.view(batch, steps, n, width).transpose(1, 2)

        h = self.norm(x)
        field = torch.cumsum(self.increment(h).double(), 1)
        if past is not None:
            field = field + past["field"].unsqueeze(1)
        level = field + self.rise(h).double()
        y, key, value, levels, lows = torch.ops.firstpassage.attention(
            split(self.query(h), heads), split(self.key(h), key_heads), split(self.value(h), key_heads),
            field.float().transpose(1, 2), level.float().transpose(1, 2), self.slope,
            *([] if past is None else [past[n] for n in ("key", "value", "level", "low")]),
        )
        present = {"key": key, "value": value, "level": levels, "low": lows, "field": field[:, -1]}
        return x + self.out(y.transpose(1, 2).reshape(batch, steps, heads * width)), present


class Decoder(torch.nn.Module):
    def __init__(self, vocabulary=50, dim=24, layers=2, heads=4, key_heads=2, width=6):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, dim)
        torch.nn.init.normal_(self.embed.weight, std=0.3)
        self.layers = torch.nn.ModuleList(Layer(dim, heads, key_heads, width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, input_ids):
        return self.run(input_ids, None)[0]

    def run(self, input_ids, past):
        x, present = self.embed(input_ids), []
        for i, layer in enumerate(self.layers):
            x, state = layer(x, None if past is None else past[i])
            present.append(state)
        return self.norm(x) @ self.embed.weight.T, present

    def empty(self, batch):
        """The past before the first call."""
        _, heads, width = self.layers[0].shape
        return [{
            "key": torch.zeros(batch, heads, 0, width), "value": torch.zeros(batch, heads, 0, width),
            "level": torch.zeros(batch, heads, 0), "low": torch.zeros(batch, heads, 0),
            "field": torch.zeros(batch, heads, dtype=torch.float64),
        } for _ in self.layers]


class Cached(torch.nn.Module):
    """The decoder with its states as inputs and outputs."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder
        self.train(decoder.training)

    def forward(self, input_ids, past):
        return self.decoder.run(input_ids, past)


class Forgetting(torch.nn.Module):
    """A layer of the Forgetting Transformer in PyTorch's own operators: the sum of
    log sigmoid of a gate as bias. It is First Passage Attention with level = field
    and slope 1, which fpaconv onnx inject --pattern puts in its place."""

    def __init__(self, dim, heads, width):
        super().__init__()
        self.shape = heads, width
        self.norm = torch.nn.LayerNorm(dim)
        self.qkv = torch.nn.Linear(dim, 3 * heads * width, bias=False)
        self.gate = torch.nn.Linear(dim, heads)
        self.out = torch.nn.Linear(heads * width, dim, bias=False)

    def forward(self, x):
        heads, width = self.shape
        batch, steps, _ = x.shape
        h = self.norm(x)
        query, key, value = self.qkv(h).view(batch, steps, 3, heads, width).permute(2, 0, 3, 1, 4)
        field = torch.cumsum(torch.nn.functional.logsigmoid(self.gate(h)), 1).transpose(1, 2)
        bias = field.unsqueeze(-1) - field.unsqueeze(-2)
        unseen = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        logits = query @ key.transpose(-1, -2) * width**-0.5 + bias
        y = torch.softmax(logits.masked_fill(unseen, -torch.inf), -1) @ value
        return x + self.out(y.transpose(1, 2).reshape(batch, steps, heads * width))


class Forgetful(torch.nn.Module):
    def __init__(self, vocabulary=50, dim=24, layers=2, heads=4, width=6):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, dim)
        torch.nn.init.normal_(self.embed.weight, std=0.3)
        self.layers = torch.nn.ModuleList(Forgetting(dim, heads, width) for _ in range(layers))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T


class Grouped(torch.nn.Module):
    """The same with half as many key heads as query heads, by PyTorch's fused
    attention, which the exporter writes in one way below opset 23 and in another
    from there on; the running sum is in float64."""

    def __init__(self, dim=16, heads=4, key_heads=2, width=4):
        super().__init__()
        self.shape = heads, key_heads, width
        self.query = torch.nn.Linear(dim, heads * width, bias=False)
        self.key = torch.nn.Linear(dim, key_heads * width, bias=False)
        self.value = torch.nn.Linear(dim, key_heads * width, bias=False)
        self.gate = torch.nn.Linear(dim, heads)

    def forward(self, x):
        heads, key_heads, width = self.shape
        batch, steps, _ = x.shape
        query = self.query(x).view(batch, steps, heads, width).transpose(1, 2)
        key = self.key(x).view(batch, steps, key_heads, width).transpose(1, 2)
        value = self.value(x).view(batch, steps, key_heads, width).transpose(1, 2)
        field = torch.cumsum(torch.nn.functional.logsigmoid(self.gate(x)).double(), 1).float().transpose(1, 2)
        unseen = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        bias = (field.unsqueeze(-1) - field.unsqueeze(-2)).masked_fill(unseen, -torch.inf)
        repeat = heads // key_heads
        return torch.nn.functional.scaled_dot_product_attention(
            query, key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1), attn_mask=bias
        ).transpose(1, 2)


# --- export

def export_plain(model, path):
    ids = torch.zeros(2, 7, dtype=torch.int64)
    torch.onnx.export(
        model, (ids,), path, dynamo=True, opset_version=18, external_data=False,
        input_names=["input_ids"], output_names=["logits"],
        dynamic_shapes=({0: "batch", 1: "sequence"},),
        custom_translation_table=translation,
    )


def export_cached(model, path):
    ids = torch.zeros(2, 7, dtype=torch.int64)
    with torch.no_grad():
        _, past = model.run(ids[:, :5], model.empty(2))
    names = [f"{i}.{part}" for i in range(len(past)) for part in past[0]]
    sizes = {"key": {0: "batch", 2: "past"}, "value": {0: "batch", 2: "past"},
             "level": {0: "batch", 2: "past"}, "low": {0: "batch", 2: "past"}, "field": {0: "batch"}}
    torch.onnx.export(
        Cached(model), (ids, past), path, dynamo=True, opset_version=18, external_data=False,
        input_names=["input_ids"] + ["past_key_values." + n for n in names],
        output_names=["logits"] + ["present." + n for n in names],
        dynamic_shapes=({0: "batch", 1: "sequence"}, [sizes] * len(past)),
        custom_translation_table=translation,
    )


def export_grouped(model, path, opset):
    torch.onnx.export(
        model, (torch.zeros(2, 7, 16),), path, dynamo=True, opset_version=opset, external_data=False,
        input_names=["x"], output_names=["y"], dynamic_shapes=({0: "batch", 1: "time"},),
    )


# --- goldens

def strip(path):
    """The file without the exporter's notes: places in source files, and names of
    modules, which make most of it."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    for value in model.graph.value_info:
        del value.metadata_props[:]
    for value in model.graph.initializer:
        del value.metadata_props[:]
    onnx.save(model, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Decoder().eval()
    export_plain(model, out / "torch-plain.onnx")
    export_cached(model, out / "torch-cached.onnx")
    forgetful = Forgetful().eval()
    export_plain(forgetful, out / "torch-fox.onnx")
    grouped = Grouped().eval()
    export_grouped(grouped, out / "torch-sdpa18.onnx", 18)
    export_grouped(grouped, out / "torch-sdpa23.onnx", 23)
    for name in ("torch-plain", "torch-cached", "torch-fox", "torch-sdpa18", "torch-sdpa23"):
        strip(out / (name + ".onnx"))

    # Lengths below, at and above the block of the function's body.
    goldens = {}
    with torch.no_grad():
        for batch, steps in ((1, 1), (3, 10), (1, 64), (2, 150)):
            ids = torch.randint(0, 50, (batch, steps))
            goldens[f"ids.{batch}x{steps}"] = ids
            goldens[f"logits.{batch}x{steps}"] = model(ids)
            goldens[f"fox.{batch}x{steps}"] = forgetful(ids)
        goldens["sdpa.x"] = torch.randn(2, 70, 16)
        goldens["sdpa.y"] = grouped(goldens["sdpa.x"])
        past = model.empty(2)
        for step, (begin, end) in enumerate(((0, 70), (70, 71), (71, 150))):
            ids = goldens["ids.2x150"][:, begin:end].contiguous()
            logits, past = model.run(ids, past)
            goldens[f"chunk.{step}.ids"], goldens[f"chunk.{step}.logits"] = ids, logits
    safetensors.torch.save_file({k: v.contiguous() for k, v in goldens.items()}, out / "torch.safetensors")


if __name__ == "__main__":
    main()
