"""The byte-level BPE tokenizer, trained on the grammar's text."""

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import grammar

BOS, END = "<|bos|>", "<|end|>"
BOS_ID, END_ID = 0, 1


def build(vocab_size=1024, texts=4000, seed=0):
    """Tokenizer with every word of the grammar as one token.

    Digits are split one by one, then words as in GPT-2 without a prefix space; all 256
    bytes are in the vocabulary, so any text can be encoded. BOS is put in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=[BOS, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    rng = random.Random(f"tokenizer-{seed}")
    tokenizer.train_from_iterator((grammar.sample_text(rng) for _ in range(texts)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)])
    assert tokenizer.token_to_id(BOS) == BOS_ID and tokenizer.token_to_id(END) == END_ID
    return tokenizer
