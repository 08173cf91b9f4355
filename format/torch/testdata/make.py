"""Makes the checkpoints of this folder and expected.json, with PyTorch 2.15:

    python3 make.py

expected.json tells, for each file, the tensors in the order in which a walk
over dicts and lists meets them: name, dtype, shape, SHA-256 of the row-major
little-endian bytes; and the storages that tensors share.
"""

import collections
import hashlib
import json
import pathlib

import torch

HERE = pathlib.Path(__file__).parent
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32",
    torch.uint64: "U64", torch.bool: "BOOL",
}


def walk(value, name, found):
    if isinstance(value, torch.Tensor):
        found.append((name, value))
    elif isinstance(value, dict):
        for k, v in value.items():
            walk(v, f"{name}.{k}" if name else str(k), found)
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            walk(v, f"{name}.{i}" if name else str(i), found)
    return found


def describe(value):
    out = []
    for name, t in walk(value, "", []):
        t = t.detach().contiguous()
        flat = t.reshape(-1)
        raw = bytes(flat.view(torch.uint8).tolist()) if t.numel() else b""
        out.append({"name": name, "dtype": NAMES[t.dtype], "shape": list(t.shape),
                    "sha256": hashlib.sha256(raw).hexdigest()})
    return out


def dtypes():
    torch.manual_seed(1)
    d = {}
    for dtype in NAMES:
        name = str(dtype).removeprefix("torch.")
        raw = torch.randint(0, 256, (2 * 3 * 8,), dtype=torch.uint8)
        if dtype == torch.bool:
            d[name] = raw[:6].reshape(2, 3) > 127
        else:
            d[name] = raw.view(dtype)[:6].clone().reshape(2, 3)
    d["scalar"] = torch.tensor(2.5)
    d["empty"] = torch.zeros(0, 3, dtype=torch.bfloat16)
    d["half_of_eight"] = torch.arange(8.0).to(torch.float8_e4m3fn)[4:]
    return d


def views():
    torch.manual_seed(2)
    base = torch.randn(4, 6, 5)
    d = collections.OrderedDict()
    d["transposed"] = base.transpose(0, 2)
    d["permuted"] = base.permute(1, 2, 0)
    d["slice"] = base[1:3, 2:5, 1:4]
    d["every_other"] = base[::2, :, ::2]
    d["column"] = base[:, 3, 2]
    d["element"] = base[2, 1, 4]
    d["expanded"] = base[0, 0, :3].expand(2, 3)
    d["overlapping"] = torch.arange(5, dtype=torch.int16).unfold(0, 3, 1)
    d["one_dim_of_one"] = torch.randn(7).as_strided((1, 7), (1000, 1))
    d["tied_a"] = torch.nn.Parameter(torch.randn(3, 2))
    d["tied_b"] = d["tied_a"]
    d["tied_view"] = d["tied_a"].detach()[1:]
    return d


def training():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    for _ in range(2):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        schedule.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "schedule": {"milestones": schedule.milestones}, "step": 2, "loss": 0.25,
            "rng": torch.get_rng_state()[:64].clone(), "name": "run é", "none": None, "flag": True}


def plain():
    return {"int": -5, "big": 2**70, "negative": -(2**70), "long": 2**40, "float": 0.1, "str": "ä\n",
            "bytes": b"\x00\xff", "no_bytes": b"", "list": [1, [2, (3,)]], "tuple": (1, 2, 3, 4),
            "set": {1}, "frozenset": frozenset([2]), "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
            "device": torch.device("cuda", 1), "cpu": torch.device("cpu"), 7: "seven", 1.5: "float key",
            "t": torch.ones(1), "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("aab")}


def parameters():
    torch.manual_seed(4)
    p = torch.nn.Parameter(torch.randn(2, 2))
    q = torch.nn.Parameter(torch.randn(2), requires_grad=False)
    q.note = "state of a parameter"
    return {"list": [p, (q, torch.randn(1, requires_grad=True))], "shared": [p, p]}


CASES = {"dtypes": dtypes, "views": views, "training": training, "plain": plain, "parameters": parameters}
PROTOCOLS = {"": 2, "_p4": 4, "_p5": 5}


def main():
    expected = {}
    for name, make in CASES.items():
        value = make()
        about = {"tensors": describe(value)}
        for suffix, protocol in PROTOCOLS.items():
            file = f"{name}{suffix}.pt"
            torch.save(value, HERE / file, pickle_protocol=protocol)
            expected[file] = about
        file = f"{name}_legacy.pt"
        torch.save(value, HERE / file, _use_new_zipfile_serialization=False)
        expected[file] = about
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    torch.save(tensor, HERE / "tensor.pt")
    expected["tensor.pt"] = {"tensors": describe(tensor)}
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    # What must be refused: a whole module, values that are not the bits.
    torch.save(torch.nn.Linear(2, 1), HERE / "refused_module.pt")
    torch.save({"z": torch.ones(2, dtype=torch.complex64).conj()}, HERE / "refused_conj.pt")
    torch.save({"s": torch.eye(2).to_sparse()}, HERE / "refused_sparse.pt")
    torch.save({"q": torch.ones(2, dtype=torch.complex128)}, HERE / "refused_complex128.pt")
    torch.save({(1, 2): 3}, HERE / "refused_tuple_key.pt")


main()
