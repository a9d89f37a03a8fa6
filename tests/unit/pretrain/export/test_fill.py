"""Blanks of held-out text as `fill` shows them: beside the true words, counted, and only where there are any."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.export.fill import Sample, fill_samples, held_out_blanks, run_and_export, write_samples
from pretrain.report.page import render, show_samples
from pretrain.run.files import SAMPLES
from tests.command_line import Maskmill
from tests.unit.pretrain.report.test_report_charts import Page, make_run, page_of


def test_guesses_stand_beside_the_true_word_and_are_counted(tmp_path: Path) -> None:
    samples = [
        Sample("… the united", ".", "nations", [("nations", 0.75), ("states", 0.2)]),
        Sample("port of", "", "spain", [("france", 0.5), ("spain", 0.4)]),
    ]
    write_samples(tmp_path, 900, samples, held_out=True)
    assert held_out_blanks(tmp_path) == [
        "… the united [MASK] .\n    nations 75.0%   states 20.0%   (right)",
        "port of [MASK]\n    france 50.0%   spain 40.0%   (it was spain)",
        "1 of 2 right; blanks in held-out text that nobody chose",
    ]


def test_text_that_was_trained_on_is_not_called_held_out(tmp_path: Path) -> None:
    write_samples(tmp_path, 900, [Sample("the", "sea", "deep", [("deep", 0.9)])], held_out=False)
    with pytest.raises(UserError, match="maskmill export"):
        held_out_blanks(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"held_out": true, "samples": 3}'])
def test_without_blanks_it_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / SAMPLES).write_text(text)
    with pytest.raises(UserError, match="maskmill export"):
        held_out_blanks(tmp_path)


def test_damaged_guesses_are_no_answer(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_text(
        '{"held_out": true, "samples": [{"word": "sea", "guesses": [1, ["a"], [{}, "x"]]}]}'
    )
    assert held_out_blanks(tmp_path)[-1].startswith("0 of 1 right")


def test_a_run_stands_for_its_export(tmp_path: Path) -> None:
    assert run_and_export(tmp_path / "models/base") == (tmp_path / "models", tmp_path / "models/base")
    (tmp_path / "config.yaml").touch()
    assert run_and_export(tmp_path) == (tmp_path, tmp_path / "export")
    assert run_and_export(tmp_path / "export") == (tmp_path, tmp_path / "export")


def test_without_text_it_says_what_is_wanted(maskmill: Maskmill, tmp_path: Path) -> None:
    assert "nothing to fill" in maskmill("fill", str(tmp_path), code=2).stderr


# Blanks that an exported model fills: whole words that nobody chose, with all else as it was written.


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "sea",
    "deep",
    "swim",
    "##ming",
    "fish",
    "in",
    ",",
    "##s",
]


def tokenizer() -> str:
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(WORDS[:5])
    return str(made.to_str())


def example(text: str, masked: dict[int, str]) -> Examples:
    """One example; `masked` maps positions to the words that were there."""
    ids = [WORDS.index(word) for word in text.split()]
    return Examples(
        np.array(ids, np.uint16), np.array([0, len(ids)]), np.array([len(ids)], np.uint16), np.array([-1], np.int8),
        np.array(list(masked), np.uint16), np.array([WORDS.index(word) for word in masked.values()], np.uint16),
        np.array([0, len(masked)]),
    )  # fmt: skip


class Model:
    """Answers "fish" everywhere, and keeps what it was asked."""

    def __init__(self, head: str = "mlm") -> None:
        self.asked: list[str] = []
        self.head = head

    def logits(self, batch: Any) -> dict[str, torch.Tensor]:
        self.asked.append(" ".join(WORDS[i] for i in batch.input_ids.tolist()))
        scores = torch.zeros(1, len(WORDS))
        scores[0, WORDS.index("fish")] = 9.0
        return {self.head: scores}


def test_the_middle_whole_word_is_blank_and_all_else_is_as_written() -> None:
    text = "[CLS] [MASK] fish ##s , the [MASK] deep in sea swim ##ming [SEP]"
    model: Any = Model()
    (found,) = fill_samples(model, example(text, {1: "the", 6: "sea"}), tokenizer(), WORDS.index("[MASK]"))
    assert model.asked == ["[CLS] the fish ##s , the [MASK] deep in sea swim ##ming [SEP]"]
    assert (found.before, found.word, found.after) == ("the fishs, the", "sea", "deep in sea swimming")
    assert found.guesses[0][0] == "fish"
    assert found.guesses[0][1] > 0.9


def test_what_is_shown_is_cut_at_words_and_within_a_segment() -> None:
    text = "[CLS] " + "swim ##ming , " * 4 + "the " + "fish ##s in " * 5 + "[SEP]"
    model: Any = Model()
    (found,) = fill_samples(model, example(text.strip(), {}), tokenizer(), WORDS.index("[MASK]"))
    assert found.before == "swimming, swimming, swimming, swimming,"
    text = "[CLS] " + "swim ##ming ##s , " * 4 + "the " + "fish ##s in " * 6 + "[SEP]"
    (found,) = fill_samples(model, example(text.strip(), {}), tokenizer(), WORDS.index("[MASK]"))
    assert found.before.startswith("… swimmings,")
    assert found.after.endswith("in …")
    text = "[CLS] " + ", " * 3 + "swim ##ming ##s ##s ##s ##s ##s ##s ##s ##s ##s ##s , the [SEP]"
    (found,) = fill_samples(model, example(text, {}), tokenizer(), WORDS.index("[MASK]"))
    assert found.before == "… ,", "no half of a word"


def test_models_and_texts_without_words_have_no_samples() -> None:
    mask = WORDS.index("[MASK]")
    other: Any = Model("discriminator")
    assert fill_samples(other, example("[CLS] the sea [SEP]", {}), tokenizer(), mask) == []
    plain: Any = Model()
    assert fill_samples(plain, example("[CLS] , swim ##ming [SEP]", {}), tokenizer(), mask) == []


SAMPLE = Sample("the <b>deep", "is wide", "sea", [("sea", 0.61), ("<i>", 0.2)])


def test_the_report_shows_them_once_they_are_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert "Blanks" not in page_of(run).text
    show_samples(run, 900, [SAMPLE], held_out=True)
    page = Page((run / "report.html").read_text())
    assert page.wrong == []
    for words in (
        "Examples of held-out text",
        "nobody chose them",
        "step 900",
        "the <b>deep [MASK] is wide",
        "sea 61.0%",
    ):
        assert words in page.text, words
    assert "<strong>sea</strong>" in (run / "report.html").read_text(), "the true word stands out"


def test_a_report_is_drawn_again_only_where_there_was_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    show_samples(run, 900, [SAMPLE], held_out=False)
    assert json.loads((run / SAMPLES).read_text())["samples"][0]["word"] == "sea"
    assert not (run / "report.html").exists()
    render(run)
    assert "Examples of the text that it was trained on" in (run / "report.html").read_text()


def test_a_folder_that_cannot_be_written_does_not_undo_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_samples(tmp_path / "gone", 1, [SAMPLE], held_out=True)
    assert "WARNING" in capsys.readouterr().err
    with pytest.raises(OSError, match="No such file"):
        write_samples(tmp_path / "gone", 1, [SAMPLE], held_out=True)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"samples": 3}', '{"samples": [{"guesses": [1, ["a"], [{}, "x"]]}, 7]}']
)
def test_damaged_samples_do_no_harm(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run")
    (run / SAMPLES).write_text(text)
    assert page_of(run).wrong == []
