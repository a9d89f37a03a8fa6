"""Held-out shards: batched as one example after the other by hand, by kind of position, label and segment."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.export.tokenizer import INPUTS
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.held_out import HeldOut
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.encoders import ENCODERS, encoder_folder, inputs_of, write_encoder
from tests.factories.shards import random_examples, write_folder
from tests.factories.vocabularies import trained

TASK = HeldOut()


def mixed(name: str, count: int = 40, labels: tuple[int, ...] = (0, 1)) -> Examples:
    """Examples whose predicted tokens are by turns behind [MASK], kept and replaced."""
    vocabulary = trained(ENCODERS[name][1])
    found = random_examples(count, 3, size=vocabulary.size, labels=labels)
    places = np.repeat(found.offsets[:-1], np.diff(found.masked_offsets)) + found.masked_positions
    turn = np.arange(len(places)) % 3
    found.tokens[places[turn == 0]] = vocabulary.mask
    found.tokens[places[turn == 1]] = found.masked_ids[turn == 1]
    return found


def shards(folder: Path, name: str, aside: Examples, sequences: str = "segment_pair") -> Path:
    vocabulary = trained(ENCODERS[name][1])
    write_folder(folder, [aside], [aside], vocabulary=vocabulary, sequences=sequences)
    return folder


def score(name: str, folder: Path, part: float = 1.0, encoder: Path | None = None) -> dict[str, Any]:
    settings = EvaluationSettings(part=part)
    done: list[int] = []
    material = TASK.read(folder, settings)
    found = TASK.score(
        inputs_of(Encoder(encoder or encoder_folder(name)), material, settings, on_progress=done.append)
    )
    assert sum(done) == material.size
    return found


@torch.no_grad()
def by_hand(name: str, examples: Examples) -> list[tuple[str, int, int, float, bool]]:
    """(kind, label, segment, loss, right) of each predicted token, one example at a time."""
    folder = encoder_folder(name)
    model = getattr(transformers, ENCODERS[name][0]).from_pretrained(folder).eval()
    mask, rows = trained(ENCODERS[name][1]).mask, []
    for n in range(len(examples)):
        one = examples.take(np.array([n]))
        ids, first = one.tokens.astype(np.int64), int(one.first_lengths[0])
        segments = (np.arange(len(ids)) >= first).astype(np.int64)
        given = {"input_ids": torch.from_numpy(ids)[None]}
        if "token_type_ids" in ENCODERS[name][2]:
            given["token_type_ids"] = torch.from_numpy(segments)[None]
        output = model(**given)
        logits = output.prediction_logits if "prediction_logits" in output else output.logits
        for place, target in zip(one.masked_positions.tolist(), one.masked_ids.tolist(), strict=True):
            shown = ids[place]
            kind = "mask" if shown == mask else "kept" if shown == target else "random"
            answer = logits[0, place]
            loss = -float(answer.log_softmax(-1)[target])
            rows.append(
                (kind, int(one.labels[0]), int(segments[place]), loss, int(answer.argmax()) == target)
            )
    return rows


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "distilbert"])
def test_figures_are_those_of_one_example_at_a_time(name: str, tmp_path: Path) -> None:
    examples = mixed(name)
    found = score(name, shards(tmp_path, name, examples))["scores"]
    rows = by_hand(name, examples)
    cuts = {
        "mask_{}": [row for row in rows if row[0] == "mask"],
        "kept_{}": [row for row in rows if row[0] == "kept"],
        "random_{}": [row for row in rows if row[0] == "random"],
        "mask_{}_not_next": [row for row in rows if row[:2] == ("mask", 1)],
        "mask_{}_segment_b": [row for row in rows if (row[0], row[2]) == ("mask", 1)],
    }
    for pattern, own in cuts.items():
        assert own
        assert found[pattern.format("loss")] == pytest.approx(np.mean([row[3] for row in own]), rel=1e-4)
        assert found[pattern.format("accuracy")] == pytest.approx(100 * np.mean([row[4] for row in own]))


@torch.no_grad()
def pairs_by_hand(model: Any, head: str, examples: Examples) -> list[tuple[float, bool]]:
    """(loss, right) of each pair, one at a time."""
    found = []
    for n, label in enumerate(examples.labels.tolist()):
        one = examples.take(np.array([n]))
        segments = (np.arange(len(one.tokens)) >= one.first_lengths[0]).astype(np.int64)
        given = (torch.from_numpy(one.tokens.astype(np.int64))[None], torch.from_numpy(segments)[None])
        logits = model(given[0], token_type_ids=given[1])[head][0]
        found.append((-float(logits.log_softmax(-1)[label]), int(logits.argmax()) == label))
    return found


def test_pairs_are_judged_by_the_head_for_pairs(tmp_path: Path) -> None:
    examples = mixed("bert", 30, labels=(0, 0, 1))
    found = score("bert", shards(tmp_path, "bert", examples))
    model = transformers.BertForPreTraining.from_pretrained(encoder_folder("bert")).eval()
    right = [right for _, right in pairs_by_hand(model, "seq_relationship_logits", examples)]
    assert found["scores"]["nsp_accuracy"] == pytest.approx(100 * np.mean(right))
    assert found["trivial"]["nsp_accuracy"] == pytest.approx(100 * np.mean(examples.labels == 0))
    assert (
        "nsp_accuracy" not in score("roberta", shards(tmp_path / "r", "roberta", mixed("roberta")))["scores"]
    )


def test_orders_of_pairs_are_judged_by_the_head_for_orders(tmp_path: Path) -> None:
    """ALBERT's: of two segments, which one was first."""
    kind, sizes = "AlbertForPreTraining", {"embedding_size": 16}
    write_encoder(tmp_path / "model", kind, trained("unigram"), INPUTS, sizes)
    model = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "model").eval()
    torch.nn.init.normal_(model.sop_classifier.classifier.weight, std=3.0)  # so that the answers differ
    model.save_pretrained(tmp_path / "model")
    examples = mixed("albert", 30, labels=(0, 0, 1))
    folder = shards(tmp_path / "shards", "albert", examples, "sentence_order")
    found = score("albert", folder, encoder=tmp_path / "model")
    losses, right = map(np.array, zip(*pairs_by_hand(model, "sop_logits", examples), strict=True))
    assert 0 < right.mean() < 1
    for of, chosen in (
        ("", slice(None)),
        ("_in_order", examples.labels == 0),
        ("_swapped", examples.labels == 1),
    ):
        assert found["scores"][f"sop_accuracy{of}"] == pytest.approx(100 * right[chosen].mean())
        assert found["scores"][f"sop_loss{of}"] == pytest.approx(losses[chosen].mean(), rel=1e-4)
    assert found["trivial"]["sop_accuracy"] == pytest.approx(100 * np.mean(examples.labels == 0))
    assert {cell["pair"] for cell in found["cells"]} == {"in_order", "swapped"}
    assert not [name for name in found["scores"] if name.startswith("nsp")]


def test_the_trivial_answer_is_the_unigram_at_the_same_positions(tmp_path: Path) -> None:
    examples = mixed("bert")
    found = score("bert", shards(tmp_path, "bert", examples))
    targets = examples.masked_ids[::3]  # those behind [MASK]
    counts = np.bincount(targets)
    shares = counts[counts > 0] / len(targets)
    assert found["trivial"]["mask_loss"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert found["trivial"]["mask_accuracy"] == pytest.approx(100 * shares.max())
    assert sum(cell["count"] for cell in found["cells"]) == len(examples.masked_ids)


def test_single_sequences_have_neither_pairs_nor_segments(tmp_path: Path) -> None:
    examples = mixed("roberta", labels=(-1,))
    examples.first_lengths[:] = examples.lengths
    found = score("roberta", shards(tmp_path, "roberta", examples, "full_sentences"))
    assert found["scores"].keys() == {
        f"{kind}_{what}" for kind in ("mask", "kept", "random") for what in ("loss", "accuracy")
    }
    assert {cell["pair"] for cell in found["cells"]} == {"none"}
    assert math.isfinite(found["trivial"]["mask_loss"])


def test_a_part_is_spread_over_all(tmp_path: Path) -> None:
    folder = shards(tmp_path, "bert", mixed("bert"))
    assert TASK.read(folder, EvaluationSettings(part=0.1)).items[1].tolist() == [0, 13, 26, 39]
    assert score("bert", folder, 0.1)["cells"] != score("bert", folder)["cells"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path / "bert", "bert", mixed("bert"))
    with pytest.raises(UserError, match="has another vocabulary"):
        score("roberta", folder)
    with pytest.raises(UserError, match=r"predicts no words.*generator"):
        score("discriminator", folder)
    write_folder(tmp_path / "none", [mixed("bert")], [], vocabulary=trained("wordpiece"))
    with pytest.raises(UserError, match="held out"):
        TASK.read(tmp_path / "none", EvaluationSettings())
    long = random_examples(3, 0, longest=90, size=400)
    write_folder(tmp_path / "long", [long], [long], longest=90, vocabulary=trained("wordpiece"))
    with pytest.raises(UserError, match="has positions for 66 tokens"):
        score("bert", tmp_path / "long")
