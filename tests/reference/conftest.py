"""What the reference tests share: a small vocabulary, masked examples over it, a small model."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jump",
    "##ed",
    "##s",
    "over",
    "lazy",
    "dog",
    "a",
    "b",
    "is",
    "it",
    "not",
]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """A WordPiece vocabulary of 85 entries in the form of tokenizers' file, lower-casing."""
    fillers = [f"w{i}" for i in range(65)]
    vocabulary = {token: i for i, token in enumerate(SPECIALS + WORDS + fillers)}
    specials = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(SPECIALS)
    ]
    stored = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return Tokenizer.from_str(json.dumps(stored)).to_str()


@pytest.fixture
def settings() -> EncoderSettings:
    """A model small enough to compare in float64, with weights far from zero."""
    return EncoderSettings(
        layers=2, hidden=24, heads=3, intermediate=40, max_positions=48, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3,
    )  # fmt: skip


def masked_examples(count: int, vocabulary: int = 85, longest: int = 48, pairs: bool = True) -> Examples:
    """`count` examples of many lengths, both labels (or none), 15 % masked."""
    draws = np.random.RandomState(7)
    lengths = np.r_[5, longest, draws.randint(6, longest, count - 2)]
    masked = [np.sort(draws.permutation(np.arange(1, n - 1))[: max(1, round(0.15 * n))]) for n in lengths]
    tokens = draws.randint(5, vocabulary, lengths.sum())
    offsets = np.r_[0, np.cumsum(lengths)]
    tokens[offsets[:-1]] = 2
    tokens[offsets[1:] - 1] = 3
    counts = [len(m) for m in masked]
    return Examples(
        tokens=tokens.astype(np.uint16),
        offsets=offsets.astype(np.int64),
        first_lengths=(lengths // 2 if pairs else lengths).astype(np.uint16),
        labels=(np.arange(count) % 2 if pairs else np.full(count, -1)).astype(np.int8),
        masked_positions=np.concatenate(masked).astype(np.uint16),
        masked_ids=draws.randint(5, vocabulary, sum(counts)).astype(np.uint16),
        masked_offsets=np.r_[0, np.cumsum(counts)].astype(np.int64),
    )


@pytest.fixture(scope="session")
def examples() -> Examples:
    """Twenty pairs."""
    return masked_examples(20)


@pytest.fixture
def streams() -> Examples:
    """Twelve single streams."""
    return masked_examples(12, pairs=False)
