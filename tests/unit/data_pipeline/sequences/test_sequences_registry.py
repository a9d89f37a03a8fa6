"""Every token of the documents reaches an example in one pass, whatever the sentences and the room; and what is counted
of it is what the examples hold."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.masking.masker import Masker
from data_pipeline.rng import python_stream
from data_pipeline.sequences import base
from data_pipeline.sequences.pairs import NextSentencePairs
from data_pipeline.sequences.registry import SEQUENCES, load, pair_task
from data_pipeline.settings import DataSettings
from data_pipeline.shards.statistics import text_note, text_share, text_statistics
from data_pipeline.stages.google_bert import script_instances
from tests.factories.pairs import FIRST, all_segments, corpus, random_corpus, rows, vocabulary

KINDS = pytest.mark.parametrize("kind", SEQUENCES)

LENGTHS = st.one_of(st.integers(1, 12), st.integers(1, 200), st.just(1))
DOCUMENTS = st.lists(st.lists(LENGTHS, min_size=1, max_size=12), min_size=2, max_size=6)
"""Sentence lengths by document: short sentences, sentences beyond any room, single tokens."""


def builder_of(kind, text, **values):
    words = vocabulary(int(text.tokens.max()) + 1, 5)
    return load(kind).from_settings(DataSettings(sequences=kind, **values), words)


def text_of(documents):
    return corpus([len(lengths) for lengths in documents], [n for lengths in documents for n in lengths])


def runs(kind, segments):
    """The runs of places that each example takes from its own document, in the document's order, and its label."""
    swaps = pair_task(kind) is not None and not pair_task(kind).random_next
    sequences = rows(segments.tokens.astype(np.int64), segments.offsets)
    for sequence, first, label in zip(sequences, segments.first_lengths, segments.labels, strict=True):
        a, b = (side[side >= FIRST] - FIRST for side in (sequence[:first], sequence[first:]))
        if swaps and label == 1:
            a, b = b, a
        elif label == 1:
            b = b[:0]
        yield a, b, int(label)


@KINDS
@settings(max_examples=150, deadline=None)
@given(
    documents=DOCUMENTS,
    length=st.integers(6, 40),
    short=st.sampled_from([0.0, 0.1, 1.0]),
    separators=st.sampled_from(["both", "absent"]),
    seed=st.integers(0, 2**32),
)
def test_every_token_reaches_one_example_in_order(kind, documents, length, short, separators, seed):
    text = text_of(documents)
    builder = builder_of(kind, text, sequence_length=length, short_seq_prob=short, separators=separators)
    segments = all_segments(builder, text, 0, len(text), seed, 1)
    assert np.diff(segments.offsets).max() <= length
    places = []
    for a, b, label in runs(kind, segments):
        assert len(a) + len(b) > 0, "every example takes text"
        if kind != "full_sentences":
            assert (np.diff(np.r_[a, b]) == 1).all(), "the second part follows the first one directly"
        assert label == (label if pair_task(kind) else -1)
        places += [a, b]
    assert np.array_equal(np.concatenate(places), np.arange(len(text.tokens))), "each once, in order"
    tokens = np.diff(text.sentence_starts[text.document_starts])
    assert segments.tokens_used == tokens[tokens >= builder.least_tokens].sum()


@KINDS
def test_the_smallest_rooms_end_and_lose_no_more_than_a_last_token(kind):
    text = random_corpus(60, mean_length=4)
    for length in range(4, 12):
        try:
            builder = builder_of(kind, text, sequence_length=length)
        except Exception as error:
            assert "sequence_length" in str(error)  # noqa: PT017
            continue
        segments = all_segments(builder, text, 0, len(text), 3, 1)
        tokens = np.diff(text.sentence_starts[text.document_starts])
        lost = tokens[tokens >= builder.least_tokens].sum() - segments.tokens_used
        # of an odd document in pairs of two tokens, the last one
        assert 0 <= lost <= (len(text) if kind == "sentence_order" and builder.room == 2 else 0)


@KINDS
def test_later_passes_and_buffers_change_nothing_in_the_count(kind, monkeypatch):
    text = random_corpus(80, mean_length=20, longest=150)
    builder = builder_of(kind, text, sequence_length=32)
    once = all_segments(builder, text, 0, len(text), 7, 1).tokens_used
    assert (
        once
        == len(text.tokens)
        - (np.diff(text.sentence_starts[text.document_starts]) < builder.least_tokens).sum()
    )
    assert all_segments(builder, text, 0, len(text), 7, 5).tokens_used == once
    monkeypatch.setattr(base, "BUFFER_TOKENS", 1 << 10)
    assert all_segments(builder, text, 0, len(text), 7, 3).tokens_used == once
    passes = np.resize([1, 0, 3], len(text))
    tokens = np.diff(text.sentence_starts[text.document_starts])
    few = all_segments(builder, text, 0, len(text), 7, passes).tokens_used
    assert few == tokens[(passes > 0) & (tokens >= builder.least_tokens)].sum()


@pytest.mark.parametrize("kind", [name for name in SEQUENCES if pair_task(name)])
def test_where_b_begins_does_not_tell_the_label_of_text_without_sentence_ends(kind):
    """A and B of both labels end and begin inside sentences alike: a label must be learnt from the words."""
    text = corpus([3] * 300, np.full(900, 400))
    inside = {0: [], 1: []}
    segments = all_segments(builder_of(kind, text, sequence_length=64), text, 0, len(text), 1, 1)
    sequences = rows(segments.tokens.astype(np.int64), segments.offsets)
    for sequence, first, label in zip(sequences, segments.first_lengths, segments.labels, strict=True):
        a_end, b_begin = sequence[first - 2] - FIRST + 1, sequence[first] - FIRST
        inside[int(label)].append((a_end % 400 > 0, b_begin % 400 > 0))
    assert np.abs(np.mean(inside[0], 0) - np.mean(inside[1], 0)).max() < 0.12
    assert np.mean(inside[0]) > 0.8


def test_the_script_loses_text_and_the_count_says_how_much():
    text = random_corpus(200, mean_sentences=12, mean_length=25, longest=150)
    values = DataSettings(sequence_length=64, mode="exact")
    words = SimpleNamespace(**vars(vocabulary(int(text.tokens.max()) + 1, 5)))
    used = np.zeros(2, np.int64)
    builder, masker = NextSentencePairs.from_settings(values, words), Masker.from_settings(values, words)
    seen = []
    for number, part in enumerate(script_instances(text, builder, masker, python_stream(3), 2, used)):
        assert number < 2, "a pass is one piece"
        tokens = part.tokens.astype(np.int64).copy()
        tokens[np.repeat(part.offsets[:-1], np.diff(part.masked_offsets)) + part.masked_positions] = (
            part.masked_ids
        )
        copy = SimpleNamespace(
            tokens=tokens, offsets=part.offsets, first_lengths=part.first_lengths, labels=part.labels
        )
        places = np.concatenate([np.r_[a, b] for a, b, _ in runs("segment_pair", copy)])
        assert len(np.unique(places)) == len(places)
        seen.append(len(places))
    assert used.tolist() == seen
    assert 0.4 < used[0] / len(text.tokens) < 0.95


def test_what_cannot_make_an_example_is_counted_apart():
    counts = text_statistics(np.array([1, 5, 9, 1, 4]), np.array([1, 3, 0, 0, 1]), 2, 8)
    assert counts == {
        "text_documents": 2, "text_tokens": 9, "text_tokens_used": 8,
        "documents_too_short": 1, "tokens_too_short": 1,
        "documents_not_passed": 2, "tokens_not_passed": 10,
    }  # fmt: skip
    assert text_share(counts) == 8 / 9
    assert text_note(counts) == (
        "examples use 88.88% of 9 tokens in 2 documents; left aside: 1 too short for an example, of 1 tokens; "
        "left aside: 2 left out by data.weights, of 10 tokens"
    )


@pytest.mark.parametrize(
    "recorded", [None, {}, {"text_tokens": 5}, {"text_tokens": "9", "text_tokens_used": 9}, 7]
)
def test_shards_without_the_count_say_so(recorded):
    assert text_share(recorded) is None
    assert "not recorded" in text_note(recorded)


def test_where_an_end_is_cut_off_does_not_tell_the_order():
    """Chunks end with a sentence where two fit: cut at the room, nine in ten first ends would say which part it is."""
    text = random_corpus(300, mean_sentences=30, mean_length=20)
    segments = all_segments(builder_of("sentence_order", text, sequence_length=64), text, 0, len(text), 1, 1)
    told = []
    sequences = rows(segments.tokens.astype(np.int64), segments.offsets)
    for sequence, first, label in zip(sequences, segments.first_lengths, segments.labels, strict=True):
        if label >= 0:
            ends = np.isin([sequence[first - 2] - FIRST + 1, sequence[-2] - FIRST + 1], text.sentence_starts)
            told.append((ends[0] < ends[1]) == (label == 1) if ends[0] != ends[1] else 0.5)
    assert np.mean(told) < 0.7
