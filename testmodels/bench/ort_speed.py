"""Speed of an ONNX model that fpaconv wrote, in ONNX Runtime on the CPU.

    python ort_speed.py model.onnx --prefill 512 --decode 64

Prints one JSON object with tokens a second. States stay in ONNX Runtime: what a step
gives out is bound as input of the next without a copy.
"""

import argparse
import json
import time

import numpy as np
import onnxruntime as ort


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, default=0, help="tokens of a prefill")
    parser.add_argument("--decode", type=int, default=0, help="tokens of a decode")
    parser.add_argument("--repeat", type=int, default=2, help="measurements, of which the mean is printed")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = ort.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
    inputs = {i.name: i for i in session.get_inputs()}
    outputs = [o.name for o in session.get_outputs()]
    vocabulary = session.get_outputs()[outputs.index("logits")].shape[-1]
    random = np.random.default_rng(1)

    def empty(i) -> ort.OrtValue:
        shape = [1 if d == "batch_size" else 0 if isinstance(d, str) else d for d in i.shape]
        return ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float64 if "double" in i.type else np.float32))

    start_states = {name: empty(i) for name, i in inputs.items() if name.startswith("past_key_values")}

    def feed(states: dict, position: int, n: int) -> dict:
        binding = session.io_binding()
        ids = random.integers(vocabulary, size=(1, n), dtype=np.int64)
        binding.bind_cpu_input("input_ids", ids)
        if "attention_mask" in inputs:
            binding.bind_cpu_input("attention_mask", np.ones((1, n), np.int64))
        if "position_ids" in inputs:
            binding.bind_cpu_input("position_ids", np.arange(position, position + n, dtype=np.int64)[None])
        for name, value in states.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        values = dict(zip(outputs, binding.get_outputs()))
        values["logits"].numpy()
        return {name: values[name.replace("past_key_values", "present")] for name in states}

    result: dict[str, float] = {}

    def measure(name: str, n: int, run) -> None:
        seconds = []
        for _ in range(1 + args.repeat):  # the first warms up
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        result[name] = n * args.repeat / sum(seconds[1:])

    if args.prefill:
        measure("prefill", args.prefill, lambda: feed(start_states, 0, args.prefill))
    if args.decode:

        def decode() -> None:
            states = start_states
            for position in range(args.decode):
                states = feed(states, position, 1)

        measure("decode", args.decode, decode)
    print(json.dumps(result))


main()
