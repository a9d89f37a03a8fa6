"""Spans, n-grams, phrases and names: what is covered as one, for how long, and what becomes of it."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.jit import take_ragged
from data_pipeline.masking.masker import Masker, group_tokens
from data_pipeline.masking.phrases import (
    CHUNK_WORDS,
    closed_class_words,
    draw_length,
    geometric,
    harmonic,
    join_words,
    phrase_table,
)
from data_pipeline.records import Segments
from data_pipeline.rng import start, words
from data_pipeline.settings import DataSettings, settings_affecting_bytes
from data_pipeline.vocabulary.files import load_vocabulary
from tests.factories.pairs import CLS, FIRST, MASK, SEP, rows, surprise, vocabulary

SIZE = 5000
SPANBERT = np.array([0.22406, 0.17925, 0.1434, 0.11472, 0.09177, 0.07342, 0.05874, 0.04699, 0.03759, 0.03007])
OPEN = "captain island king river ships stone winter lantern harbour sailed slept keeper".split()  # noqa: SIM905
PIECES = [*OPEN, "the", "of", "a", "and", "un", "##der", "##stand", "##ing", ",", ".", "The", "new", "york"]


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]) + "\n")
    return load_vocabulary(path)


@pytest.fixture
def lexicon(tmp_path):
    def write(*lines):
        path = tmp_path / "lexicon.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    return write


def masker(kind, size=SIZE, continuation_every=3, **settings):
    return Masker.from_settings(DataSettings(masking=kind, **settings), vocabulary(size, continuation_every))


def sequences(texts, keys=None, dtype=np.uint16):
    framed = [[CLS, *text, SEP] for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in framed])]).astype(np.int64)
    return Segments(
        tokens=np.concatenate([np.array(s, dtype) for s in framed]),
        offsets=offsets,
        first_lengths=np.diff(offsets).astype(np.uint16),
        labels=np.full(len(texts), -1, np.int8),
        keys=words(1, 2, 3, len(texts)) if keys is None else np.array(keys, np.uint64),
    )


def random_sequences(count=1500, longest=126, size=SIZE):
    generator = np.random.default_rng(0)
    texts = [generator.integers(FIRST, size, generator.integers(2, longest + 1)) for _ in range(count)]
    for text in texts:
        text[len(text) // 2] = SEP
    return sequences(texts)


def covered_sets(examples):
    return [set(p.tolist()) for p in rows(examples.masked_positions.astype(int), examples.masked_offsets)]


def words_of(sequence, continuation, specials=(CLS, SEP)):
    """Positions of each word, told anew; a special token parts words."""
    groups, open_word = [], False
    for position, token in enumerate(sequence.tolist()):
        if token in specials:
            open_word = False
        elif continuation[token] and open_word:
            groups[-1].append(position)
        else:
            groups.append([position])
            open_word = True
    return groups


@pytest.mark.parametrize(
    ("whole_word", "digest"),
    [
        (False, "0d6c3256559292b4bfb3d395477fa306c22ecc3c46ab1f3fefb005f639e2fcef"),
        (True, "dd50f778863a93db4b4e4d034cbd33c5cfd81ae7af62fa41e9c6ac5a4792dc51"),
    ],
)
def test_the_masks_of_tokens_and_words_are_what_they_always_were(whole_word, digest):
    from tests.unit.data_pipeline.masking.test_masker import masker, random_pairs

    examples = masker(whole_word=whole_word)(random_pairs(), 5)
    found = hashlib.sha256()
    for column in (examples.tokens, examples.masked_positions, examples.masked_ids, examples.masked_offsets):
        found.update(np.ascontiguousarray(column).tobytes())
    assert found.hexdigest() == digest


@pytest.mark.parametrize("kind", ["span", "ngram"])
@pytest.mark.parametrize("together", [False, True])
def test_words_are_covered_whole_up_to_the_budget_and_the_original_comes_back(kind, together):
    segments, rule = random_sequences(), masker(kind, replace_together=together)
    examples = rule(segments, 3)
    limits = rule.counts(np.diff(segments.offsets))
    short = 0
    for sequence, tokens, covered, positions, ids, limit in zip(
        rows(segments.tokens, segments.offsets),
        rows(examples.tokens, examples.offsets),
        covered_sets(examples),
        rows(examples.masked_positions.astype(int), examples.masked_offsets),
        rows(examples.masked_ids, examples.masked_offsets),
        limits,
        strict=True,
    ):
        groups = words_of(sequence, rule.rule.continuation)
        assert all(covered.issuperset(g) or covered.isdisjoint(g) for g in groups)
        assert covered <= {position for group in groups for position in group}
        left = [len(g) for g in groups if covered.isdisjoint(g)]
        if kind == "span":  # an n-gram that was given up may leave room
            assert not left or min(left) > limit - len(covered), "a word that fits was passed over"
        assert len(covered) <= limit
        short += len(covered) < limit
        restored = tokens.copy()
        restored[positions] = ids
        assert np.array_equal(restored, sequence)
    assert short < 0.12 * len(limits)


def test_span_lengths_are_spanberts():
    shares = np.diff(geometric(0.2, 10), prepend=0) / geometric(0.2, 10)[-1]
    assert np.abs(shares - SPANBERT).max() < 6e-6
    assert np.abs(np.diff(harmonic(3), prepend=0) / harmonic(3)[-1] - np.array([6, 3, 2]) / 11).max() < 1e-12
    stream, counts = np.zeros(8, np.uint64), np.zeros(10)
    start(stream, np.uint64(1), np.uint64(2), np.uint64(3))
    for _ in range(100_000):
        counts[draw_length(stream, geometric(0.2, 10), 10) - 1] += 1
    assert abs(surprise(counts, SPANBERT)) < 4


def expected_runs(shares, budget):
    """How many runs of each length there are, on average, when lengths are drawn until `budget` words are covered and
    the last is shortened to fit."""
    runs = np.zeros((budget + 1, len(shares)))
    for room in range(1, budget + 1):
        for length, share in enumerate(shares, 1):
            fits = min(length, room)
            runs[room] += share * runs[room - fits]
            runs[room, fits - 1] += share
    return runs[budget]


@pytest.mark.parametrize(
    ("kind", "shares"), [("span", SPANBERT), ("ngram", np.array([6, 3, 2]) / 11)], ids=["span", "ngram"]
)
def test_runs_have_the_lengths_that_were_drawn(kind, shares):
    """Long texts of words of one piece, few of them covered: spans do not meet."""
    budget, length, count = 12, 3000, 800
    rule = masker(kind, continuation_every=0, max_predictions=budget)
    examples = rule(sequences([np.full(length, FIRST)] * count), 1)
    assert (np.diff(examples.masked_offsets) == budget).all()
    found = np.zeros(len(shares))
    for positions in rows(examples.masked_positions.astype(int), examples.masked_offsets):
        breaks = np.flatnonzero(np.diff(positions) > 1)
        for run in np.diff(np.concatenate([[-1], breaks, [budget - 1]])):
            found[min(run, len(shares)) - 1] += 1
    expected = expected_runs(shares, budget) * count
    assert abs(surprise(found, expected)) < 4.5
    even = expected_runs(np.full(len(shares), 1 / len(shares)), budget) * count
    assert surprise(even, expected) > 10


@pytest.mark.parametrize("kind", ["span", "ngram"])
def test_nothing_runs_on_beyond_a_separator(kind):
    text = [FIRST, SEP, *[FIRST] * 300]  # position 1 is a segment of its own, the next one begins at 3
    rule = masker(kind, continuation_every=0, max_predictions=10)
    found = covered_sets(rule(sequences([text] * 4000), 1))
    beside = [3 in covered for covered in found if 1 in covered]
    assert len(beside) > 40
    assert np.mean(beside) < 0.2


def test_an_ngram_that_meets_a_covered_word_is_given_up():
    """Of three words: a pair whose second word is covered already covers nothing, though its first would fit."""
    rule = masker("ngram", continuation_every=0, masked_lm_prob=0.6, max_ngram=2)
    found = {tuple(sorted(covered)) for covered in covered_sets(rule(sequences([[FIRST] * 3] * 500), 1))}
    assert found == {(1, 2, 3), (1, 3), (2, 3)}


@pytest.mark.parametrize(("kind", "shares"), [("span", [1, 4]), ("ngram", [1, 1])])
def test_a_span_begins_at_a_random_token_and_an_ngram_at_a_random_word(kind, shares):
    piece, word = FIRST, FIRST + 1
    text = [word, word, piece, piece, piece]  # a word of one piece, a word of four
    rule = masker(
        kind, max_span=1, max_ngram=1, masked_lm_prob=0.6
    )  # 4 of 7: the first drawn fills it or not
    first = [1 in covered for covered in covered_sets(rule(sequences([text] * 20_000), 1))]
    assert abs(surprise([sum(first), 20_000 - sum(first)], shares)) < 4


def fates(examples, groups_of):
    """(all [MASK], all as they were, none so, mixed) of the groups of positions in `groups_of(n)`."""
    counts = np.zeros(4)
    originals = examples.tokens.copy()
    at = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    originals[at] = examples.masked_ids
    for n in range(len(examples)):
        base = examples.offsets[n]
        for group in groups_of(n):
            shown, was = examples.tokens[base + np.array(group)], originals[base + np.array(group)]
            masks, kept = shown == MASK, shown == was
            mixed = not (masks.all() or kept.all() or not (masks | kept).any())
            counts[3 if mixed else 0 if masks.all() else 1 if kept.all() else 2] += 1
    return counts


def runs_of(examples):
    def of(n):
        positions = examples.masked_positions[examples.masked_offsets[n] : examples.masked_offsets[n + 1]]
        return np.split(positions.astype(int), np.flatnonzero(np.diff(positions) > 1) + 1)

    return of


def test_a_span_is_replaced_together_and_touching_spans_are_one():
    segments = random_sequences()
    settings = {"mask_replace_prob": 0.5, "random_prob": 0.2, "masked_lm_prob": 0.4, "max_predictions": 60}
    one = masker("span", replace_together=True, **settings)(segments, 1)
    counts = fates(one, runs_of(one))
    assert counts[3] <= 2, "a random id may happen to be [MASK] or the one that was there"
    assert abs(surprise(counts[:3], [0.5, 0.3, 0.2])) < 4
    each = masker("span", **settings)(segments, 1)
    assert fates(each, runs_of(each))[3] > 2000


@pytest.mark.parametrize("kind", ["token", "ngram"])
def test_shares_hold_and_a_word_is_replaced_together(kind):
    segments = random_sequences()
    settings = {"whole_word": True, "mask_replace_prob": 0.6, "random_prob": 0.3, "max_ngram": 1}
    rule = masker(kind, replace_together=True, **settings)
    one = rule(segments, 1)

    covered = covered_sets(one)

    def words_in(n):
        sequence = segments.tokens[segments.offsets[n] : segments.offsets[n + 1]]
        return [g for g in words_of(sequence, rule.rule.continuation) if covered[n].issuperset(g)]

    counts = fates(one, words_in)
    assert counts[3] <= 40  # with kind=token a cut word goes with the word before the separator
    assert abs(surprise(counts[:3], [0.6, 0.1, 0.3])) < 4
    each = masker(kind, **settings)(segments, 1)
    shown = each.tokens[np.repeat(each.offsets[:-1], np.diff(each.masked_offsets)) + each.masked_positions]
    masks, kept = (shown == MASK).sum(), (shown == each.masked_ids).sum()
    assert abs(surprise([masks, kept, len(shown) - masks - kept], [0.6, 0.1, 0.3])) < 4
    assert len(shown) > 10_000


@pytest.mark.parametrize("kind", ["span", "ngram"])
def test_a_mask_depends_on_seed_and_key_alone(kind):
    segments, rule = random_sequences(300), masker(kind)
    whole = rule(segments, 9)
    order = np.random.default_rng(0).permutation(300)[:77]
    tokens, offsets = take_ragged(order, segments.offsets, segments.tokens)
    part = Segments(
        tokens, offsets, segments.first_lengths[order], segments.labels[order], segments.keys[order]
    )
    assert rule(part, 9) == whole.take(order)
    assert rule(segments, 10) != whole


def units_in(text, settings, english, chunks):
    """The units of a text, each as a string."""
    ids = np.array([english.ids[piece] for piece in text.split()], np.uint16)
    members, starts = np.empty((2, len(ids) + 1), np.int64)
    specials = (english.cls, english.sep)
    found = group_tokens(ids, specials, True, False, english.continuation, members, starts)
    made = join_words(ids, phrase_table(settings, english, chunks), members, starts, found)
    return [" ".join(english.tokens[ids[m]] for m in members[a:b]) for a, b in pairwise(starts[: made + 1])]


def test_the_longest_entry_of_the_lexicon_is_a_unit(english, lexicon):
    settings = DataSettings(
        lexicon=lexicon("new york", "new york harbour", "king", "understanding of", "of the")
    )
    found = units_in("the new york harbour of new york [SEP] harbour king", settings, english, False)
    assert found == ["the", "new york harbour", "of", "new york", "harbour", "king"]
    found = units_in("un ##der ##stand ##ing of the new stone", settings, english, False)
    assert found == ["un ##der ##stand ##ing of", "the", "new", "stone"]


def test_an_entry_ends_where_a_word_ends(english, lexicon):
    settings = DataSettings(lexicon=lexicon("king under", "un"))
    found = units_in("king un ##der un ##der ##stand king un ##der ##stand", settings, english, False)
    assert found == ["king un ##der", "un ##der ##stand", "king", "un ##der ##stand"]


def test_chunks_lie_between_closed_class_words_and_punctuation(english):
    found = units_in("The captain sailed of a winter island , ships slept .", DataSettings(), english, True)
    assert found == ["The", "captain sailed", "of", "a", "winter island", ",", "ships slept", "."]
    assert CHUNK_WORDS == 4
    found = units_in("king river stone un ##stand ships slept [SEP] king", DataSettings(), english, True)
    assert found == ["king river stone un ##stand", "ships slept", "king"]
    found = units_in("king un ##der river", DataSettings(), english, True)
    assert found == ["king", "un ##der", "river"], "closed-class words may be of several pieces"


def test_an_entry_is_no_part_of_a_chunk(english, lexicon):
    settings = DataSettings(lexicon=lexicon("new york", "captain of the ships", "stone"))
    found = units_in(
        "winter new york harbour slept stone river the captain of the ships", settings, english, True
    )
    assert found == ["winter", "new york", "harbour slept", "stone", "river", "the", "captain of the ships"]


def test_other_languages_have_the_lexicon_alone(english, lexicon):
    german = DataSettings(languages=["de"], lexicon=lexicon("new york"))
    assert units_in("king river new york", german, english, True) == ["king", "river", "new york"]


def test_units_are_covered_whole_and_all_are_taken(english, lexicon):
    settings = DataSettings(masking="phrase", lexicon=lexicon("new york harbour"), max_predictions=20)
    text = "the captain of new york harbour , the keeper un ##der ##stand ##ing the king and river"
    ids = np.array([english.ids[piece] for piece in text.split()], np.uint16)
    rule = Masker.from_settings(settings, english)
    one = sequences([ids])
    tokens = np.concatenate([[english.cls], ids, [english.sep]]).astype(np.uint16)
    segments = Segments(
        np.tile(tokens, 500), np.arange(501) * len(tokens), np.repeat(one.first_lengths, 500),
        np.repeat(one.labels, 500), words(1, 2, 3, 500),
    )  # fmt: skip
    units = [[4, 5, 6], [9, 10, 11, 12, 13]]  # of 19 tokens, 3 are to be covered: the second never fits
    found = covered_sets(rule(segments, 1))
    assert sum(covered == set(units[0]) for covered in found) > 15
    assert all(covered.isdisjoint(units[0]) or covered == set(units[0]) for covered in found)
    assert all(covered.isdisjoint(units[1]) for covered in found)
    assert len(set().union(*found)) == 12, "every other unit is covered at times"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no entry"),
        (b"\n \n", "holds no entry"),
        (b"\xff\xfe", "not UTF-8"),
        (b"dragon\n", "vocabulary knows"),
    ],
)
def test_a_lexicon_that_cannot_be_used_is_refused(english, tmp_path, content, said):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        Masker.from_settings(DataSettings(masking="entity", lexicon=str(path)), english)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"masking": "entity"}, "data.lexicon"),
        ({"masking": "phrase", "languages": ["de"]}, "data.lexicon"),
        ({"masking": "entity", "lexicon": "/nowhere/names.txt"}, "no such file"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(english, wrong, said):
    with pytest.raises(UserError, match=said):
        Masker.from_settings(DataSettings(**wrong), english)


def test_lines_with_unknown_words_are_passed_over(english, lexicon):
    settings = DataSettings(lexicon=lexicon("king dragon", "\ufeffriver", "", "  stone winter\t", "dragon"))
    found = units_in("king [UNK] stone winter [UNK]", settings, english, False)
    assert found == ["king", "[UNK]", "stone winter", "[UNK]"]


def test_the_lexicons_bytes_count_and_not_its_place(tmp_path):
    one, two, three = (tmp_path / name for name in "abc")
    one.write_text("new york\n")
    two.write_text("new york\n")
    three.write_text("New York\n")
    found = [settings_affecting_bytes(DataSettings(lexicon=str(p)))["lexicon"] for p in (one, two, three)]
    assert found[0] == found[1] != found[2]
    assert settings_affecting_bytes(DataSettings())["lexicon"] == ""
    with pytest.raises(UserError, match="no such file"):
        settings_affecting_bytes(DataSettings(lexicon=str(tmp_path / "d")))


def test_the_closed_class_words_come_with_the_package():
    found = closed_class_words()
    assert {"the", "The", "THE", "of", "was", "they", "ll"} <= set(found)
    assert not {"king", "river", "said"} & set(found)
