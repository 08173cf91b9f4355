"""Models as fpaconv writes them to ONNX, in ONNX Runtime as it comes: no plugin, no cache.

A greedy answer is right exactly when, with the right answer as input, every token of it is the
likeliest after those before it; so one pass a prompt will do.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import data, grammar, language, tokens


class Stock:
    """A model in a session of ONNX Runtime (the package onnxruntime)."""

    def __init__(self, path: Path, threads: int = 1):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """Logits [B, T, V] of ids [B, T], from the start."""
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if any(i.name == "position_ids" for i in self.session.get_inputs()):
            given["position_ids"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        for i in self.session.get_inputs():
            if i.name.startswith("past_key_values"):
                shape = [len(ids) if d == "batch_size" else 0 if isinstance(d, str) else d for d in i.shape]
                given[i.name] = np.zeros(shape, np.float64 if "double" in i.type else np.float32)
        return self.session.run(["logits"], given)[0]

    def right(self, task: str, factor: int, count: int, pause: Callable[[], None] = lambda: None) -> float:
        """Share of right answers of evaluation prompts, as evaluate.measure has it."""
        pieces, right = data.Pieces(tokens.build()), 0
        for n in range(count):
            pause()
            sample = data.evaluation_sample(0, pieces, task, factor * data.TRAINING_LENGTH, n, count)
            answer = pieces.ids(grammar.answer(sample.number), first=True) + [tokens.END_ID]
            likeliest = self.logits(np.array([sample.ids + answer[:-1]], np.int64))[0].argmax(-1)
            right += list(likeliest[-len(answer):]) == answer
        return right / count

    def loss(self, ids: np.ndarray, factor: int, pause: Callable[[], None] = lambda: None) -> float:
        """What language.loss_at gives for windows of factor x the training length."""
        window, total = factor * language.LENGTH, 0.0
        rows = ids[: len(ids) // window * window].reshape(-1, window)
        for part in np.array_split(rows, -(-rows.size // 2048)):
            pause()
            logits = self.logits(part[:, :-1]).astype(np.float64)
            most = logits.max(-1, keepdims=True)
            norm = np.log(np.exp(logits - most).sum(-1)) + most[..., 0]
            total += (norm - np.take_along_axis(logits, part[:, 1:, None], -1)[..., 0]).sum()
        return float(total / (rows.shape[0] * (window - 1)))
