"""Pseudo-perplexity: the likelihoods of a text's sentences, per token, per word and per character."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.likelihood import Perplexity, score_sentences
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.encoders import encoder_folder

TASK = Perplexity()
TEXT = ["The quick fox jumped over it.", "Dogs slept.", "Some others did not jump over the lazy dogs at all."]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "one.txt").write_text(f"{TEXT[0]} {TEXT[1]}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "two.jsonl").write_text(json.dumps({"text": TEXT[2]}) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_figures_follow_from_the_likelihoods_of_the_sentences(name: str, text: Path) -> None:
    settings = EvaluationSettings()
    encoder = Encoder(encoder_folder(name))
    material = TASK.read(text, settings)
    assert sorted(material.items) == sorted(TEXT)
    assert material.files.keys() == {"one.txt", "more/two.jsonl"}
    one = TASK.read(text / "more" / "two.jsonl", settings)
    assert (one.items, one.files) == ([TEXT[2]], {"two.jsonl": material.files["more/two.jsonl"]})
    found = TASK.score(encoder, material, settings, 1, lambda n: None)
    scores = score_sentences(encoder, TEXT, settings, 1, lambda n: None)
    nats = -scores.log_likelihoods.sum()
    assert found["scores"] == pytest.approx(
        {
            "perplexity": np.exp(nats / scores.tokens.sum()),
            "perplexity_per_word": np.exp(nats / 19),
            "bits_per_character": nats / sum(map(len, TEXT)) / np.log(2),
        },
        rel=1e-5,
    )
    assert found["tokens"] == scores.tokens.sum()
    assert not found["notes"]


def test_the_trivial_answer_is_the_entropy_of_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("the dogs the dogs\n")
    settings = EvaluationSettings()
    material = TASK.read(tmp_path, settings)
    found = TASK.score(Encoder(encoder_folder("bert")), material, settings, 1, lambda n: None)
    counts = score_sentences(
        Encoder(encoder_folder("bert")), ["the dogs the dogs"], settings, 1, lambda n: None
    )
    shares = counts.frequencies[counts.frequencies > 0] / counts.frequencies.sum()
    assert found["trivial"]["perplexity"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


def test_sentences_longer_than_the_positions_are_cut_and_counted(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(f"{' '.join(['dogs'] * 100)}\n")
    settings = EvaluationSettings()
    found = TASK.score(
        Encoder(encoder_folder("bert")), TASK.read(tmp_path, settings), settings, 1, lambda n: None
    )
    assert found["notes"] == ["1 sentences were cut to the encoder's positions"]
    assert found["tokens"] == 64


@pytest.mark.parametrize("name", ["bert", "causal"])
def test_of_a_cut_sentence_only_what_was_scored_counts(name: str, tmp_path: Path) -> None:
    encoder, settings = Encoder(encoder_folder(name)), EvaluationSettings()
    words = ["dogs", "over", "unquickable"] * 30
    builder = encoder.builder(encoder.max_positions)
    fits = next(n for n in range(len(words), 0, -1) if not builder.single(" ".join(words[:n])).was_cut)
    (tmp_path / "one.txt").write_text(f"{' '.join(words)}\n")
    found = TASK.score(encoder, TASK.read(tmp_path, settings), settings, 1, lambda n: None)
    assert len(found["notes"]) == 1
    for figures in (found["scores"], found["trivial"]):
        nats = math.log(figures["perplexity"]) * found["tokens"]
        assert nats / math.log(figures["perplexity_per_word"]) == pytest.approx(fits + 1), "one is cut in two"
        characters = nats / math.log(2) / figures["bits_per_character"]
        assert len(" ".join(words[:fits])) < characters < len(" ".join(words[: fits + 1]))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file to read here"):
        TASK.read(tmp_path, EvaluationSettings())
