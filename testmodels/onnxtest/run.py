# Runs ONNX models for tests. A request is a line of JSON, then the data of its
# tensors; so is the answer. The arguments are libraries of custom operators.
import json
import sys

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

sessions = []


def load(path, engine):
    if engine == "reference":
        model = ReferenceEvaluator(path)
        graph = onnx.load(path, load_external_data=False).graph
        inputs = [
            {
                "name": i.name,
                "type": onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type).name,
                "dims": [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim],
            }
            for i in graph.input
        ]
        outputs = model.output_names
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        for library in sys.argv[1:]:
            options.register_custom_ops_library(library)
        model = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        types = {"float": "float32", "double": "float64"}
        inputs = []
        for i in model.get_inputs():
            name = i.type[len("tensor(") : -1]
            inputs.append({"name": i.name, "type": types.get(name, name), "dims": i.shape})
        outputs = [o.name for o in model.get_outputs()]
    sessions.append((model, outputs))
    return inputs


def answer(request, tensors):
    if request["do"] == "check":
        onnx.checker.check_model(request["path"], full_check=True)
        return {}, []
    if request["do"] == "load":
        inputs = load(request["path"], request["engine"])
        return {"session": len(sessions) - 1, "inputs": inputs}, []
    model, outputs = sessions[request["session"]]
    results = model.run(None, tensors)
    return {}, [(n, np.ascontiguousarray(r).reshape(np.shape(r))) for n, r in zip(outputs, results)]


def main():
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    np.seterr(all="ignore")
    for line in stdin:
        request = json.loads(line)
        tensors = {}
        for t in request["tensors"] or []:
            data = stdin.read(t["bytes"])
            tensors[t["name"]] = np.frombuffer(data, t["type"]).reshape(t["shape"] or [])
        try:
            fields, results = answer(request, tensors)
        except Exception as e:
            fields, results = {"error": f"{type(e).__name__}: {e}"[:2000]}, []
        fields["tensors"] = [
            {"name": n, "type": r.dtype.name, "shape": list(r.shape), "bytes": r.nbytes} for n, r in results
        ]
        stdout.write(json.dumps(fields).encode() + b"\n")
        for _, r in results:
            stdout.write(r.tobytes())
        stdout.flush()


main()
