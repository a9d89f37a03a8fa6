"""The fast walk over single tokens: draw for draw the general one."""

from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.masking.masker import TOKENS, WORDS, Masker, MaskRule
from data_pipeline.masking.phrases import ALONE, harmonic, no_phrases
from data_pipeline.records import Examples, Segments

CLS, SEP, MASK, SIZE = 1, 2, 3, 300


def sequences(dtype: type, longest: int) -> Segments:
    """Some of all lengths, with [CLS] and [SEP] anywhere, and some of nothing else."""
    rng = np.random.default_rng(longest)
    lengths = np.concatenate([np.arange(1, 200), rng.integers(1, longest + 1, 100)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(1, SIZE, offsets[-1]).astype(dtype)
    tokens[: offsets[5]] = SEP
    count = len(lengths)
    keys = rng.integers(0, 2**63, count).astype(np.uint64)
    return Segments(tokens, offsets, np.ones(count, np.uint16), np.zeros(count, np.int8), keys)


def rule() -> MaskRule:
    """Single tokens, as BERT masks them."""
    return MaskRule(
        grouping=TOKENS,
        span_kind=ALONE,
        across=True,
        continuation=np.zeros(SIZE, np.bool_),
        cls=CLS,
        sep=SEP,
        mask=MASK,
        mask_prob=0.8,
        keep_prob=0.5,
        together=False,
        lengths=harmonic(1),
        units=no_phrases(),
    )


def general(masker: Masker, segments: Segments, seed: int) -> Examples:
    """The same masking by whole words, in a vocabulary in which every token is one."""
    return replace(masker, rule=masker.rule._replace(grouping=WORDS))(segments, seed)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_the_fast_walk_draws_what_the_general_one_does(dtype: type, share: float) -> None:
    masker = Masker(share, 70, rule())
    segments = sequences(dtype, 700)
    for seed in (0, 12345, 2**64 - 1):
        fast, slow = masker(segments, seed), general(masker, segments, seed)
        assert fast == slow
        assert np.diff(fast.masked_offsets).max() == 70
        assert not np.isin(fast.masked_ids, [CLS, SEP]).any()
    assert masker(segments, 1) != masker(segments, 2)


def test_sequences_without_candidates_are_left_alone() -> None:
    masker = Masker(0.15, 20, rule())
    segments = sequences(np.uint16, 100)
    assert np.diff(masker(segments, 1).masked_offsets)[:5].tolist() == [0] * 5
