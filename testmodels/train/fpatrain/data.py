"""Training batches and evaluation prompts of exact token lengths."""

import random
from dataclasses import dataclass

import torch

from . import grammar
from .tokens import BOS_ID, END_ID

TRAINING_LENGTH = 256
ANSWER_TOKENS = 8  # space, five digits, full stop, end
DISTRACTORS = 0.15  # share of filler sentences with a number


class Pieces:
    """Token ids of sentences. The tokenizer splits at spaces before it merges, so the ids of
    a text are those of its words (each with the space before it) in a row."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.words = {}

    def ids(self, text, first=False):
        """Ids of a sentence without BOS; not the first one gets a space in front."""
        out = []
        for n, word in enumerate(text.split(" ")):
            if n > 0 or not first:
                word = " " + word
            found = self.words.get(word)
            if found is None:
                found = self.tokenizer.encode(word, add_special_tokens=False).ids
                if len(found) < 4:  # a word, not a number
                    self.words[word] = found
            out += found
        return out


@dataclass
class Sample:
    """A text: BOS + filler with needles + question = prompt; number is the answer."""

    prompt: str
    ids: list
    number: str
    depth: float


def fillable(room):
    """Whether sentences without numbers, of 9 to 11 tokens, can fill `room` tokens exactly."""
    return -(-room // 11) <= room // 9


def fill(rng, pieces, room, forbidden, numbers):
    """Filler sentences of exactly `room` tokens in all; a share `numbers` of the draws holds a
    distractor number, never one of the forbidden."""
    texts = []
    while room > 0:
        text = grammar.sentence(rng, forbidden, numbers)
        left = room - len(pieces.ids(text))
        if left >= 0 and fillable(left):
            texts.append(text)
            room = left
    return texts


def key_number(rng, repetitive):
    """A key's number; in the given share of cases of three digits only, so that they repeat
    and the number cannot be copied by its last digit alone."""
    if repetitive and rng.random() < repetitive:
        return grammar.key_number(rng, rng.sample("0123456789", 3))
    return grammar.key_number(rng)


def compose(rng, pieces, length, names, depths, asked, distractors=DISTRACTORS, repetitive=0.0,
            wordings=grammar.NEEDLES):
    """A sample whose prompt and answer take exactly `length` tokens.

    names are the keys told, depths (0 to 1) where among the filler; asked indexes
    them; distractors is the share of filler with a number of its own, repetitive that of
    keys with few digits; wordings tell the keys."""
    numbers = []
    while len(numbers) < len(names):
        number = key_number(rng, repetitive)
        if number not in numbers:
            numbers.append(number)
    end = grammar.question(names[asked])
    while True:
        needles = [grammar.needle(rng, name, number, wordings) for name, number in zip(names, numbers)]
        room = length - 1 - ANSWER_TOKENS - len(pieces.ids(end))
        room -= sum(len(pieces.ids(text)) for text in needles)
        if room < 18:
            raise ValueError(f"length {length} cannot hold {len(names)} keys")
        if fillable(room):
            break
    texts = fill(rng, pieces, room, numbers, distractors)
    # The first text of all is without the space before it.
    places = sorted(((round(d * len(texts)), n) for n, d in enumerate(depths)), reverse=True)
    for place, n in places:
        texts.insert(place, needles[n])
    texts.append(end)
    ids = [BOS_ID]
    for n, text in enumerate(texts):
        ids += pieces.ids(text, first=n == 0)
    assert len(ids) == length - ANSWER_TOKENS
    return Sample(" ".join(texts), ids, numbers[asked], depths[asked])


# Training phases: share of the steps, tokens, sequences a step, most keys told, distractors.
PHASES = (
    (0.20, 64, 24, 1, DISTRACTORS),
    (0.35, 96, 16, 3, DISTRACTORS),
    (0.20, 160, 9, 3, DISTRACTORS),
    (0.25, 256, 6, 3, DISTRACTORS),
)


def phase(step, steps, phases=PHASES):
    """The phase (tokens, sequences, most keys, distractors) of a step."""
    done = (step + 0.5) / steps
    for share, *rest in phases:
        if done < share:
            return rest
        done -= share
    return rest


def training_batch(rng, pieces, length, sequences, most_keys, distractors=DISTRACTORS, repetitive=0.0):
    """ids [B, T] int64, and a mask [B, T] of the answer tokens (the end token included)
    and one of the tokens that are text. The rest is filled with END."""
    ids = torch.full((sequences, length), END_ID)
    answers = torch.zeros(sequences, length, dtype=torch.bool)
    texts = torch.zeros(sequences, length, dtype=torch.bool)
    for row in range(sequences):
        count = rng.randint(1, most_keys)
        names = rng.sample(grammar.NAMES, count)
        depths = [rng.random() for _ in names]
        sample = compose(rng, pieces, length, names, depths, rng.randrange(count),
                         distractors, repetitive)
        tail = pieces.ids(grammar.answer(sample.number), first=True) + [END_ID]
        start, stop = len(sample.ids), len(sample.ids) + len(tail)
        ids[row, :stop] = torch.tensor(sample.ids + tail)
        answers[row, start:stop] = True
        texts[row, 1:stop] = True
    return ids, answers, texts


def evaluation_sample(seed, pieces, task, length, index, count):
    """Prompt `index` of `count` of a task at a length.

    "one" key, or "three", or three told in wordings never trained on: "unseen" or
    "number-first". The asked key lies at depth index / (count - 1); the others anywhere."""
    rng = random.Random(f"eval-{seed}-{task}-{length}-{index}")
    depth = index / (count - 1) if count > 1 else 0.5
    if task == "one":
        return compose(rng, pieces, length, [grammar.PLAIN], [depth], 0)
    names = rng.sample(grammar.COLOURS, 3)
    wordings = {"three": grammar.NEEDLES, "unseen": grammar.UNSEEN, "number-first": grammar.NUMBER_FIRST}
    return compose(rng, pieces, length, names, [depth, rng.random(), rng.random()], 0, wordings=wordings[task])
