"""BERT's masking: what is covered, by what it is replaced, and that a mask depends on (seed, key) alone."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.jit import take_ragged
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.masking.masker import Masker
from data_pipeline.records import Segments
from data_pipeline.rng import words
from data_pipeline.settings import DataSettings, settings_affecting_bytes
from tests.factories.pairs import CLS, FIRST, MASK, SEP, rows, surprise, vocabulary

SIZE = 60


def masker(size=SIZE, continuation_every=3, **settings):
    return Masker.from_settings(DataSettings(**settings), vocabulary(size, continuation_every))


def pairs(texts, dtype=np.uint16):
    """Segments of the given token lists, each framed by [CLS] and [SEP]."""
    sequences = [[CLS, *text, SEP] for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sequences])]).astype(np.int64)
    return Segments(
        tokens=np.concatenate([np.array(s, dtype) for s in sequences]),
        offsets=offsets,
        first_lengths=np.diff(offsets).astype(np.uint16),
        labels=np.full(len(texts), -1, np.int8),
        keys=words(1, 2, 3, len(texts)),
    )


def random_pairs(count=2000, longest=126, size=SIZE, seed=0):
    generator = np.random.default_rng(seed)
    texts = [generator.integers(FIRST, size, generator.integers(2, longest + 1)) for _ in range(count)]
    for text in texts:
        text[len(text) // 2] = SEP
    return pairs(texts)


def masked_rows(examples):
    return (
        rows(examples.tokens, examples.offsets),
        rows(examples.masked_positions.astype(np.int64), examples.masked_offsets),
        rows(examples.masked_ids, examples.masked_offsets),
    )


def words_of(sequence, continuation):
    """The groups of whole-word masking, told anew from the definition."""
    groups = []
    for position, token in enumerate(sequence.tolist()):
        if token in (CLS, SEP):
            continue
        if continuation[token] and groups:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_original_comes_back_and_only_masked_positions_changed(whole_word):
    segments = random_pairs()
    before = segments.tokens.copy()
    examples = masker(whole_word=whole_word)(segments, 5)
    assert np.array_equal(segments.tokens, before)
    for original, tokens, positions, ids in zip(
        rows(segments.tokens, segments.offsets), *masked_rows(examples), strict=True
    ):
        assert (np.diff(positions) > 0).all()
        assert not np.isin(original[positions], [CLS, SEP]).any()
        restored = tokens.copy()
        restored[positions] = ids
        assert np.array_equal(restored, original)
    for name in ("offsets", "first_lengths", "labels"):
        assert np.array_equal(getattr(examples, name), getattr(segments, name))


@pytest.mark.parametrize("probability", [0.15, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("most", [1, 20, 77])
def test_the_number_masked_is_the_scripts(probability, most):
    texts = [np.full(n, FIRST) for n in range(1, 500)]
    examples = masker(masked_lm_prob=probability, max_predictions=most)(pairs(texts), 1)
    expected = [min(n, most, max(1, round((n + 2) * probability))) for n in range(1, 500)]
    assert np.diff(examples.masked_offsets).tolist() == expected


def test_halves_are_rounded_to_even():
    assert masker(max_predictions=20).counts(np.array([3, 10, 30, 128, 512])).tolist() == [1, 2, 4, 19, 20]


@pytest.mark.parametrize("probability", [0.15, 0.4, 1.0])
def test_without_a_cap_the_rate_alone_decides(probability):
    texts = [np.full(n, FIRST) for n in (1, 30, 126, 510)]
    examples = masker(masked_lm_prob=probability)(pairs(texts), 1)
    expected = [min(len(text), max(1, round((len(text) + 2) * probability))) for text in texts]
    assert np.diff(examples.masked_offsets).tolist() == expected
    assert masker(masked_lm_prob=probability).expected(512) == 512 * probability


def test_exact_mode_has_the_scripts_cap():
    exact = DataSettings(mode="exact", sentences="lines")
    rule = Masker.from_settings(exact, vocabulary(SIZE, 3))
    assert rule.counts(np.array([128, 512])).tolist() == [19, 20]
    twenty = replace(exact, max_predictions=20)
    assert settings_affecting_bytes(exact) == settings_affecting_bytes(twenty), "the same data"
    assert settings_affecting_bytes(DataSettings())["max_predictions"] == 0
    own = Masker.from_settings(replace(exact, max_predictions=77), vocabulary(SIZE, 3))
    assert own.counts(np.array([512])).tolist() == [77]


def test_a_cap_that_binds_is_said_with_the_rate_that_results():
    capped = MaskBudget(0.15, 20)
    assert capped.note(128) == ""
    assert capped.note(512) == (
        "data.max_predictions=20 caps what is predicted: 3.9% of an example of 512 tokens, where "
        "data.masked_lm_prob=0.15 asks for 15.0%; data.max_predictions=0 lifts the cap"
    )
    assert MaskBudget(0.15, 77).note(512) == MaskBudget(0.4, 0).note(512) == ""
    assert [capped.count(n) for n in (1, 128, 512)] == [1, 19, 20]
    for odd in ({}, {"masked_lm_prob": 0.15}, {"masked_lm_prob": [], "max_predictions": 3}):
        assert MaskBudget.stored(odd) is None
    assert MaskBudget.stored({"masked_lm_prob": 0.15, "max_predictions": 0}) == MaskBudget(0.15, 0)


def test_words_are_masked_whole_or_not_at_all():
    segments = random_pairs()
    rule = masker(whole_word=True, max_predictions=12)
    examples = rule(segments, 3)
    fewer = 0
    limits = rule.counts(np.diff(segments.offsets))
    for sequence, limit, positions in zip(
        rows(segments.tokens, segments.offsets), limits, masked_rows(examples)[1], strict=True
    ):
        covered = set(positions.tolist())
        assert len(covered) <= limit
        left = []
        for group in words_of(sequence, rule.rule.continuation):
            assert covered.issuperset(group) or covered.isdisjoint(group)
            if covered.isdisjoint(group):
                left.append(len(group))
        assert not left or min(left) > limit - len(covered), "a word that fits was passed over"
        fewer += len(covered) < limit
    assert fewer > 0


def test_without_whole_words_pieces_are_masked_alone():
    segments = random_pairs()
    rule = masker(max_predictions=12)
    positions = masked_rows(rule(segments, 3))[1]
    broken = sum(
        0 < len(set(group) & set(p.tolist())) < len(group)
        for sequence, p in zip(rows(segments.tokens, segments.offsets), positions, strict=True)
        for group in words_of(sequence, rule.rule.continuation)
    )
    assert broken > 1000


def test_a_cut_word_goes_with_the_word_before_the_separator():
    word, piece = FIRST + 1, FIRST  # with every third id a piece, FIRST is one
    text = [
        word,
        piece,
        SEP,
        piece,
        word,
    ]  # positions 1, 2 and, past the separator, 4 are one word; 5 another
    seen = set()
    for k, key in ((k, key) for k in (1, 3) for key in range(50)):
        one = pairs([text])
        segments = Segments(
            one.tokens, one.offsets, one.first_lengths, one.labels, np.array([key], np.uint64)
        )
        rule = masker(whole_word=True, masked_lm_prob=1.0, max_predictions=k)
        seen.add((k, tuple(rule(segments, 0).masked_positions.tolist())))
    assert seen == {(1, (5,)), (3, (1, 2, 4)), (3, (5,))}


def test_a_piece_with_no_word_before_it_is_a_word():
    one = pairs([[FIRST, FIRST + 1]])
    positions = {
        tuple(
            masker(whole_word=True, max_predictions=1)(
                Segments(one.tokens, one.offsets, one.first_lengths, one.labels, np.array([key], np.uint64)),
                0,
            ).masked_positions.tolist()
        )
        for key in range(50)
    }
    assert positions == {(1,), (2,)}


@pytest.mark.parametrize("whole_word", [False, True])
def test_a_mask_depends_on_seed_and_key_alone(whole_word):
    segments, rule = random_pairs(500), masker(whole_word=whole_word)
    whole = rule(segments, 9)
    order = np.random.default_rng(0).permutation(500)[:123]
    tokens, offsets = take_ragged(order, segments.offsets, segments.tokens)
    part = Segments(
        tokens, offsets, segments.first_lengths[order], segments.labels[order], segments.keys[order]
    )
    assert rule(part, 9) == whole.take(order)
    assert rule(segments, 9) == whole
    assert rule(segments, 10) != whole
    other = Segments(tokens, offsets, part.first_lengths, part.labels, segments.keys[order] + np.uint64(1))
    assert rule(other, 9) != rule(part, 9)


def kinds(segments, examples):
    """How many masked positions show [MASK], the original, or something else."""
    at = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    shown = examples.tokens[at]
    return np.array([(shown == MASK).sum(), (shown == examples.masked_ids).sum()]), shown, len(at)


@pytest.mark.parametrize("whole_word", [False, True])
def test_eighty_ten_ten(whole_word):
    segments = random_pairs(8000)
    (masks, kept), _, total = kinds(segments, masker(whole_word=whole_word)(segments, 1))
    counts = [masks, kept, total - masks - kept]
    # a random id may happen to be [MASK] or the original
    expected = np.array([0.8 + 0.1 / SIZE, 0.1 + 0.1 / SIZE, 0.1 - 0.2 / SIZE])
    assert total > 60_000
    assert abs(surprise(counts, expected)) < 4
    assert surprise(counts, np.add(expected, [-0.01, 0.005, 0.005])) > 5, "one point off must be seen"


def test_random_ids_are_uniform_over_the_whole_vocabulary():
    segments = pairs([np.full(100, FIRST + 1)] * 20_000)
    _, shown, _ = kinds(segments, masker()(segments, 1))
    others = np.flatnonzero(~np.isin(np.arange(SIZE), [MASK, FIRST + 1]))
    counts = np.bincount(shown, minlength=SIZE)[others]
    assert others[0] == 0, "special ids are drawn as well"
    assert abs(surprise(counts, np.ones(len(others)))) < 4
    assert surprise(counts[1:], np.r_[np.ones(len(others) // 2), np.full((len(others) - 1) // 2, 1.1)]) > 4


def test_positions_are_uniform():
    segments = pairs([np.full(100, FIRST + 1)] * 20_000)
    counts = np.bincount(masker()(segments, 1).masked_positions, minlength=102)
    assert counts[0] == counts[101] == 0
    assert abs(surprise(counts[1:101], np.ones(100))) < 4


def test_wide_ids_read_only_columns_and_no_sequences():
    segments = random_pairs(50)
    wide = Segments(
        segments.tokens.astype(np.uint32),
        segments.offsets,
        segments.first_lengths,
        segments.labels,
        segments.keys,
    )
    examples = masker()(wide, 1)
    assert examples.tokens.dtype == examples.masked_ids.dtype == np.uint32
    assert np.array_equal(examples.tokens, masker()(segments, 1).tokens)
    segments.tokens.flags.writeable = False
    assert masker()(segments, 1).tokens.flags.writeable
    none = Segments(
        *(column[:n] for column, n in zip(list(vars(segments).values())[:5], (0, 1, 0, 0, 0), strict=True))
    )
    assert len(masker()(none, 1)) == 0


def test_a_masker_travels_by_pickle():
    segments, rule = random_pairs(50), masker(whole_word=True)
    assert pickle.loads(pickle.dumps(rule))(segments, 1) == rule(segments, 1)
