"""Attention by kind of token: even where queries are zero, gradients as by finite differences, blocking as by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.records import Examples
from pretrain.tasks.attention import CLASSES, Attention, AttentionTask, _Found, controlled
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.held_out import ExampleBatches
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.encoders import encoder_folder, inputs_of
from tests.factories.shards import random_examples, write_folder
from tests.factories.vocabularies import trained

TASK, VOCABULARY = AttentionTask(), trained("wordpiece")


def framed(count: int = 12) -> Examples:
    """Pairs with [CLS] and [SEP] in their places."""
    found = random_examples(count, 5, size=VOCABULARY.size)
    ordinary = found.tokens
    ordinary[np.isin(ordinary, (VOCABULARY.cls, VOCABULARY.sep))] = 50
    firsts = found.offsets[:-1] + found.first_lengths
    found.tokens[found.offsets[:-1]] = VOCABULARY.cls
    found.tokens[[*(firsts - 1), *(found.offsets[1:] - 1)]] = VOCABULARY.sep
    places = np.repeat(found.offsets[:-1], np.diff(found.masked_offsets)) + found.masked_positions
    found.masked_ids[found.tokens[places] == VOCABULARY.sep] = VOCABULARY.sep
    found.masked_ids[found.tokens[places] == VOCABULARY.cls] = VOCABULARY.cls
    return found


def measured(folder: Path, encoder: Encoder, examples: Examples) -> dict[str, Any]:
    write_folder(folder, [examples], [examples], vocabulary=VOCABULARY)
    settings = EvaluationSettings()
    return TASK.score(inputs_of(encoder, TASK.read(folder, settings), settings))


class Even(Encoder):
    """An encoder whose queries are zero."""

    def load(self, *args: Any, **kwargs: Any) -> Any:
        model = super().load(*args, **kwargs)
        for name, parameter in model.named_parameters():
            if ".self.query." in name:
                torch.nn.init.zeros_(parameter)
        return model


def test_without_queries_attention_is_even(tmp_path: Path) -> None:
    examples = framed()
    found = measured(tmp_path / "s", Even(encoder_folder("bert")), examples)
    assert found["scores"]["sep_attention"] == pytest.approx(found["trivial"]["sep_attention"], rel=1e-5)
    assert found["trivial"]["sep_attention"] == pytest.approx(100 * np.mean(2 / examples.lengths))
    assert np.allclose(np.array(found["heads"]["attention"]).sum(-1), 1, atol=1e-5)
    assert found["kinds"] == list(CLASSES)


def test_gradients_are_those_of_finite_differences() -> None:
    encoder, examples = Encoder(encoder_folder("bert")), framed(1)
    model = encoder.load("ForPreTraining", 1).double()
    batches = ExampleBatches(encoder, torch.device("cpu"))
    sums = _Found(encoder, model, batches, None)
    batch = batches.batch(examples)
    with controlled(model, Attention(keeps=True)) as seen:
        loss = sums._losses(examples, batch)[0].sum()
        gradient = torch.autograd.grad(loss, seen.weights)[1]

    class Nudged(Attention):
        amount = 0.0

        def changed(self, weights: torch.Tensor) -> torch.Tensor:
            self.passed += 1
            if self.passed == 2:
                weights = weights.clone()
                weights[0, 1, 2, 3] += self.amount
            return weights

    ends = []
    for amount in (-1e-5, 1e-5):
        nudged = Nudged()
        nudged.amount = amount
        with torch.no_grad(), controlled(model, nudged):
            ends.append(float(sums._losses(examples, batch)[0].double().sum()))
    assert float(gradient[0, 1, 2, 3]) == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-3, abs=1e-4)


@torch.no_grad()
def test_weights_and_blocking_are_transformers_own(tmp_path: Path) -> None:
    encoder, examples = Encoder(encoder_folder("bert")), framed()
    model = encoder.load("ForPreTraining", 1)
    batch = ExampleBatches(encoder, torch.device("cpu")).batch(examples)
    with controlled(model, Attention(keeps=True)) as seen:
        model(**batch.inputs)
    model.set_attn_implementation("eager")
    theirs = model(**batch.inputs, output_attentions=True).attentions
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(seen.weights, theirs, strict=True))
    # blocked keys are keys that padding hides
    is_sep = batch.inputs["input_ids"] == VOCABULARY.sep
    hidden = {**batch.inputs, "attention_mask": batch.inputs["attention_mask"] * ~is_sep}
    expected = model(**hidden).prediction_logits
    with controlled(model, Attention(is_sep[:, None])):
        blocked = model(**batch.inputs).prediction_logits
    real = batch.inputs["attention_mask"].bool()
    assert torch.allclose(blocked[real], expected[real], atol=1e-4)
    assert not torch.allclose(blocked[real], model(**batch.inputs).prediction_logits[real], atol=1e-3)


def test_blocked_figures_are_differences_from_the_plain_pass(tmp_path: Path) -> None:
    examples = framed()
    scores = measured(tmp_path / "s", Encoder(encoder_folder("bert")), examples)["scores"]
    layers = [name for name in scores if name.startswith("blocked_loss_layer_")]
    assert len(layers) == 2
    assert scores["blocked_loss"] != 0
    assert {"sep_gradient", "sep_attribution", "blocked_nsp_accuracy"} <= scores.keys()
    # without [SEP] there is nothing to attend to or to block
    bare = replace(examples, tokens=np.where(examples.tokens == VOCABULARY.sep, 50, examples.tokens))
    ids = np.where(examples.masked_ids == VOCABULARY.sep, 50, examples.masked_ids)
    found = measured(tmp_path / "t", Encoder(encoder_folder("bert")), replace(bare, masked_ids=ids))["scores"]
    assert found["sep_attention"] == 0
    assert "blocked_loss" not in found
