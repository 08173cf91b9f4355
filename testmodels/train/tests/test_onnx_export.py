"""The operator that docs/onnx-export.md gives to PyTorch, against its definition."""

import math

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from onnx_export import attention  # noqa: E402


def by_definition(query, key, value, field, level, slope, first):
    """Entry by entry in float64; first is 1 for the exclusive interval, 0 for the inclusive."""
    batch, heads, steps, width = query.shape
    out = torch.zeros(batch, heads, steps, value.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            k, f = h * key.shape[1] // heads, h * field.shape[1] // heads
            for i in range(steps):
                logits, keys = [], []
                for j in range(i + 1):
                    if math.isinf(level[b, f, j]):
                        continue
                    heard = [field[b, f, t].item() for t in range(j + first, i + 1) if not math.isinf(level[b, f, t])]
                    fall = max(0.0, level[b, f, j].item() - min(heard, default=math.inf))
                    product = torch.dot(query[b, h, i].double(), key[b, k, j].double())
                    logits.append(width**-0.5 * product - slope[f].double() * fall)
                    keys.append(j)
                if keys:
                    out[b, h, i] = torch.softmax(torch.stack(logits), 0) @ value[b, k, keys].double()
    return out


@pytest.mark.parametrize("interval,first", [("exclusive", 1), ("inclusive", 0)])
@pytest.mark.parametrize("field_heads", [4, 2, 1])
def test_attention(field_heads, interval, first):
    torch.manual_seed(field_heads)
    query, key, value = torch.randn(2, 4, 9, 6), torch.randn(2, 2, 9, 6), torch.randn(2, 2, 9, 5)
    field, level = torch.randn(2, field_heads, 9), torch.randn(2, field_heads, 9)
    level[torch.rand_like(level) < 0.3] = math.inf
    level[0, :, 0] = math.inf  # a query without any key
    slope = 2 * torch.rand(field_heads)
    want = by_definition(query, key, value, field, level, slope, first)
    whole = attention(query, key, value, field, level, slope, interval=interval)[0]
    torch.testing.assert_close(whole.double(), want, rtol=0, atol=1e-6)

    past, outputs = [None] * 4, []
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        chunk = (x[:, :, begin:end] for x in (query, key, value, field, level))
        output, *past = attention(*chunk, slope, *past, interval=interval)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2).double(), want, rtol=0, atol=1e-6)
