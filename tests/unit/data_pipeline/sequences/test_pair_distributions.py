"""The fast mode's pairs against the exact mode's, whose draws the golden files hold: chi-square of every figure, each
of which is shown to see a wrong setting or a wrong draw.

The script cuts off what does not fit, the fast mode puts it back. So the text is sentences of one token, where nothing
is ever cut off; how close the two are on other text is the last test."""

import numpy as np
import pytest

from data_pipeline.loader.packing import original_tokens
from data_pipeline.masking.masker import Masker
from data_pipeline.records import concatenate
from data_pipeline.rng import python_stream
from data_pipeline.sequences.pairs import NextSentencePairs
from data_pipeline.settings import DataSettings
from data_pipeline.stages.google_bert import script_instances
from tests.factories.pairs import (
    FIRST,
    MASK,
    all_segments,
    corpus,
    difference,
    random_corpus,
    rows,
    surprise,
    vocabulary,
)


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
