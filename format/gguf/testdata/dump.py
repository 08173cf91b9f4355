"""Prints what the Python package gguf reads from a GGUF file, as JSON.

    python3 dump.py FILE
"""

import hashlib
import json
import sys

from gguf import GGUFReader


def main():
    reader = GGUFReader(sys.argv[1])
    fields = []
    for field in reader.fields.values():
        if field.name.startswith("GGUF."):
            continue  # the header, which the package lists as fields
        values = [field.parts[i].tobytes().hex() for i in field.data]
        fields.append({"key": field.name, "types": [t.name for t in field.types], "values": values})
    tensors = []
    for t in reader.tensors:
        tensors.append({
            "name": t.name,
            "type": t.tensor_type.name,
            "ne": [int(n) for n in t.shape],
            "offset": int(t.data_offset),
            "sha256": hashlib.sha256(t.data.tobytes()).hexdigest(),
        })
    json.dump({"alignment": int(reader.alignment), "fields": fields, "tensors": tensors}, sys.stdout)


if __name__ == "__main__":
    main()
