"""Writes pytorch.json: outputs and gradients of the PyTorch training code, for TestPyTorch.

    PYTHONPATH=testmodels/train python ops/graph/testdata/pytorch.py >ops/graph/testdata/pytorch.json
"""

import json

import torch

from fpatrain import attention


def case(seed, batch, heads, steps, size, ties):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(batch, heads, steps, size, dtype=torch.float64) for _ in range(3))
    if ties:  # a walk in whole numbers meets its minima again and again
        field = torch.randint(-1, 2, (batch, heads, steps)).double().cumsum(-1)
    else:
        field = torch.randn(batch, heads, steps, dtype=torch.float64).cumsum(-1)
    level = field + torch.randn(batch, heads, steps, dtype=torch.float64)
    slope = torch.rand(heads, dtype=torch.float64) + 0.2
    weight = torch.randn(batch, heads, steps, size, dtype=torch.float64)
    operands = {"query": q, "key": k, "value": v, "field": field, "level": level, "slope": slope}
    for x in operands.values():
        x.requires_grad_()
    out = attention.attend(q, k, v, attention.penalties(field, level, slope), 0.5)
    (out * weight).sum().backward()
    flat = lambda x: x.detach().flatten().tolist()
    return {
        "shape": [batch, heads, steps, size], "scale": 0.5, "weight": flat(weight), "output": flat(out),
        **{name: flat(x) for name, x in operands.items()},
        "gradient": {name: flat(x.grad) for name, x in operands.items()},
    }


cases = [case(1, 1, 2, 12, 2, True), case(2, 2, 1, 9, 3, False)]
print("[" + ",\n".join(json.dumps(c) for c in cases) + "]")
