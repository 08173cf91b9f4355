"""Writes the files of testdata/python with the Python package gguf (0.19).

The values of each tensor are made by the same generator that the Go test has,
so that the test needs no second copy of them.

    python3 make.py FOLDER
"""

import os
import sys

import numpy as np
import gguf


def content(name, size):
    """Bytes that depend on the tensor's name and on their place."""
    h = 2166136261
    for c in name.encode():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    out = bytearray()
    for _ in range(size):
        h = (h * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(h >> 24)
    return bytes(out)


def add_all(w, folder):
    T = gguf.GGUFValueType
    w.add_quantization_version(2)
    w.add_uint8("s.u8", 255)
    w.add_int8("s.i8", -128)
    w.add_uint16("s.u16", 65535)
    w.add_int16("s.i16", -32768)
    w.add_uint32("s.u32", 2**32 - 1)
    w.add_int32("s.i32", -(2**31))
    w.add_uint64("s.u64", 2**64 - 1)
    w.add_int64("s.i64", -(2**63))
    w.add_float32("s.f32", 0.1)
    w.add_float64("s.f64", 0.1)
    w.add_bool("s.true", True)
    w.add_bool("s.false", False)
    w.add_string("s.str", 'grün 河 \x00 "q"\n')
    for name, values, t in [
        ("u8", [0, 255], T.UINT8),
        ("i8", [-128, 127], T.INT8),
        ("u16", [1, 65535], T.UINT16),
        ("i16", [-32768, 1], T.INT16),
        ("u32", [1, 2**32 - 1], T.UINT32),
        ("i32", [-(2**31), 1], T.INT32),
        ("u64", [1, 2**64 - 1], T.UINT64),
        ("i64", [-(2**63), 1], T.INT64),
        ("f32", [0.1, -0.25, 3e38], T.FLOAT32),
        ("f64", [0.1, 1e300], T.FLOAT64),
        ("bool", [True, False, True], T.BOOL),
        ("str", ["", "a", "ü 河", "line\nbreak"], T.STRING),
    ]:
        w.add_key_value("a." + name, values, T.ARRAY, sub_type=t)
    for t, (length, size) in gguf.GGML_QUANT_SIZES.items():
        if t == gguf.GGMLQuantizationType.Q8_1:
            continue  # the package has its block size wrong (40 bytes; ggml has 36)
        name = "t." + t.name
        data = np.frombuffer(content(name, 3 * 2 * size), dtype=np.uint8)
        w.add_tensor(name, data.reshape(3, 2 * size), raw_dtype=t)
    w.add_tensor("d1", np.frombuffer(content("d1", 20), dtype=np.float32))
    w.add_tensor("d4", np.frombuffer(content("d4", 60), dtype=np.float16).reshape(2, 1, 3, 5))


def write(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    w = gguf.GGUFWriter(os.path.join(folder, "all.gguf"), "test")
    add_all(w, folder)
    write(w)

    w = gguf.GGUFWriter(os.path.join(folder, "align128.gguf"), "test")
    w.add_custom_alignment(128)
    add_all(w, folder)
    write(w)

    w = gguf.GGUFWriter(os.path.join(folder, "split.gguf"), "test", split_max_size=100)
    w.add_string("general.name", "parts")
    for i in range(5):
        name = f"w.{i}"
        w.add_tensor(name, np.frombuffer(content(name, 48), dtype=np.float32).reshape(3, 4))
    write(w)


if __name__ == "__main__":
    main()
