"""The text generator: deterministic, exact lengths, and answers that the text holds once."""

import gzip
import json
import random

import pytest
import torch

from fpatrain import data, export, grammar, tokens


@pytest.fixture(scope="module")
def tokenizer():
    return tokens.build()


def test_tokenizer_is_deterministic(tokenizer):
    assert tokens.build().to_str() == tokenizer.to_str()


def test_tokenizer_takes_any_text(tokenizer):
    for text in ("The pass key is 58231.", "naïve 日本語 \U0001f600", "  tabs\tand\nlines  ", "x" * 50):
        ids = tokenizer.encode(text).ids
        assert ids[0] == tokens.BOS_ID
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode(" 58231.<|end|>").tokens[1:] == ["Ġ", *"58231", ".", "<|end|>"]
    for number in range(256):
        assert tokenizer.decode(tokenizer.encode(chr(number)).ids) == chr(number)


def test_pieces_are_what_the_tokenizer_does(tokenizer):
    pieces, rng = data.Pieces(tokenizer), random.Random(5)
    for _ in range(50):
        text = grammar.sample_text(rng)
        assert pieces.ids(text, first=True) == tokenizer.encode(text, add_special_tokens=False).ids


def test_batches_are_deterministic(tokenizer):
    def batch(seed):
        return data.training_batch(random.Random(seed), data.Pieces(tokenizer), 96, 4, 3)

    for a, b in zip(batch(1), batch(1)):
        assert torch.equal(a, b)
    assert not torch.equal(batch(1)[0], batch(2)[0])


def test_batches_fill_their_length(tokenizer):
    for _, length, _, most, _ in data.PHASES:
        ids, answers, texts = data.training_batch(random.Random(0), data.Pieces(tokenizer), length, 5, most)
        assert (answers.sum(1) == data.ANSWER_TOKENS).all()
        assert texts[:, 1:].all() and not texts[:, 0].any()
        assert (ids[:, 0] == tokens.BOS_ID).all() and (ids[:, -1] == tokens.END_ID).all()


@pytest.mark.parametrize("task", ["one", "three", "unseen", "number-first"])
def test_evaluation_samples(tokenizer, task):
    pieces = data.Pieces(tokenizer)
    depths = []
    for n in range(10):
        sample = data.evaluation_sample(0, pieces, task, 512, n, 10)
        assert sample == data.evaluation_sample(0, pieces, task, 512, n, 10)
        assert tokenizer.encode(sample.prompt).ids == sample.ids
        assert len(sample.ids) == 512 - data.ANSWER_TOKENS
        # The number stands there once; no distractor and no other key is equal to it.
        words = sample.prompt.replace(".", " ").replace(",", " ").split()
        assert words.count(sample.number) == 1
        depths.append(sample.prompt.index(sample.number) / len(sample.prompt))
        assert abs(depths[-1] - n / 9) < 0.2
    assert depths[0] < 0.1 and depths[-1] > 0.8


def test_evaluation_file_is_deterministic(tokenizer, tmp_path):
    for name in ("a", "b"):
        export.write_evaluation(tmp_path / name, tokenizer, "three", (1, 2), count=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    lines = [json.loads(x) for x in gzip.decompress((tmp_path / "a").read_bytes()).splitlines()]
    assert [x["length"] for x in lines] == [256] * 3 + [512] * 3
    assert [x["depth"] for x in lines[:3]] == [0.0, 0.5, 1.0]
    assert all(x["answer"].startswith(" ") and x["answer"].endswith(".") for x in lines)
