"""Whatever separators pairs are read with, their text, masks and labels are the same, bit by bit."""

from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import Caps, Separators, pack, separator_places
from data_pipeline.masking.masker import Masker
from data_pipeline.records import Examples
from data_pipeline.settings import SEPARATORS, DataSettings
from tests.factories.pairs import CLS, SEP, all_segments, random_corpus, vocabulary

PERIOD = 7
KINDS = [*((kind, False) for kind in SEPARATORS[1:]), ("none", True), ("end", True)]


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Pairs of random text, a quarter of it masked, counted without [CLS] and [SEP]."""
    from data_pipeline.sequences.registry import builder_of

    corpus = random_corpus(60)
    settings = DataSettings(
        sequences="segment_pair", sequence_length=32, masked_lm_prob=0.25, count_specials=False
    )
    words = vocabulary(int(corpus.tokens.max()) + 1)
    segments = all_segments(builder_of(settings, words), corpus, 0, 60, 1, 1)
    return Masker.from_settings(settings, words)(segments, 1)


def rendered(examples: Examples, kind: str, gap: bool = False) -> Examples:
    return Separators(kind, gap, SEP, PERIOD)(examples)


def content(examples: Examples, kind: str) -> tuple[np.ndarray, ...]:
    """Text, its segments and lengths, masks counted in tokens of text, what is shown and wanted there, labels."""
    is_text = ~np.isin(examples.tokens, (CLS, SEP))
    if kind == "period":
        mid, end = separator_places(examples.offsets, examples.first_lengths)
        assert (examples.tokens[[*mid, *end]] == PERIOD).all()
        is_text[[*mid, *end]] = False
    else:
        assert (examples.tokens == SEP).sum() == {"both": 2, "mid": 1, "end": 1, "none": 0}[kind] * len(
            examples
        )
    starts = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets))
    masked = starts + examples.masked_positions
    counted = np.cumsum(is_text)
    firsts = np.repeat(examples.offsets[:-1] + examples.first_lengths, examples.lengths)
    second = np.arange(len(examples.tokens)) >= firsts
    lengths = np.add.reduceat(is_text, examples.offsets[:-1])
    return (
        examples.tokens[is_text], second[is_text], lengths, counted[masked], examples.tokens[masked],
        examples.masked_ids, examples.masked_offsets, examples.labels,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "gap"), KINDS)
def test_content_masks_and_labels_are_those_of_both_separators(
    examples: Examples, kind: str, gap: bool
) -> None:
    found, wanted = content(rendered(examples, kind, gap), kind), content(examples, "both")
    assert len(examples) > 100
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
    text = wanted[2]
    assert np.array_equal(np.diff(examples.masked_offsets), np.maximum(1, np.rint(0.25 * text)))


@pytest.mark.parametrize(("kind", "gap"), KINDS)
def test_positions_are_closed_or_keep_the_gap(examples: Examples, kind: str, gap: bool) -> None:
    made = rendered(examples, kind, gap)
    share = pack(
        made, Caps(10_000, 512, 10_000), batch=0, epochs=np.zeros(len(made), np.int64),
        numbers=np.arange(len(made)),
    )  # fmt: skip
    batch = share.micro_batches[0]
    start, stop = batch.cu_seqlens[:2]
    own, segments = batch.positions[start:stop], batch.segment_ids[start:stop]
    first = int((segments == 0).sum())
    assert own[:first].tolist() == list(range(first))
    assert own[first:].tolist() == [first + gap + n for n in range(stop - start - first)]


def test_masks_of_a_whole_length_count_more(examples: Examples) -> None:
    assert len(examples.masked_ids) < np.rint(0.25 * examples.lengths).sum()


def test_shards_without_separators_are_refused(examples: Examples) -> None:
    bare = replace(examples, tokens=np.where(examples.tokens == SEP, PERIOD, examples.tokens))
    with pytest.raises(UserError, match=r"data\.separators"):
        rendered(bare, "none")
