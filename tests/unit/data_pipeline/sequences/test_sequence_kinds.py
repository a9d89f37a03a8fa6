"""Sentence pairs, sentence orders and full sentences, checked token by token on text that tells where it is from."""

from itertools import pairwise

import numpy as np
import pytest

from data_pipeline.loader.packing import original_tokens
from data_pipeline.masking.masker import Masker
from data_pipeline.records import concatenate
from data_pipeline.rng import python_stream
from data_pipeline.sequences.pairs import NextSentencePairs, OrderedPairs, SentencePairs, TwoSegments
from data_pipeline.sequences.single import FullSentences
from data_pipeline.settings import DataSettings
from data_pipeline.stages.google_bert import script_instances
from tests.factories.pairs import (
    CLS,
    FIRST,
    MASK,
    SEP,
    all_segments,
    corpus,
    difference,
    random_corpus,
    rows,
    surprise,
    vocabulary,
)


def cut(kind, text, seed=1, passes=1, **settings):
    recipe = kind.from_settings(DataSettings(**settings), vocabulary(int(text.tokens.max()) + 1))
    return all_segments(recipe, text, 0, len(text), seed, passes)


def pairs_of(segments):
    """Places of A's and of B's tokens in the text, and the label, of each pair; the frame is checked."""
    sequences = rows(segments.tokens.astype(np.int64), segments.offsets)
    for sequence, first, label in zip(sequences, segments.first_lengths, segments.labels, strict=True):
        assert sequence[0] == CLS
        assert sequence[first - 1] == sequence[-1] == SEP
        assert (sequence < FIRST).sum() == (3 if first < len(sequence) else 2)
        a, b = sequence[1 : first - 1] - FIRST, sequence[first:-1] - FIRST
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        yield a, b, int(label)


def documents(text, places):
    return np.searchsorted(text.sentence_starts[text.document_starts], places, "right") - 1


def sentences(text, places):
    return np.searchsorted(text.sentence_starts, places, "right") - 1


# -- single sentences in pairs ------------------------------------------------------------------


def test_sentence_pairs_are_two_whole_sentences_and_each_is_used_once():
    text = random_corpus(400, longest=60)
    segments = cut(SentencePairs, text, sequence_length=123)
    used, labels = [], set()
    for a, b, label in pairs_of(segments):
        for side in (a, b):
            assert np.isin([side[0], side[-1] + 1], text.sentence_starts).all()
            assert len(set(sentences(text, side))) == 1
        if label == 0:
            assert b[0] == a[-1] + 1
            assert documents(text, a[:1]) == documents(text, b[:1])
        else:
            assert documents(text, a[:1]) != documents(text, b[:1])
        used.extend([a, b] if label == 0 else [a])
        labels.add(label)
    assert labels == {0, 1}
    assert np.array_equal(np.concatenate(used), np.arange(text.sentence_starts[-1])), "none lost, none twice"


def test_the_second_sentence_is_random_half_the_time_where_there_is_a_choice():
    text = corpus([40] * 500, np.ones(40 * 500, int))
    labels = [label for a, _, label in pairs_of(cut(SentencePairs, text)) if a[0] % 40 < 39]
    assert abs(surprise(np.bincount(labels), [1, 1])) < 3.5
    assert surprise(np.bincount(labels), [0.53, 0.47]) > 4
    last = [label for a, _, label in pairs_of(cut(SentencePairs, text)) if a[0] % 40 == 39]
    assert set(last) == {1}


def test_random_second_sentences_are_uniform_over_documents_and_their_sentences():
    text = corpus([5] * 40, np.resize([3, 1, 4, 1, 5], 200))
    seconds = [b[0] for _, b, label in pairs_of(cut(SentencePairs, text, passes=300)) if label == 1]
    counts = np.bincount(documents(text, seconds), minlength=40)
    assert abs(surprise(counts, np.ones(40))) < 3.5
    assert abs(surprise(np.bincount(sentences(text, seconds) % 5), np.ones(5))) < 3.5


def test_a_sentence_beyond_the_room_is_cut_into_pieces_and_short_targets_change_nothing():
    text = corpus([2] * 60, np.resize([70, 90], 120))
    used = []
    for a, b, label in pairs_of(cut(SentencePairs, text, sequence_length=43)):
        assert len(a) + len(b) <= 40
        assert label or b[0] == a[-1] + 1
        if a[-1] + 1 not in text.sentence_starts:
            assert len(a) == len(b) == 20
        else:
            assert b[0] in text.sentence_starts, "B begins as A ends, which tells nothing"
        used.extend([a, b] if label == 0 else [a])
    assert np.array_equal(np.concatenate(used), np.arange(text.sentence_starts[-1]))
    text = random_corpus(3000)
    one, other = (
        np.diff(cut(SentencePairs, text, short_seq_prob=share, seed=seed).offsets)
        for share, seed in ((0.0, 2), (1.0, 3))
    )
    assert difference(one, other, np.arange(5, 60)) < 3.5
    assert difference(one, other + 1, np.arange(5, 60)) > 5


# -- two segments without a label ---------------------------------------------------------------


@pytest.mark.parametrize("separators", ["both", "absent"])
def test_two_segments_are_following_text_cut_between_sentences(separators):
    text = random_corpus(400, mean_sentences=30)
    segments = cut(TwoSegments, text, sequence_length=48, short_seq_prob=0.3, separators=separators)
    assert set(segments.labels) == {-1}
    assert np.diff(segments.offsets).max() == 48
    begun, single = [], 0
    for sequence, first in zip(rows(segments.tokens, segments.offsets), segments.first_lengths, strict=True):
        a, b = (side[side >= FIRST].astype(int) - FIRST for side in (sequence[:first], sequence[first:]))
        assert (np.diff(a) == 1).all()
        begun.append(a[0])
        single += len(b) == 0
        if len(b):
            assert b[0] == a[-1] + 1
            assert b[0] in text.sentence_starts
            assert (np.diff(b) == 1).all()
            assert documents(text, a[:1]) == documents(text, b[-1:])
        else:
            assert a[-1] + 1 in text.sentence_starts or len(sequence) == 48
        assert (sequence < FIRST).sum() == (1 if separators == "absent" else 2 + (len(b) > 0))
    assert 0.1 < single / len(begun) < 0.4, "a tenth, and where a document ends"


def test_an_example_of_two_segments_begins_where_the_one_before_ends():
    text = random_corpus(200, mean_sentences=30)
    found = [np.r_[a, b] for a, b, _ in pairs_of(cut(TwoSegments, text, sequence_length=48))]
    assert np.array_equal(np.concatenate(found), np.arange(text.sentence_starts[-1]))
    begun = {places[0] for places in found}
    assert set(text.sentence_starts[text.document_starts[:-1]]) <= begun, "each document begins one"
    assert 0.2 < np.isin(list(begun), text.sentence_starts).mean() < 0.8


# -- the order of two parts ---------------------------------------------------------------------


@pytest.mark.parametrize("short_seq_prob", [0.0, 1.0])
def test_both_parts_are_consecutive_text_and_a_label_says_swapped(short_seq_prob):
    text = corpus([9, 1, 14, 30, 2], np.resize([3, 1, 4, 1, 5, 9, 2, 6], 56))
    labels = set()
    for seed in range(20):
        places = []
        for a, b, label in pairs_of(
            cut(OrderedPairs, text, seed=seed, sequence_length=300, short_seq_prob=short_seq_prob)
        ):
            if label < 0:
                assert len(a) == 1, "the second document is one token"
                places.append(a)
                continue
            former, latter = (b, a) if label == 1 else (a, b)
            assert latter[0] == former[-1] + 1
            assert documents(text, former[:1]) == documents(text, latter[-1:])
            if len(set(sentences(text, np.r_[former, latter]))) > 1:
                assert latter[0] in text.sentence_starts, "cut between sentences where there are some"
            places.extend([former, latter])
            labels.add(label)
        assert np.array_equal(np.concatenate(places), np.arange(text.sentence_starts[-1])), "no token lost"
    assert labels == {0, 1}


def test_half_of_all_chunks_are_swapped_be_they_of_one_sentence_or_more():
    text = corpus(np.resize([1, 12], 6000), np.resize([9, 3, 3, 2, 4], 3000 * 13))
    found = {1: [], 2: []}
    for a, b, label in pairs_of(cut(OrderedPairs, text, sequence_length=24)):
        found[min(2, len(set(sentences(text, np.r_[a, b]))))].append(label)
    for labels in found.values():
        assert abs(surprise(np.bincount(labels), [1, 1])) < 3.5
        assert len(labels) > 2500
    assert surprise(np.bincount(found[2]), [0.47, 0.53]) > 4


def test_one_sentence_is_cut_in_two_anywhere_and_several_between_any_two():
    text = corpus([1] * 6000, [9] * 6000)
    firsts = [len(b if label else a) for a, b, label in pairs_of(cut(OrderedPairs, text, short_seq_prob=0))]
    assert set(firsts) == set(range(1, 9))
    assert abs(surprise(np.bincount(firsts)[1:], np.ones(8))) < 3.5
    text = corpus([5] * 6000, [3] * 30_000)
    firsts = [
        len(b if label else a) // 3 for a, b, label in pairs_of(cut(OrderedPairs, text, short_seq_prob=0))
    ]
    assert abs(surprise(np.bincount(firsts)[1:], np.ones(4))) < 3.5


def test_no_single_token_is_left_and_a_document_of_one_token_has_no_label():
    text = corpus([3, 1, 2], [10, 10, 1, 1, 1, 1])
    found = list(pairs_of(cut(OrderedPairs, text, sequence_length=23, short_seq_prob=0)))
    sizes = [(len(a) + len(b), label < 0) for a, b, label in found]
    assert sizes == [(19, False), (2, False), (1, True), (2, False)], "20 fit, and would leave one token"
    wide = pairs_of(cut(OrderedPairs, text, sequence_length=24, short_seq_prob=0))
    assert [len(a) + len(b) for a, b, _ in wide] == [21, 1, 2]
    alone = corpus([1], [1])
    (single,) = pairs_of(cut(OrderedPairs, alone))
    assert single[0].tolist() == [0]
    assert single[2] == -1


def test_the_order_of_a_single_document_can_be_learned():
    text = corpus([50], np.full(50, 7))
    assert len(cut(OrderedPairs, text)) > 2


# -- sentences across documents -----------------------------------------------------------------


def full(text, **settings):
    segments = cut(FullSentences, text, **settings)
    assert (segments.labels == -1).all()
    assert np.array_equal(segments.first_lengths, np.diff(segments.offsets))
    assert len(np.unique(segments.keys)) == len(segments)
    return [s.astype(np.int64) for s in rows(segments.tokens, segments.offsets)]


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.5])
@pytest.mark.parametrize("separators", [True, False])
def test_full_sentences_hold_every_token_once_a_pass_with_a_separator_between_documents(
    short_seq_prob, separators
):
    text = random_corpus(300, mean_sentences=3, longest=80)
    sequences = full(
        text,
        sequence_length=42,
        short_seq_prob=short_seq_prob,
        passes=2,
        separators="both" if separators else "absent",
    )
    room, starts = 42 - 1 - separators, set(text.sentence_starts.tolist())
    flat, crossing = [], 0
    for sequence in sequences:
        assert sequence[0] == CLS
        assert len(sequence) <= 42
        assert (sequence[-1] == SEP) == separators
        body = sequence[1 : len(sequence) - separators]
        places = body[body != SEP] - FIRST
        owners = documents(text, places)
        borders = np.flatnonzero(np.diff(owners))
        crossing += len(borders)
        assert (body == SEP).sum() == (len(borders) if separators else 0)
        for n, border in enumerate(borders):
            assert not separators or body[border + 1 + n] == SEP
        assert places[-1] + 1 in starts or len(places) == room, "only a sentence beyond the room is cut"
        flat.append(places)
    assert crossing > 200
    whole = np.arange(text.sentence_starts[-1])
    assert np.array_equal(np.concatenate(flat), np.r_[whole, whole]), "pass after pass, nothing lost or twice"
    assert all((np.diff(places) > 0).all() for places in flat), "no sequence spans two passes"


def test_full_sentences_take_as_many_sentences_as_fit_across_documents():
    text = random_corpus(300, mean_sentences=3)
    sequences = full(text, sequence_length=62, short_seq_prob=0)
    for one, other in pairwise(sequences):
        first = other[1] - FIRST
        following = text.sentence_starts[sentences(text, first) + 1] - first
        border = documents(text, first) != documents(text, one[-2] - FIRST)
        assert len(one) + border + following > 62
    assert sum(map(len, sequences)) / len(sequences) > 50


def test_a_sentence_beyond_the_room_goes_on_in_the_next_sequence_and_then_other_documents_follow():
    text = corpus([1, 3, 1], [5, 2, 25, 4, 3])
    lengths = [len(s) for s in full(text, sequence_length=12, short_seq_prob=0)]
    # [CLS] 5 [SEP] 2 [SEP]; 10 of 25; 10 more; 5 left and 4; 3
    assert lengths == [10, 12, 12, 11, 5]


def test_short_targets_are_those_of_the_document_where_a_sequence_begins():
    text = corpus([50] * 400, np.ones(50 * 400, int))
    sequences = full(text, sequence_length=22, short_seq_prob=1.0)
    by_document = {}
    for s in sequences:
        by_document.setdefault(int(documents(text, s[1] - FIRST)), []).append(len(s) - 2)
    targets = [max(lengths) for lengths in by_document.values() if len(lengths) > 2]
    counts = np.bincount(targets, minlength=21)[2:]
    assert len(counts) == 19
    assert abs(surprise(counts, np.ones(19))) < 4
    for lengths in by_document.values():
        assert set(lengths[:-1]) == {lengths[0]} or len(lengths) == 1, "one target for the whole document"


# The fast mode's pairs against the exact mode's, whose draws the golden files hold: chi-square of every figure, each
# of which is shown to see a wrong setting or a wrong draw. The script cuts off what does not fit, the fast mode puts
# it back. So the text is sentences of one token, where nothing is ever cut off; how close the two are on other text is
# the last test.


def figures(examples, text):
    shown = examples.tokens[
        np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    ]
    return {
        "label": examples.labels,
        "length": examples.lengths,
        "first_length": examples.first_lengths,
        "masked": np.diff(examples.masked_offsets),
        "position": examples.masked_positions,
        "kind": np.where(shown == MASK, 0, np.where(shown == examples.masked_ids, 1, 2)),
        **origins(examples, text),
    }


def origins(examples, text):
    """Where the second segments come from: each token of the text tells its place."""
    starts = text.sentence_starts[text.document_starts]
    sequences = rows(original_tokens(examples).astype(np.int64), examples.offsets)
    firsts = examples.first_lengths.astype(int)
    begins = np.array([s[f] - FIRST for s, f in zip(sequences, firsts, strict=True)])
    donors = np.searchsorted(starts, begins, "right") - 1
    sizes = np.diff(starts)[donors]
    random = examples.labels == 1
    second = examples.lengths - firsts - 1
    return {
        "second_length_random": second[random],
        "second_length_next": second[~random],
        "donor": donors[random],
        "donor_tokens": np.log2(sizes[random]),
        "start_of_random": ((begins - starts[donors]) / sizes)[random],
        "start_of_next": ((begins - starts[donors]) / sizes)[~random],
    }


BINS = {
    "label": np.arange(3),
    "length": np.arange(5, 66),
    "first_length": np.arange(3, 66, 3),
    "masked": np.arange(1, 12),
    "position": np.arange(1, 65, 2),
    "kind": np.arange(4),
    "second_length_random": np.arange(1, 62, 2),
    "second_length_next": np.arange(1, 62, 2),
    "donor": np.linspace(0, 8000, 81),
    "donor_tokens": np.arange(0, 10, 0.5),
    "start_of_random": np.linspace(0, 1, 21),
    "start_of_next": np.linspace(0, 1, 21),
}


@pytest.fixture(scope="module")
def text():
    sentences = np.random.default_rng(3).geometric(1 / 45, 8000)
    return corpus(sentences, np.ones(sentences.sum(), int))


@pytest.fixture(scope="module", params=[False, True], ids=["tokens", "whole_words"])
def script(text, request):
    """What the script makes of `text`, in figures."""
    made = script_instances(text, *fast(text, whole_word=request.param), python_stream(11), 2)
    return request.param, figures(concatenate([copied(part) for part in made]), text)


def copied(part):
    return part.take(np.arange(len(part)))


def fast(text, **settings):
    values = DataSettings(**{"sequence_length": 64, "max_predictions": 10, **settings})
    words = vocabulary(int(text.tokens.max()) + 1, 5)
    return NextSentencePairs.from_settings(values, words), Masker.from_settings(values, words)


def by_recipe(text, **settings):
    cutter, masker = fast(text, **settings)
    return figures(masker(all_segments(cutter, text, 0, len(text), 5, 2), 5), text)


def test_the_fast_mode_has_the_scripts_distributions(text, script):
    whole_word, expected = script
    found = by_recipe(text, whole_word=whole_word)
    for figure, bins in BINS.items():
        assert difference(found[figure], expected[figure], bins) < 4, figure


@pytest.mark.parametrize(
    ("setting", "wrong", "figure"),
    [
        ("short_seq_prob", 0.3, "length"),
        ("masked_lm_prob", 0.16, "masked"),
        ("max_predictions", 9, "masked"),
        ("sequence_length", 63, "length"),
        ("sequence_length", 59, "first_length"),
        ("sequence_length", 60, "position"),
    ],
)
def test_these_comparisons_would_see_a_wrong_setting(text, script, setting, wrong, figure):
    whole_word, expected = script
    found = by_recipe(text, **{"whole_word": whole_word, setting: wrong})
    assert difference(found[figure], expected[figure], BINS[figure]) > 6


def test_every_document_is_as_likely_to_be_the_random_next(text, script):
    _, expected = script
    counts = np.bincount(expected["donor"] // 100, minlength=80)
    assert abs(surprise(counts, np.ones(80))) < 4
    found = by_recipe(text)
    assert abs(surprise(np.bincount(found["donor"] // 100, minlength=80), np.ones(80))) < 4


@pytest.mark.parametrize(
    ("figure", "wrong"),
    [
        ("label", lambda f, rng: np.where(rng.random(len(f["label"])) < 0.08, 0, f["label"])),
        ("donor", lambda f, rng: np.minimum(f["donor"], rng.integers(0, 25_000, len(f["donor"])))),
        ("donor_tokens", lambda f, rng: weighted(f["donor_tokens"], 2 ** (f["donor_tokens"] / 10), rng)),
        ("start_of_random", lambda f, rng: f["start_of_random"] * (rng.random(len(f["donor"])) < 0.9)),
        ("start_of_next", lambda f, _: f["start_of_next"] * 0.95),
        ("second_length_random", lambda f, _: f["second_length_random"] * 9 // 10),
        ("second_length_next", lambda f, _: f["second_length_next"] * 9 // 10),
    ],
)
def test_these_comparisons_would_see_a_wrong_draw(text, script, figure, wrong):
    _, expected = script
    found = wrong(by_recipe(text), np.random.default_rng(0))
    assert difference(found, expected[figure], BINS[figure]) > 6


def weighted(values, weights, rng):
    """A sample of the values drawn with these weights: as if donors had been drawn by something of their size."""
    return rng.choice(values, len(values), p=weights / weights.sum())


def test_on_other_text_what_is_put_back_changes_few_figures():
    text = random_corpus(8000, mean_sentences=30)
    made = script_instances(text, *fast(text), python_stream(11), 1)
    expected, found = figures(concatenate([copied(part) for part in made]), text), by_recipe(text)
    assert np.mean(found["length"]) == pytest.approx(np.mean(expected["length"]), rel=0.02)
    assert np.mean(found["label"]) == pytest.approx(np.mean(expected["label"]), abs=0.02)
    for side in ("next", "random"):
        lengths = f"second_length_{side}"
        assert np.mean(found[lengths]) == pytest.approx(np.mean(expected[lengths]), rel=0.15)
