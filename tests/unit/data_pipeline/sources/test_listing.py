"""Exponentially smoothed languages and weighted sources: shares, repeats and the passes drawn for documents."""

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings
from data_pipeline.sources.listing import document_passes, language_numbers, repeats, smoothed, source_weights
from tests.factories.pairs import surprise


def settings(languages, **options):
    return DataSettings(sources=[f"{n}.txt" for n in range(len(languages))], languages=languages, **options)


def test_smoothed_shares_are_multilingual_berts():
    assert smoothed([0.8046, 0.1916, 0.0038], 0.7) == pytest.approx([0.7195, 0.2635, 0.0170], abs=1e-4)
    large, small = smoothed([1000, 1], 0.7)
    assert round(large / small) == 126
    assert smoothed([3, 1], 1.0).tolist() == [0.75, 0.25]
    assert smoothed([3, 1, 0], 0.0).tolist() == [0.5, 0.5, 0.0], "a language without text gets none"


def test_repeats_keep_the_amount_of_text_and_give_each_language_its_share():
    amounts = np.array([8000.0, 46.0, 1916.0, 38.0])
    languages = ["en", "en", "ru", "is"]
    taken = amounts * repeats(amounts, settings(languages, smoothing=0.7))
    assert taken.sum() == pytest.approx(10_000, rel=1e-8)
    assert (taken[0] + taken[1], taken[2], taken[3]) == pytest.approx((7195, 2635, 170), abs=1)
    assert taken[0] / taken[1] == pytest.approx(8000 / 46), "sources of one language keep their proportion"


def test_weights_count_as_text_before_the_languages_are_smoothed():
    weighted = repeats([100, 100], settings(["en", "fi"], smoothing=0.7, weights=[3.0, 1.0]))
    repeated = repeats([300, 100], settings(["en", "fi"], smoothing=0.7))
    assert weighted == pytest.approx(repeated * [3, 1], rel=1e-8)
    assert repeats([100, 7], settings(["en", "fi"], weights=[2.5])).tolist() == [2.5, 2.5]
    assert repeats([100, 0], settings(["en", "fi"], smoothing=0.5)).tolist() == [1.0, 1.0], "fi has no text"


def test_nothing_is_smoothed_by_one_or_where_one_language_is_alone():
    assert repeats([7, 9], settings(["en", "fi"])).tolist() == [1.0, 1.0]
    assert repeats([7, 9], settings(["sv", "sv"], smoothing=0.3)).tolist() == [1.0, 1.0]
    assert repeats([7], DataSettings(smoothing=0.3)).tolist() == [1.0]


def test_languages_are_numbered_by_their_first_source():
    names, numbers = language_numbers(settings(["fi", "en", "fi", "zh"]))
    assert names == ["fi", "en", "zh"]
    assert numbers.tolist() == [0, 1, 0, 2]


def test_passes_are_the_whole_part_and_a_draw_of_the_rest():
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 2**63, 30_000).astype(np.uint64)
    sources = np.resize([0, 1, 2], len(keys)).astype(np.uint16)
    passes = document_passes(keys, sources, [0.2, 1.0, 1.35], 5, 2)
    for source, low, share in ((0, 0, 0.4), (1, 2, 0.0), (2, 2, 0.7)):
        found = passes[sources == source]
        assert set(found.tolist()) <= {low, low + 1}
        if share:
            counts = np.bincount(found - low, minlength=2)
            assert abs(surprise(counts, [1 - share, share])) < 3.5
            assert surprise(counts, [1 - share - 0.03, share + 0.03]) > 4
        else:
            assert (found == low).all()
    some = rng.permutation(len(keys))[:100]
    again = document_passes(keys[some], sources[some], [0.2, 1.0, 1.35], 5, 2)
    assert np.array_equal(again, passes[some]), "a document's draw is its own"
    assert not np.array_equal(document_passes(keys, sources, [0.2, 1.0, 1.35], 6, 2), passes)
    assert document_passes(keys, sources, [], 5, 3).tolist() == [3] * len(keys)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: language_numbers(DataSettings(sources=["a", "b", "c"], languages=["en", "fi"])),
            r"data\.languages: has 2 entries for 3 sources",
        ),
        (
            lambda: source_weights(settings(["en"] * 3, weights=[1.0, 2.0])),
            r"data\.weights: has 2 entries for 3 sources",
        ),
        (
            lambda: document_passes(np.zeros(1, np.uint64), np.zeros(1, np.uint16), [5000.0], 1, 3),
            r"15000 passes.*10000",
        ),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(call, line):
    with pytest.raises(UserError, match=line):
        call()
