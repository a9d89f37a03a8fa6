"""Models of one direction: each reads the text in its own order, and two of them stand side by side."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation, beside
from pretrain.tasks.encoders import Encoder, SideBySide, TwoWay
from pretrain.tasks.inputs import windows
from pretrain.tasks.likelihood import score_sentences
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
SENTENCE = "the quick fox jumped over some lazy dogs"


def one_way(folder: Path, direction: str, **changes: object) -> Path:
    """A causal model's folder that states this direction."""
    shutil.copytree(encoder_folder("causal"), folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "direction": direction, **changes}))
    return folder


@pytest.fixture
def both(tmp_path: Path) -> TwoWay:
    left, right = (one_way(tmp_path / name, name) for name in ("left_to_right", "right_to_left"))
    return TwoWay(left, other=right).checked()


def test_a_right_to_left_model_scores_each_token_by_what_follows_it(both: TwoWay) -> None:
    encoder = Encoder(both.other)
    found = score_sentences(encoder, [SENTENCE, "the fox"], EvaluationSettings(), 1, lambda n: None)
    model = encoder.load("ForCausalLM", 1)
    ids = encoder.tokenizer(SENTENCE, return_tensors="pt")["input_ids"].flip(-1)
    with torch.no_grad():
        logits = model(ids).logits.log_softmax(-1)[0]
    words = range(1, ids.shape[1] - 1)
    expected = sum(float(logits[place - 1, ids[0, place]]) for place in words)
    assert found.log_likelihoods[0] == pytest.approx(expected, abs=1e-4)
    forwards = score_sentences(Encoder(both.folder), [SENTENCE], EvaluationSettings(), 1, lambda n: None)
    assert found.tokens[0] == forwards.tokens[0] == len(words)
    assert abs(found.log_likelihoods[0] - forwards.log_likelihoods[0]) > 1e-3


def test_a_word_is_tagged_at_its_first_token_in_the_text(both: TwoWay) -> None:
    words = ["unquickable", "fox", "jumpedover"]
    one, other = (encoder.builder(32).words(words) for encoder in (Encoder(both.folder), Encoder(both.other)))
    count = len(one.ids)
    assert other.ids == one.ids[::-1]
    assert count > len(words) + 2, "some words are several tokens"
    assert list(one.first_tokens) == list(other.first_tokens) == [0, 1, 2]
    assert [count - 1 - place for place in other.first_tokens.values()] == list(one.first_tokens.values())
    with pytest.raises(UserError, match="reads from right to left"):
        windows(Encoder(both.other).builder(32), "who?", SENTENCE, 8, 4)


def test_states_of_both_directions_stand_side_by_side(both: TwoWay) -> None:
    """Each token's second half sees the token and what follows it, whatever the padding."""
    model = both.load("", 1)
    assert isinstance(model, SideBySide)
    rows = [both.builder(32).single(text).ids for text in (SENTENCE, "the fox")]
    ids = torch.zeros(2, len(rows[0]), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask)
        for row, tokens in enumerate(rows):
            text = torch.tensor([tokens])
            left = Encoder(both.folder).load("", 1)(text, output_hidden_states=True).hidden_states
            right = Encoder(both.other).load("", 1)(text.flip(-1), output_hidden_states=True).hidden_states
            for layer, states in enumerate(found.hidden_states):
                expected = torch.cat([left[layer], right[layer].flip(1)], -1)[0]
                assert torch.allclose(states[row, : len(tokens)], expected, atol=1e-5)
    assert found.last_hidden_state.shape[-1] == model.config.hidden_size == 64


def test_words_are_tagged_from_both(both: TwoWay, tmp_path: Path) -> None:
    lines = [
        line
        for i in range(20)
        for line in (
            *(f"{w}\t{'B-PER' if w == 'fox' else 'O'}" for w in SENTENCE.split()[i % 2 : 5 + i % 3]),
            "",
        )
    ]
    folder = write(tmp_path / "task", {"train.tsv": lines, "dev.tsv": lines[:30]})
    settings = settings_for(
        "tagging", {"features": "last", "epochs": 2, "threads": 1, "tune_share": 0, "patience": 0}
    )
    note = Evaluation("tagging", both, folder, tmp_path / "out", settings, [1], has_floor=True).run(QUIET)
    assert note["task"] == "tagging-two-way-last"
    assert note["encoder"]["beside"] == Encoder(both.other).identity["weights"]
    assert np.isfinite(note["scores"]["dev"]["f1"]["median"])
    assert note["not_pretrained"]
    for changes, save in (({"features": ""}, False), ({}, True)):
        with pytest.raises(UserError, match="cannot fine-tune tagging, nor be saved"):
            Evaluation(
                "tagging", both, folder, tmp_path / "out", replace(settings, **changes), [1], False, save
            )
    assert "features" not in FINE_TUNED["mrpc"].head_settings


@pytest.mark.parametrize("task", ["squad1", "squad2", "questions", "swag", "codah"])
def test_questions_and_choices_are_refused(task: str, both: TwoWay, tmp_path: Path) -> None:
    kind, settings = FINE_TUNED[task], settings_for(task, {})
    data = kind.read(write(tmp_path / "task", FILES[task]), settings)
    for folder in (both.folder, both.other, encoder_folder("causal")):
        with pytest.raises(UserError, match="reads in one direction") as found:
            kind.model(Encoder(folder), data, 1, settings)
        assert "both ways" in found.value.expected
    early = Evaluation(task, Encoder(folder), tmp_path / "task", tmp_path / "out", settings, [1], False)
    with pytest.raises(UserError, match="reads in one direction"):
        early.check()


def test_models_that_do_not_fit_are_refused(both: TwoWay, tmp_path: Path) -> None:
    assert beside(Encoder(both.folder), None) == Encoder(both.folder)
    assert beside(Encoder(both.folder), both.other) == both
    deeper = one_way(tmp_path / "deeper", "right_to_left", num_hidden_layers=3)
    for encoder, other, words in (
        (both.other, both.other, "reads right to left"),
        (both.folder, both.folder, "reads left to right"),
        (both.folder, encoder_folder("bert"), "reads both ways"),
        (both.folder, deeper, "has 3 layers"),
    ):
        with pytest.raises(UserError, match=words):
            beside(Encoder(encoder), other)
