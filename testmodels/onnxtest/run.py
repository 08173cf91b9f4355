# Runs ONNX models for tests. A request is a line of JSON, then the data of its
# tensors; so is the answer.
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
        names, outputs = model.input_names, model.output_names
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        model = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [i.name for i in model.get_inputs()]
        outputs = [o.name for o in model.get_outputs()]
    sessions.append((model, outputs))
    return names


def answer(request, tensors):
    if request["do"] == "check":
        onnx.checker.check_model(request["path"], full_check=True)
        return {}, []
    if request["do"] == "load":
        names = load(request["path"], request["engine"])
        return {"session": len(sessions) - 1, "inputs": names}, []
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
