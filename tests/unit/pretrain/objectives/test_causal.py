"""The left-to-right language model: what it sees, what it predicts, and what that costs."""

import pytest
import torch
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.model import vocabulary_losses
from pretrain.model.batch import IGNORED, MicroBatch, Shape
from pretrain.objectives.causal import reversed_examples
from pretrain.objectives.registry import load, with_defaults
from tests.factories.models import config_of, fresh_model

VOCABULARY = 90
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
SEQUENCES = [[2, 5, 6, 7, 9, 3], [2, 3], [2, 40, 41, 42, 3]]


def test_every_next_token_is_predicted_from_what_is_before_it() -> None:
    module, batch = fresh_model("causal", TINY, VOCABULARY, seed=2), MicroBatch.from_lists(SEQUENCES)
    terms, memory = module(batch)
    logits = module.logits(batch)["causal"]
    assert logits.shape == (batch.tokens, VOCABULARY)
    rows = torch.tensor([0, 1, 2, 3, 4, 6, 8, 9, 10, 11])
    right = batch.input_ids[rows + 1]
    loss = F.cross_entropy(logits[rows], right, reduction="sum")
    term = terms["causal"]
    assert (term.sum.item(), term.count.item(), term.weight) == (
        pytest.approx(loss.item(), rel=1e-5),
        10,
        1.0,
    )
    hits = terms.metrics["causal_accuracy"]
    assert (hits.sum.item(), hits.count.item()) == ((logits[rows].argmax(-1) == right).sum().item(), 10)
    assert memory is None
    # a changed token changes nothing before it, and something after it
    changed = [[*SEQUENCES[0][:3], 8, *SEQUENCES[0][4:]], *SEQUENCES[1:]]
    others = module.logits(MicroBatch.from_lists(changed))["causal"]
    assert others[:3].equal(logits[:3])
    assert others[6:].equal(logits[6:])
    assert not others[4].allclose(logits[4])


def test_from_right_to_left_it_is_the_same_model_on_reversed_examples() -> None:
    config = config_of("causal", TINY, seed=2)
    config.objective.causal.direction = "right_to_left"
    stamp = VocabularyStamp.of_size(VOCABULARY)
    objective, batch = load(config), MicroBatch.from_lists(SEQUENCES)
    model, backwards = objective.fresh_model(stamp), MicroBatch.from_lists([s[::-1] for s in SEQUENCES])
    plain = fresh_model("causal", TINY, VOCABULARY, seed=2)
    found, expected = model(batch)[0]["causal"], plain(backwards)[0]["causal"]
    assert found.sum.equal(expected.sum)
    assert found.count.equal(expected.count)
    assert not found.sum.allclose(plain(batch)[0]["causal"].sum)
    assert objective.targets(batch, stamp)["causal"].equal(backwards.next_tokens())
    # what is exported reads ids as they are given
    assert model.logits(backwards)["causal"].equal(plain.logits(backwards)["causal"])
    assert reversed_examples(reversed_examples(batch)).input_ids.equal(batch.input_ids)
    padded = batch.padded(Shape(40, 6, 8, 16))
    assert model(padded)[0]["causal"].sum.item() == pytest.approx(found.sum.item(), rel=1e-5)


def test_spare_rows_count_nowhere() -> None:
    module, batch = fresh_model("causal", TINY, VOCABULARY, seed=2), MicroBatch.from_lists(SEQUENCES)
    plain, padded = (module(b)[0]["causal"] for b in (batch, batch.padded(Shape(40, 6, 8, 16))))
    assert padded.count.item() == plain.count.item() == 10
    assert padded.sum.item() == pytest.approx(plain.sum.item(), rel=1e-5)


def test_logits_live_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all rows at once they would be the largest tensor of a step."""
    monkeypatch.setitem(vocabulary_losses.CHUNK_ELEMENTS, "cpu", 4 * 128)
    module, widest = fresh_model("causal", TINY, VOCABULARY, seed=2), 0
    plain = torch.softmax

    def watched(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        nonlocal widest
        widest = max(widest, x.numel())
        return plain(x, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "softmax", watched)
    terms, _ = module(MicroBatch.from_lists(SEQUENCES * 5))
    terms["causal"].sum.backward()
    assert 0 < widest <= 4 * 128


def test_counts_rows_and_targets_are_of_all_tokens() -> None:
    objective, batch = with_defaults("causal"), MicroBatch.from_lists(SEQUENCES)
    targets = objective.targets(batch, VocabularyStamp.of_size(VOCABULARY))["causal"]
    assert (targets != IGNORED).sum().item() == 10
    assert objective.predicted_rows(130, 20) == 130
    both, causal = (load(config_of(name, TINY)) for name in ("mlm", "causal"))
    everywhere = {"tokens": 1000, "squares": 100_000, "masked": 1000}
    assert both.flops(100, **everywhere) - causal.flops(100, **everywhere) == 12 * 2 * 16 * (100_000 - 50_500)
    assert causal.flops(100, tokens=1000, squares=0, masked=0) == causal.flops(
        100, tokens=1000, squares=0, masked=9
    )
