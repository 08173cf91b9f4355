"""The reference library's view of ONNX files, for the tests of this package.

    oracle.py dump FILE...    a line of JSON for each: its fields, or {"error": ...}
    oracle.py check FILE...   the same, after onnx.checker has accepted the file
    oracle.py make FOLDER     writes models there, and prints their names and fields
    oracle.py versions        prints the version of the format for each opset
"""
import json
import os
import struct
import sys

import numpy as np
import onnx
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

KEEP_ZERO = {"AttributeProto", "Dimension"}


def raw(t):
    """The elements of a tensor in raw form."""
    if t.HasField("raw_data"):
        return t.raw_data
    bits = {TensorProto.UINT4: 4, TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.UINT2: 2, TensorProto.INT2: 2}
    if t.data_type in bits:
        return bytes(v & 255 for v in t.int32_data)
    return numpy_helper.to_array(t).tobytes()


def unknown(m):
    return sorted([u.field_number, u.wire_type, repr(u.data)] for u in UnknownFieldSet(m))


def scalar(v):
    if isinstance(v, float):
        return struct.pack("<f", v).hex()
    if isinstance(v, bytes):
        return v.hex()
    return v if isinstance(v, str) else str(v)


def dump(m):
    name = m.DESCRIPTOR.name
    out = {}
    skip = set()
    if name == "TensorProto":
        skip = {f.name for f in m.DESCRIPTOR.fields if f.name.endswith("_data")} - {"string_data", "external_data"}
        if m.data_location != TensorProto.EXTERNAL and m.data_type != TensorProto.STRING:
            out["raw"] = raw(m).hex()
    for field, v in m.ListFields():
        if field.name in skip:
            continue
        many = field.is_repeated
        if field.message_type:
            v = [dump(x) for x in v] if many else dump(v)
        else:
            if not many and v in ("", b"", 0) and name not in KEEP_ZERO:
                continue
            v = [scalar(x) for x in v] if many else scalar(v)
        out[field.name] = v
    if u := unknown(m):
        out["unknown"] = u
    return out


def load(path, check):
    try:
        if check:
            onnx.checker.check_model(path, full_check=True)
        return dump(onnx.load(path))
    except Exception as e:
        return {"error": str(e)}


def add_unknown(m):
    """Adds fields that no schema has to a message and all messages in it."""
    for field, v in m.ListFields():
        if field.message_type:
            for x in v if field.is_repeated else [v]:
                add_unknown(x)
    m.MergeFromString(bytes.fromhex("c83e07" "d23e03616263" "dd3e01020304"))  # fields 1001 to 1003


FLOATS = [0.0, 1.0, -2.5, 3.140625]


def every_type(raw_form):
    """A tensor of each element type."""
    out = []
    for name, number in sorted(TensorProto.DataType.items()):
        if name == "UNDEFINED":
            continue
        if name == "STRING":
            out.append(helper.make_tensor(name, number, [2], [b"\xff\x00", "ä".encode()]))
            continue
        if name.startswith("FLOAT6") and not raw_form:
            continue  # the library cannot read its own
        values = FLOATS
        if "INT" in name:
            values = [1, 0, 1, 1] if name.startswith("U") else [1, 0, -1, -2]
        if name == "BOOL":
            values = [True, False, True, True]
        if name.startswith("COMPLEX"):
            values = [1 + 2j, -3j, 0.5, 0]
        if name == "FLOAT8E8M0":
            values = [1.0, 2.0, 0.5, 4.0]
        if raw_form:
            t = numpy_helper.from_array(np.array(values).astype(helper.tensor_dtype_to_np_dtype(number)), name)
        else:
            t = helper.make_tensor(name, number, [2, 2], values)
        out.append(t)
    return out


def wide_model():
    """A model with every kind of attribute, type and element."""
    f = TensorProto.FLOAT
    info = helper.make_tensor_value_info
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "local"], ["inner_out"], name="inner node")],
        "inner", [], [info("inner_out", f, None)],
        initializer=[helper.make_tensor("local", f, [], [1.5])])
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sparse", f, [2], [1.0, 2.0]), helper.make_tensor("i", TensorProto.INT64, [2], [0, 3]), [4])
    tensor_type = helper.make_tensor_type_proto(f, ["batch", 3, None])
    types = {
        "sequence": helper.make_sequence_type_proto(tensor_type),
        "optional": helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor_type)),
        "map": helper.make_map_type_proto(TensorProto.INT64, tensor_type),
        "sparse type": helper.make_sparse_tensor_type_proto(f, [2, "n"]),
    }
    opaque = onnx.TypeProto()
    opaque.opaque_type.domain, opaque.opaque_type.name, opaque.denotation = "d", "n", "IMAGE"
    types["opaque"] = opaque
    attributes = dict(
        f=1.25, i=-7, s=b"\xfe bytes", t=helper.make_tensor("t", f, [2], [1, 2]), g=inner,
        floats=[1.0, 0.5], ints=[3, -1, 1 << 40], strings=["a", "", "ü"],
        tensors=[helper.make_tensor("t", TensorProto.INT64, [1], [9])], sp=sparse,
        tp=types["optional"], zero_i=0, zero_f=0.0, empty_s="")
    node = helper.make_node("Any", ["x", "", "FLOAT"], ["y", ""], name="any", domain="com.example", doc_string="a node",
                            overload="o", **attributes)
    node.attribute.append(helper.make_attribute("graphs", [inner]))
    node.attribute.append(helper.make_attribute("sparses", [sparse]))
    node.attribute.append(helper.make_attribute("type_protos", list(types.values())))
    for kind in ("FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS"):
        node.attribute.add(name="empty " + kind, type=getattr(onnx.AttributeProto, kind))
    node.metadata_props.add(key="k", value="v")
    node.device_configurations.add(configuration_id="c", pipeline_stage=2)
    values = [helper.make_value_info(n, t) for n, t in types.items()]
    ranked = info("described", TensorProto.FLOAT16, [0, "n", None], doc_string="of rank 3")
    ranked.type.tensor_type.shape.dim[2].denotation = "DATA_BATCH"
    graph = helper.make_graph(
        [node], "wide", [info("x", f, ["batch", 3])], [info("y", f, [])],
        initializer=every_type(False), doc_string="a graph", value_info=values + [ranked, info("unranked", f, None)],
        sparse_initializer=[sparse])
    graph.metadata_props.add(key="g", value="")
    graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    graph.initializer[0].metadata_props.add(key="t", value="v")
    graph.initializer[0].doc_string = "a tensor"
    ref = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT, doc_string="of the call")
    body = helper.make_node("LeakyRelu", ["p"], ["q"])
    body.attribute.append(ref)
    function = helper.make_function(
        "com.example", "Leak", ["p"], ["q"], [body], [helper.make_opsetid("", 17)], ["other"],
        [helper.make_attribute("slope", 0.5)], doc_string="a function", overload="f",
        value_info=[info("q", f, None)])
    function.metadata_props.add(key="fn", value="1")
    model = helper.make_model(
        graph, producer_name="p", producer_version="1.0", domain="org.example", model_version=-3, doc_string="ä",
        functions=[function], opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 2)], ir_version=11)
    helper.set_model_props(model, {"b": "2", "a": "1"})
    model.training_info.add().initialization.name = "init"
    model.configuration.add(name="c", num_devices=2, device=["0", "1"])
    return model


def make(folder):
    models = {"wide": wide_model(), "unknown": wide_model()}
    add_unknown(models["unknown"])
    # Other encodings of the same: packed lists, numbers one at a time.
    raws = wide_model()
    del raws.graph.initializer[:]
    raws.graph.initializer.extend(every_type(True))
    models["raw"] = raws
    for name, model in models.items():
        with open(os.path.join(folder, name + ".onnx"), "wb") as out:
            out.write(model.SerializeToString())
        print(json.dumps([name, dump(model)]))
    for name, one in ("external", False), ("external_files", True):
        model = helper.make_model(helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])],
            initializer=[numpy_helper.from_array(np.arange(64 * 32, dtype=np.float32).reshape(64, 32), "w"),
                         numpy_helper.from_array(np.arange(700, dtype=np.float16), "unused"),
                         numpy_helper.from_array(np.arange(3, dtype=np.int64), "small")]),
            opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        want = dump(model)
        convert_model_to_external_data(model, all_tensors_to_one_file=not one, location=None if one else name + ".data", size_threshold=100)
        onnx.save(model, os.path.join(folder, name + ".onnx"))
        print(json.dumps([name, want]))


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "versions":
    print(json.dumps({v: ir for (domain, v), ir in helper.OP_SET_ID_VERSION_MAP.items() if domain == "ai.onnx"}))
else:
    for path in sys.argv[2:]:
        print(json.dumps(load(path, sys.argv[1] == "check")))
