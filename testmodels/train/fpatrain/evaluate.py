"""Free greedy generation with dead keys removed, many prompts side by side."""

import torch

from . import data, grammar
from .model import Session
from .tokens import END_ID

EXACT = 2.0**-25  # removed weight allowed in total a query head in exact mode
FACTORS = (1, 2, 4, 8, 16, 32, 64)


def generate(model, rows, eps, limit=12, chunk=32, pause=lambda: None):
    """Greedy continuations of prompts of one length (lists of ids), up to and with the end
    token, at most `limit` tokens; and the keys held at the end, [layers, B, H].

    Dead keys are removed after every chunk of the prompt and every new token."""
    ids = torch.tensor(rows)
    session = Session(model, len(rows), eps)
    for part in ids.split(chunk, 1):
        pause()
        logits = session.feed(part)
    out = []
    for n in range(limit):
        out.append(logits.argmax(-1))
        if torch.stack(out).eq(END_ID).any(0).all():
            break
        if n < limit - 1:
            logits = session.feed(out[-1].unsqueeze(1))
    texts = []
    for row in torch.stack(out, 1).tolist():
        texts.append(row[: row.index(END_ID) + 1] if END_ID in row else row)
    return texts, session.live(), session.tokens


def measure(model, tokenizer, task, factor, count=50, eps=EXACT, seed=0, pause=lambda: None):
    """Share of exact answers (end token included), share of keys held, and the keys held a
    head ([layers, H], mean over prompts) of a task at factor x the training length."""
    pieces = data.Pieces(tokenizer)
    length = factor * data.TRAINING_LENGTH
    samples = [data.evaluation_sample(seed, pieces, task, length, n, count) for n in range(count)]
    texts, live, tokens = generate(model, [s.ids for s in samples], eps, pause=pause)
    right = 0
    for sample, text in zip(samples, texts):
        want = pieces.ids(grammar.answer(sample.number), first=True) + [END_ID]
        right += text == want
    return right / count, (live.double().mean() / tokens).item(), live.double().mean(1)


def table(model, tokenizer, factors=FACTORS, tasks=("one", "three"), count=50, eps=EXACT, seed=0, log=print):
    """Rows (task, factor, right, kept) of measure(), logged as they come."""
    rows = []
    for task in tasks:
        for factor in factors:
            right, kept, live = measure(model, tokenizer, task, factor, count, eps, seed)
            rows.append((task, factor, right, kept))
            heads = " / ".join(" ".join(f"{x:.0f}" for x in layer) for layer in live.tolist())
            log(f"{task:5} {factor:2}x  right {right:6.1%}  kept {kept:7.3%}  keys a head {heads}")
    return rows
