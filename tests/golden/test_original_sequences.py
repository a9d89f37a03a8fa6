"""Pairs and segments against what the original programs cut: golden/sequences/README.md."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data_pipeline.records import Corpus
from data_pipeline.sequences.base import SequenceBuilder
from data_pipeline.sequences.pairs import OrderedPairs, TwoSegments
from data_pipeline.settings import DataSettings
from tests.factories.pairs import FIRST, all_segments, corpus, vocabulary

PASSES = 20_000
CLOSE = 0.015
"""Largest difference of two shares: four deviations of passes that are drawn one by one."""


def golden(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "sequences" / f"{name}.json").read_text())


def cut(kind: type[SequenceBuilder], text: Corpus, **settings: Any) -> list[tuple[NDArray, NDArray, int]]:
    """Places in the text of the tokens of A and of B, and the label, of each example of PASSES passes."""
    builder = kind.from_settings(DataSettings(**settings), vocabulary(int(text.tokens.max()) + 1))
    found = all_segments(builder, text, 0, 1, 3, PASSES)
    each = zip(found.offsets, found.offsets[1:], found.first_lengths, found.labels, strict=False)
    places = found.tokens.astype(np.int64) - FIRST
    return [
        (places[start + 1 : start + first - 1], places[start + first : stop - 1], int(label))
        for start, stop, first, label in each
    ]


def assert_close(values: Iterable[int], theirs: dict[str, float]) -> None:
    found = Counter(str(value) for value in values)
    for value in found.keys() | theirs.keys():
        assert abs(found[value] / found.total() - theirs.get(value, 0)) < CLOSE, value


@pytest.mark.parametrize("case", golden("albert")["cases"])
def test_ordered_pairs_are_those_of_alberts_script(case: dict[str, Any]) -> None:
    theirs = golden("albert")
    lengths = np.resize(theirs["tokens_of_sentences_in_turn"], theirs["sentences"])
    text = corpus([len(lengths)], lengths)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    examples = cut(
        OrderedPairs,
        text,
        sequence_length=theirs["sequence_length"],
        short_seq_prob=case["short_seq_prob"],
    )
    pairs = [(a, b, label) for a, b, label in examples if sentence[a[0]] != sentence[b[0]]]
    assert len(pairs) / PASSES == pytest.approx(case["pairs_per_pass"], rel=CLOSE)
    assert (len(examples) - len(pairs)) / PASSES == pytest.approx(
        case["one_sentence_per_pass"], rel=2 * CLOSE
    )
    assert np.mean([label for _, _, label in pairs]) == pytest.approx(case["swapped"], abs=CLOSE)
    assert_close((len(a) // 4 for a, _, _ in pairs), case["first_tokens"])
    assert_close(((len(a) + len(b) + 3) // 4 for a, b, _ in pairs), case["tokens"])
    assert_close((sentence[a[-1]] - sentence[a[0]] + 1 for a, _, _ in pairs), case["sentences_of_first"])
    assert_close((sentence[min(a[0], b[0])] // 4 for a, b, _ in pairs), case["begins_in_sentence"])


@pytest.mark.parametrize("case", golden("electra")["cases"])
def test_two_segments_are_those_of_electras_script(case: dict[str, Any]) -> None:
    each = case["tokens_of_sentence"]
    text = corpus([case["sentences"]], np.full(case["sentences"], each))
    examples = cut(TwoSegments, text, sequence_length=case["sequence_length"], short_seq_prob=0.05)
    assert {label for _, _, label in examples} == {-1}
    examples = [example for example in examples if example[0][0] == 0]
    assert len(examples) == PASSES
    assert_close((int(not len(b)) for _, b, _ in examples), case["one_segment"])
    assert_close((len(a) // 4 for a, _, _ in examples), case["first_tokens"])
    assert_close(((len(a) + 2 + (len(b) + 1 if len(b) else 0)) // 4 for a, b, _ in examples), case["tokens"])
