"""Blanks drawn from held-out examples: each word is whole, stood where the blank is, and is drawn, not chosen."""

from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.bins import Caps
from data_pipeline.errors import UserError
from data_pipeline.index import Index
from data_pipeline.loader import held_out
from data_pipeline.units import closed_class_words
from data_pipeline.vocabulary import load_vocabulary
from pretrain.evaluate.blanks import SHORTEST, Blank, held_out_blanks
from pretrain.evaluate.fill import around_the_blank, beside_the_truth, run_and_export
from tests.command_line import setting


@pytest.fixture(scope="module")
def index(tiny: list[str]) -> Index:
    return Index.load(setting(tiny, "data.out"))


def first_segments(index: Index) -> set[tuple[int, ...]]:
    """Ids of the first segments of all held-out examples, before masking and without special tokens."""
    found = set()
    for packed in held_out(index, index.held_out.examples, Caps(10_000, 1000, 10_000)).micro_batches:
        ids = packed.input_ids.copy()
        ids[packed.masked_index] = packed.masked_ids
        for start, stop in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
            first = ids[start:stop][packed.segment_ids[start:stop] == 0]
            found.add(tuple(first[1:-1].tolist()))
    return found


def test_the_word_is_what_stood_there(tiny: list[str], index: Index) -> None:
    vocabulary, texts = load_vocabulary(setting(tiny, "data.vocab")), first_segments(index)
    blanks = held_out_blanks(index, 6)
    assert len(blanks) == 6
    assert len({blank.text for blank in blanks}) > 1
    for blank in blanks:
        assert blank.text.count("[MASK]") == 1
        whole = blank.text.replace("[MASK]", blank.word)
        assert tuple(vocabulary.tokenizer.encode(whole, add_special_tokens=False).ids) in texts
        assert len(blank.word) >= SHORTEST
        assert blank.word.isalpha()
        assert blank.word not in closed_class_words()


def test_the_same_every_time_and_never_more_than_there_are(index: Index) -> None:
    assert held_out_blanks(index, 4) == held_out_blanks(index, 4)
    every = held_out_blanks(index, 10 * index.held_out.examples)
    assert 4 < len(every) <= index.held_out.examples
    assert len(set(every)) > 4


def test_without_held_out_examples_it_says_so(index: Index) -> None:
    none = replace(index, splits={**index.splits, "held_out": replace(index.held_out, shards=())})
    with pytest.raises(UserError, match="no held-out examples"):
        held_out_blanks(none, 3)


def test_guesses_stand_beside_the_word_and_are_counted() -> None:
    blanks = [Blank("the united [MASK] .", "nations"), Blank("port of [MASK] .", "spain")]
    found = [
        ("", [("nations", 0.75), ("states", 0.2), ("kingdom", 0.03), ("arab", 0.02)]),
        ("", [("france", 0.5), ("spain", 0.4), ("the", 0.1)]),
    ]
    assert beside_the_truth(found, blanks) == [
        "the united [MASK] .\n    nations 75.0%   states 20.0%   kingdom 3.0%   (right)",
        "port of [MASK] .\n    france 50.0%   spain 40.0%   the 10.0%   (it was spain)",
        "1 of 2 right, of words drawn at random from held-out text",
    ]


def test_a_long_text_is_cut_around_its_blank() -> None:
    shown = around_the_blank("far " * 40 + "near [MASK] here " + "away " * 40)
    assert len(shown) < 120
    assert shown.startswith("... far")
    assert "near [MASK] here" in shown
    assert shown.endswith("away ...")
    assert around_the_blank("the [MASK] .") == "the [MASK] ."


def test_a_run_stands_for_its_export(tmp_path: Path) -> None:
    assert run_and_export(tmp_path / "models/base") == (tmp_path / "models", tmp_path / "models/base")
    (tmp_path / "config.yaml").touch()
    assert run_and_export(tmp_path) == (tmp_path, tmp_path / "export")
    assert run_and_export(tmp_path / "export") == (tmp_path, tmp_path / "export")
