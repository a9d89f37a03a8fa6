"""BERT's pairs, RoBERTa's streams, and what holds for every data recipe, checked token by token on text that tells
where it is from."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.masking.masker import Masker
from data_pipeline.records import Corpus, concatenate
from data_pipeline.sequences import base as segments_module
from data_pipeline.sequences.pairs import NextSentencePairs, SentencePairs, TwoSegments
from data_pipeline.sequences.registry import SEQUENCES, load
from data_pipeline.sequences.single import FullSentences, SingleStreams
from data_pipeline.settings import DataSettings
from tests.factories.pairs import (
    CLS,
    FIRST,
    SEP,
    all_segments,
    corpus,
    random_corpus,
    rows,
    surprise,
    vocabulary,
)


def recipe(kind, text, **settings):
    return kind.from_settings(DataSettings(**settings), vocabulary(int(text.tokens.max()) + 1, 5))


def cut(kind, text, seed=1, passes=1, **settings):
    return all_segments(recipe(kind, text, **settings), text, 0, len(text), seed, passes)


def halves(segments):
    """Places of A's and of B's tokens in the text, and the label, of each pair; the frame is checked."""
    for sequence, first, label in zip(
        rows(segments.tokens.astype(np.int64), segments.offsets),
        segments.first_lengths,
        segments.labels,
        strict=True,
    ):
        assert sequence[0] == CLS
        assert sequence[first - 1] == sequence[-1] == SEP
        assert (sequence == SEP).sum() == 2
        yield sequence[1 : first - 1] - FIRST, sequence[first:-1] - FIRST, int(label)


def document_of(text, places):
    return np.searchsorted(text.sentence_starts[text.document_starts], places, "right") - 1


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


# -- pairs: what holds for every one ------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 16, 64])
def test_pairs_are_two_runs_of_text_and_fit(length):
    text = random_corpus(300)
    segments = cut(NextSentencePairs, text, sequence_length=length, passes=3)
    assert np.diff(segments.offsets).max() == length
    labels = set()
    for a, b, label in halves(segments):
        assert len(a) > 0
        assert len(b) > 0
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        (document,), (donor,) = set(document_of(text, a)), set(document_of(text, b))
        if label == 0:
            assert donor == document
            assert b[0] > a[-1]
        else:
            assert donor != document, "never the same document, never relabelled"
        labels.add(label)
    assert labels == {0, 1}
    assert (segments.labels == 1).mean() > 0.5


def test_without_truncation_true_pairs_touch_and_every_sentence_is_used_once():
    text = corpus([9, 1, 14, 30], np.resize([3, 1, 4, 1, 5, 9, 2, 6], 54))
    for seed in range(20):
        segments = cut(NextSentencePairs, text, seed=seed, sequence_length=300, short_seq_prob=1.0)
        used = []
        for a, b, label in halves(segments):
            ends = np.isin(np.r_[a[0], a[-1] + 1, b[0], b[-1] + 1], text.sentence_starts)
            assert ends.all(), "whole sentences"
            used.extend([a, b] if label == 0 else [a])
            assert label == 1 or b[0] == a[-1] + 1
        assert np.array_equal(np.concatenate(used), np.arange(text.sentence_starts[-1])), (
            "put back, none lost"
        )


def test_a_document_of_one_sentence_always_gets_a_random_next():
    text = corpus([1] * 200, [5] * 200)
    assert (cut(NextSentencePairs, text, passes=3).labels == 1).all()


def test_a_sentence_that_fills_the_room_is_cut_into_pieces_that_follow_one_another():
    text = corpus([1] * 400, [40] * 400)
    labels, begins = [], []
    for a, b, label in halves(cut(NextSentencePairs, text, sequence_length=24)):
        place = a[0] % 40
        if 40 - place >= 21:
            assert (len(a), len(b)) == (11, 10)
            assert (b[0] == a[-1] + 1) == (label == 0)
            labels.append(label)
            begins += [b[0] % 40] * label
        else:
            assert (place + len(a), label) == (40, 1), "the rest of it, with a random one"
            assert len(a) + len(b) == 21
    assert abs(surprise(np.bincount(labels), [1, 1])) < 3.5
    assert set(begins) == set(range(31)), "a random piece begins anywhere, as the next one does"
    assert abs(surprise(np.bincount(begins), np.ones(31))) < 3.5


def test_b_is_cut_to_what_a_leaves_be_it_next_or_random():
    text = corpus([40] * 50, np.full(2000, 13))
    ends = {0: [], 1: []}
    for a, b, label in halves(cut(NextSentencePairs, text, sequence_length=33, short_seq_prob=0)):
        assert b[0] in text.sentence_starts
        assert a[-1] + 1 in text.sentence_starts
        if a[-1] % 520 < 450:
            ends[label].append(len(a) + len(b))
    assert set(ends[0]) == {30}
    assert np.mean(np.array(ends[1]) == 30) > 0.95, "less where a document ends"


# -- pairs: what is drawn -----------------------------------------------------------------------


def targets(short_seq_prob, documents=400, length=43, passes=4):
    """The length of the true pairs that one-word sentences make, a (document, pass): the target itself."""
    text = corpus([400] * documents, np.ones(400 * documents, int))
    found = []
    for start in range(documents):
        pairs = recipe(NextSentencePairs, text, sequence_length=length, short_seq_prob=short_seq_prob)
        for passage in range(passes):
            segments = one_pass(all_segments(pairs, text, start, start + 1, 3, passes), passage, passes, text)
            lengths = {len(a) + len(b) for a, b, label in segments if label == 0 and b[-1] % 400 < 399}
            assert len(lengths) <= 1, "one target for the whole document"
            found.extend(lengths)
    return np.array(found)


def one_pass(segments, passage, passes, text):
    """The halves of the pairs of one pass: a pass begins where A begins with the document's first token."""
    pairs = list(halves(segments))
    firsts = [n for n, (a, _, _) in enumerate(pairs) if a[0] % 400 == 0] + [len(pairs)]
    assert len(firsts) == passes + 1
    return pairs[firsts[passage] : firsts[passage + 1]]


def test_targets_are_drawn_once_a_pass_uniformly_from_two_to_all_room():
    drawn = targets(1.0)
    counts = np.bincount(drawn, minlength=41)
    assert drawn.min() == 2
    assert drawn.max() == 40
    assert abs(surprise(counts[2:], np.ones(39))) < 4


def test_short_targets_are_as_frequent_as_asked():
    drawn = targets(0.1)
    short = (drawn < 40).sum()
    expected = 0.1 * 38 / 39  # a short target may be all the room
    assert abs(surprise([short, len(drawn) - short], [expected, 1 - expected])) < 3.5
    assert surprise([short, len(drawn) - short], [0.15, 0.85]) > 3.5


def test_the_next_is_random_half_the_time_where_there_is_a_choice():
    text = corpus([400] * 800, np.ones(400 * 800, int))
    labels = [
        label for a, _, label in halves(cut(NextSentencePairs, text, sequence_length=33)) if a[0] % 400 < 399
    ]
    counts = np.bincount(labels)
    assert abs(surprise(counts, [1, 1])) < 4
    assert surprise(counts, [0.52, 0.48]) > 4


def test_donors_and_their_first_sentences_are_uniform():
    text = corpus([3] * 30, np.resize([7, 11, 5], 90))
    counts, firsts = np.zeros((30, 30)), np.zeros(3)
    for a, b, label in halves(cut(NextSentencePairs, text, passes=700, sequence_length=64, short_seq_prob=0)):
        if label == 1:
            counts[document_of(text, a[:1])[0], document_of(text, b[:1])[0]] += 1
            firsts[np.searchsorted(text.sentence_starts, b[0], "right") % 3 - 1] += 1
    others = counts[~np.eye(30, dtype=bool)]
    assert np.diag(counts).sum() == 0
    assert abs(surprise(others, np.ones(870))) < 4
    assert abs(surprise(firsts, np.ones(3))) < 4
    assert surprise(counts.ravel(), np.ones(900)) > 4, "a donor drawn from all 30 must be seen"


def test_a_document_of_the_same_key_is_no_donor():
    text = corpus([2, 2, 2], [4] * 6)
    twins = Corpus(
        text.tokens, text.sentence_starts, text.document_starts, np.array([8, 8, 9], np.uint64), text.sources
    )
    pairs = all_segments(recipe(NextSentencePairs, twins), twins, 0, 2, 1, 50)
    assert {int(document_of(twins, b)[0]) for _, b, label in halves(pairs) if label == 1} == {2}


# -- every recipe: what decides a sequence ------------------------------------------------------

EVERY = pytest.mark.parametrize("kind", [*map(load, SEQUENCES)], ids=SEQUENCES)


@EVERY
def test_any_buffer_gives_the_same_and_another_seed_does_not(kind, monkeypatch):
    text = random_corpus(200)
    cutter = recipe(kind, text, sequence_length=40, short_seq_prob=0.5)
    whole = all_segments(cutter, text, 0, 200, 5, 3)
    for size in (512, 700):
        monkeypatch.setattr(segments_module, "BUFFER_TOKENS", size)
        assert same(all_segments(cutter, text, 0, 200, 5, 3), whole)
    assert not same(all_segments(cutter, text, 0, 200, 6, 3), whole)


@EVERY
def test_a_document_yields_the_same_in_every_range(kind):
    text = random_corpus(200)
    cutter = recipe(kind, text, sequence_length=40)
    whole = all_segments(cutter, text, 0, 200, 5, 3)
    parts = [all_segments(cutter, text, a, b, 5, 3) for a, b in pairwise([0, 1, 77, 77, 200])]
    equal = np.array_equal(whole.keys, np.concatenate([p.keys for p in parts]))
    if kind is FullSentences:
        assert not equal, (
            "whose sequences go on from one document to the next: the range is part of the result"
        )
        return
    assert equal
    assert np.array_equal(whole.tokens, np.concatenate([p.tokens for p in parts]))
    masker = Masker.from_settings(DataSettings(), vocabulary(int(text.tokens.max()) + 1, 5))
    assert concatenate([masker(p, 2) for p in parts]) == masker(whole, 2)


@EVERY
def test_each_document_has_the_passes_it_is_given(kind):
    text = random_corpus(60)
    cutter = recipe(kind, text, sequence_length=24)
    passes = np.resize([0, 2, 0, 1, 5, 0], 50)
    found = all_segments(cutter, text, 3, 53, 5, passes)
    if kind is FullSentences:
        alone = [all_segments(cutter, text, 3, 53, 5, np.where(passes > n, 1, 0)) for n in range(5)]
        first = len(alone[0])
        assert np.array_equal(found.keys[:first], alone[0].keys)
        places = np.bincount(found.tokens[found.tokens >= FIRST] - FIRST, minlength=len(text.tokens))
        assert np.array_equal(places[text.sentence_starts[text.document_starts[3:53]]], passes)
        return
    parts = [all_segments(cutter, text, 3 + d, 4 + d, 5, int(n)) for d, n in enumerate(passes) if n]
    assert np.array_equal(found.keys, np.concatenate([p.keys for p in parts]))
    assert np.array_equal(found.tokens, np.concatenate([p.tokens for p in parts]))
    assert len(all_segments(cutter, text, 3, 53, 5, passes * 0)) == 0
    with pytest.raises(ValueError, match="3 numbers of passes for 50"):
        all_segments(cutter, text, 3, 53, 5, passes[:3])


@EVERY
def test_sources_are_those_of_the_documents_at_both_ends(kind):
    text = random_corpus(300)
    text = replace(text, sources=np.resize([0, 1, 2, 300], 300).astype(np.uint16))
    segments = cut(kind, text, sequence_length=24, passes=2)
    first, last = document_of(text, np.stack(ends(segments)))
    assert np.array_equal(segments.first_sources, text.sources[first])
    assert np.array_equal(segments.last_sources, text.sources[last])
    crosses = kind in (NextSentencePairs, SentencePairs, FullSentences)
    assert (segments.first_sources != segments.last_sources).any() == crosses


def ends(segments):
    """Places of the first and of the last token of text of each sequence."""
    sequences = [s[s >= FIRST] for s in rows(segments.tokens.astype(np.int64), segments.offsets)]
    return [s[0] - FIRST for s in sequences], [s[-1] - FIRST for s in sequences]


@EVERY
def test_without_separators_a_sequence_is_cls_and_text(kind):
    text = random_corpus(300)
    settings = {"sequence_length": 40, "short_seq_prob": 0.3}
    bare = cut(kind, text, separators="absent", **settings)
    assert not (bare.tokens == SEP).any()
    assert (bare.tokens == CLS).sum() == len(bare)
    assert (bare.tokens[bare.offsets[:-1]] == CLS).all()
    assert np.diff(bare.offsets).max() == 40, "the room of the separators goes to text"
    for sequence, first, label in zip(
        rows(bare.tokens.astype(np.int64), bare.offsets), bare.first_lengths, bare.labels, strict=True
    ):
        if label >= 0 or kind is TwoSegments:
            assert first > 1
            assert first < len(sequence) or label < 0
            assert (np.diff(sequence[1:first]) == 1).all()
            assert (np.diff(sequence[first:]) == 1).all()
        else:
            assert first == len(sequence)
    if kind not in (FullSentences, TwoSegments):  # where one segment alone has more room
        framed = cut(kind, text, **{**settings, "sequence_length": 40 + recipe(kind, text).parts})
        assert np.array_equal(framed.tokens[framed.tokens != SEP], bare.tokens), "the same draws"


@EVERY
def test_without_segment_ids_all_tokens_are_of_segment_0(kind):
    text = random_corpus(100)
    plain, flat = cut(kind, text), cut(kind, text, segment_ids=False)
    assert np.array_equal(flat.first_lengths, np.diff(flat.offsets))
    assert flat.first_lengths.dtype == np.uint16
    assert np.array_equal(flat.tokens, plain.tokens)
    assert np.array_equal(flat.labels, plain.labels)
    assert (plain.first_lengths < np.diff(plain.offsets)).any() == (recipe(kind, text).parts == 2)


@EVERY
def test_the_first_pass_does_not_depend_on_the_number_of_passes(kind):
    text = random_corpus(1, seed=4)
    text = corpus([len(text.sentence_starts) - 1, 1], [*np.diff(text.sentence_starts), 3])
    cutter = recipe(kind, text, sequence_length=16)
    one, three = all_segments(cutter, text, 0, 1, 5, 1), all_segments(cutter, text, 0, 1, 5, 3)
    assert np.array_equal(three.keys[: len(one)], one.keys)
    assert np.array_equal(three.tokens[: len(one.tokens)], one.tokens)


@EVERY
def test_keys_are_unique(kind):
    segments = cut(kind, random_corpus(2000), sequence_length=16, passes=3)
    assert len(np.unique(segments.keys)) == len(segments) > 10_000


@EVERY
def test_a_memory_mapped_corpus_gives_the_same(kind, tmp_path):
    text = random_corpus(100)
    for name, column in vars(text).items():
        np.save(tmp_path / f"{name}.npy", column)
    mapped = Corpus(**{name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in vars(text)})
    narrow = Corpus(text.tokens.astype(np.uint16), *list(vars(text).values())[1:])
    whole = cut(kind, text)
    assert same(cut(kind, mapped), whole)
    assert np.array_equal(cut(kind, narrow).tokens, whole.tokens)
    assert cut(kind, narrow).tokens.dtype == np.uint16


@EVERY
def test_nothing_in_nothing_out_and_recipes_travel_by_pickle(kind):
    text = random_corpus(50)
    cutter = recipe(kind, text)
    assert len(all_segments(cutter, text, 7, 7, 1, 1)) == len(all_segments(cutter, text, 0, 50, 1, 0)) == 0
    masker = Masker.from_settings(DataSettings(whole_word=True), vocabulary(int(text.tokens.max()) + 1, 5))
    assert len(masker(all_segments(cutter, text, 7, 7, 1, 1), 1)) == 0
    copy = pickle.loads(pickle.dumps(cutter))
    segments = all_segments(copy, text, 0, 50, 1, 1)
    assert same(segments, all_segments(cutter, text, 0, 50, 1, 1))
    assert pickle.loads(pickle.dumps(masker))(segments, 1) == masker(segments, 1)


@EVERY
@pytest.mark.parametrize("length", [3, 70_000])
def test_lengths_that_hold_no_pair_or_beyond_16_bits_are_refused(kind, length):
    with pytest.raises(UserError, match="sequence_length"):
        recipe(kind, random_corpus(5), sequence_length=length)


def test_pairs_of_a_single_document_are_refused_with_a_remedy():
    text = random_corpus(1)
    with pytest.raises(UserError, match=r"only one.*objective.name=mlm"):
        cut(NextSentencePairs, text)
    assert len(cut(SingleStreams, text)) > 0


# -- single streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.5])
def test_streams_hold_every_token_once_and_whole_sentences_of_one_document(short_seq_prob):
    text = random_corpus(300, longest=80)
    segments = cut(SingleStreams, text, sequence_length=42, short_seq_prob=short_seq_prob)
    sequences = rows(segments.tokens.astype(np.int64), segments.offsets)
    places = [s[1:-1] - FIRST for s in sequences]
    assert np.array_equal(np.concatenate(places), np.arange(text.sentence_starts[-1]))
    starts = set(text.sentence_starts.tolist())
    for sequence, place in zip(sequences, places, strict=True):
        assert sequence[0] == CLS
        assert sequence[-1] == SEP
        assert len(set(document_of(text, place))) == 1
        assert place[-1] + 1 in starts or len(place) == 40, "only a sentence beyond the room is cut"
    assert (segments.labels == -1).all()
    assert np.array_equal(segments.first_lengths, np.diff(segments.offsets))


def test_streams_take_as_many_sentences_as_fit():
    text = random_corpus(300)
    places = [
        s[1:-1] - FIRST
        for s in rows(*vars_of(cut(SingleStreams, text, sequence_length=42, short_seq_prob=0)))
    ]
    for one, other in pairwise(places):
        if document_of(text, one[:1]) == document_of(text, other[:1]):
            first_end = text.sentence_starts[np.searchsorted(text.sentence_starts, other[0], "right")]
            assert first_end - one[0] > 40


def vars_of(segments):
    return segments.tokens.astype(np.int64), segments.offsets


def test_what_is_left_of_a_long_sentence_begins_the_next_stream():
    text = corpus([3], [2, 25, 4])
    lengths = np.diff(cut(SingleStreams, text, sequence_length=12, short_seq_prob=0).offsets) - 2
    assert lengths.tolist() == [2, 10, 10, 9]  # 25 = 10 + 10 + 5, and the 5 goes on with the last 4


def test_short_targets_make_short_streams():
    text = corpus([50] * 400, np.ones(50 * 400, int))
    lengths = np.diff(cut(SingleStreams, text, sequence_length=12, short_seq_prob=1.0).offsets) - 2
    firsts = [
        np.diff(
            all_segments(
                recipe(SingleStreams, text, sequence_length=12, short_seq_prob=1.0), text, d, d + 1, 1, 1
            ).offsets
        )[0]
        - 2
        for d in range(400)
    ]
    assert set(firsts) == set(range(2, 11))
    assert abs(surprise(np.bincount(firsts, minlength=11)[2:], np.ones(9))) < 4
    assert lengths.max() == 10
