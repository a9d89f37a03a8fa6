"""What the other segment is worth: each variant as one example at a time by hand, with the same tokens predicted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.tasks import pair_context
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.held_out import segments_of
from pretrain.tasks.pair_context import Donors, PairContext, scored_in, with_other_text
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.encoders import encoder_folder, inputs_of
from tests.factories.shards import write_folder
from tests.unit.pretrain.tasks.test_tasks_attention import VOCABULARY, framed

SPECIALS = (VOCABULARY.cls, VOCABULARY.sep)


def shown_masks() -> Examples:
    examples = framed(40)
    places = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    ordinary = ~np.isin(examples.tokens[places], SPECIALS)
    examples.tokens[places[ordinary]] = VOCABULARY.mask
    return examples


@torch.no_grad()
def test_variants_by_hand(tmp_path: Path) -> None:
    examples, encoder, task = shown_masks(), Encoder(encoder_folder("bert")), PairContext()
    write_folder(tmp_path / "s", [examples], [examples], vocabulary=VOCABULARY, sequences="segment_pair")
    settings = EvaluationSettings()
    found = task.score(inputs_of(encoder, task.read(tmp_path / "s", settings), settings))["scores"]
    model = encoder.load("ForPreTraining", 1)
    sums = dict.fromkeys(("true", "none"), 0.0)
    count = 0
    for n in np.flatnonzero(examples.labels == 0).tolist():
        one = scored_in(examples.take(np.array([n])), 1, VOCABULARY.mask)
        if not len(one):
            continue
        ids, segments = torch.from_numpy(one.tokens.astype(np.int64)), torch.from_numpy(segments_of(one))
        places, targets = one.masked_positions.astype(np.int64), one.masked_ids.astype(np.int64)
        is_text = torch.from_numpy(~np.isin(one.tokens, SPECIALS))
        positions = torch.arange(len(ids))
        for name, kept in (("true", torch.ones_like(is_text)), ("none", ~(is_text & (segments == 0)))):
            output = model(
                ids[kept][None], token_type_ids=segments[kept][None], position_ids=positions[kept][None]
            )
            logits = output.prediction_logits[0][(kept.cumsum(0) - 1)[places]]
            sums[name] -= float(logits.log_softmax(-1)[range(len(targets)), targets].sum())
        count += len(targets)
    assert count > 10
    for name, total in sums.items():
        assert found[f"{name}_loss_segment_b"] == pytest.approx(total / count, rel=1e-4)
    for segment in ("segment_a", "segment_b"):
        losses = {v: found[f"{v}_loss_{segment}"] for v in ("true", "random", "none", "blocked")}
        assert len(set(losses.values())) == 4
        assert found[f"use_{segment}"] == pytest.approx(losses["random"] - losses["true"])
        assert found[f"harm_{segment}"] == pytest.approx(losses["random"] - losses["none"])
        assert found[f"cut_{segment}"] == pytest.approx(losses["blocked"] - losses["true"])


def test_random_text_is_as_long_and_of_others() -> None:
    examples = framed(12)
    other = ~np.isin(examples.tokens, SPECIALS) & (segments_of(examples) == 0)
    found = with_other_text(examples, other, examples, other)
    assert np.array_equal(found.tokens[~other], examples.tokens[~other])
    for n in range(12):
        span = slice(*examples.offsets[n : n + 2])
        own, given = examples.tokens[span][other[span]], found.tokens[span][other[span]]
        assert len(own) < 2 or not np.array_equal(own, given)
        donors = [examples.tokens[slice(*examples.offsets[m : m + 2])] for m in range(12) if m != n]
        assert np.isin(given, np.concatenate(donors)).all()


def test_an_example_that_is_alone_in_its_batch_takes_the_text_of_another_batch() -> None:
    examples, donors = framed(12), Donors()
    one, none, two, four, last = (examples.take(np.array(n, int)) for n in ([0], [], [1], [2, 3, 4, 5], [6]))
    assert donors.of(one) == donors.of(none) == [], "nothing is known yet to take text from"
    assert donors.of(two) == [(two, one), (one, two)]
    assert donors.of(four) == [(four, four)]
    assert donors.of(last) == [(last, four)]
    other, of_source = (~np.isin(n.tokens, SPECIALS) & (segments_of(n) == 0) for n in (last, four))
    found = with_other_text(last, other, four, of_source)
    assert np.isin(found.tokens[other], four.tokens[of_source]).all()
    assert not np.array_equal(found.tokens[other], last.tokens[other])
    assert np.array_equal(found.tokens[~other], last.tokens[~other])


def test_no_pair_is_left_out_whatever_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, encoder, task = shown_masks(), Encoder(encoder_folder("bert")), PairContext()
    write_folder(tmp_path / "s", [examples], [examples], vocabulary=VOCABULARY, sequences="segment_pair")
    settings = EvaluationSettings()
    material = task.read(tmp_path / "s", settings)
    whole = task.score(inputs_of(encoder, material, settings))
    monkeypatch.setattr(pair_context, "BATCH_TOKENS", 1)  # an example each
    alone = task.score(inputs_of(encoder, material, settings))
    following = examples.take(np.flatnonzero(examples.labels == 0))
    assert 2 < len(following) < len(examples)
    assert whole["examples"] == alone["examples"] == {"dev": len(following)}
    counts = [len(scored_in(following, n, VOCABULARY.mask)) for n in (0, 1)]
    assert whole["scored"] == alone["scored"] == dict(zip(("segment_a", "segment_b"), counts, strict=True))
    for name, value in whole["scores"].items():
        if name.startswith(("true", "none", "blocked", "cut")):
            assert alone["scores"][name] == pytest.approx(value, abs=1e-5)


def test_a_single_pair_is_refused(tmp_path: Path) -> None:
    examples, encoder, task = shown_masks(), Encoder(encoder_folder("bert")), PairContext()
    labels = np.minimum(np.arange(len(examples)), 1)  # the first one alone follows
    examples = replace(examples, labels=labels.astype(np.int8))
    write_folder(tmp_path / "s", [examples], [examples], vocabulary=VOCABULARY, sequences="segment_pair")
    settings = EvaluationSettings()
    with pytest.raises(UserError, match="has no two pairs whose B follows A, with"):
        task.score(inputs_of(encoder, task.read(tmp_path / "s", settings), settings))


def test_the_scored_segment_alone_is_predicted() -> None:
    examples = shown_masks()
    both = [scored_in(examples, n, VOCABULARY.mask) for n in (0, 1)]
    for n, one in enumerate(both):
        owners = np.repeat(np.arange(len(one)), np.diff(one.masked_offsets))
        places = one.offsets[owners] + one.masked_positions
        assert (segments_of(one)[places] == n).all()
        assert (one.tokens[places] == VOCABULARY.mask).all()
        assert np.diff(one.masked_offsets).min() > 0
    assert sum(len(one.masked_ids) for one in both) == (examples.tokens == VOCABULARY.mask).sum()
