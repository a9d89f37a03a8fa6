"""ELECTRA's second stage: a discriminator that starts as its generator, which nothing changes."""

import pytest
import torch
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch, Shape
from pretrain.objectives.base import Model
from pretrain.objectives.electra import Discriminator, Generator
from pretrain.objectives.registry import load
from pretrain.objectives.teacher import teacher_identity
from tests.factories.models import config_of

WORDS = 90
STAMP = VocabularyStamp("", WORDS, cls=2, sep=3, mask=4, pad=0, unk=1)
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
BATCH = MicroBatch.from_lists(
    [[2, 5, 4, 9, 3], [2, 4, 4, 11, 3], [2, 30, 3]],
    masked=[{2: 7, 3: 8}, {1: 20, 2: 21}, {}],  # the 9 is a random word in place of 8
)


def run_config() -> RunConfig:
    return config_of("electra_two_stage", TINY, vocabulary_size=WORDS)


def generator_of(model: Model) -> Generator:
    [generator] = model.frozen
    assert isinstance(generator, Generator)
    return generator


@pytest.fixture
def model() -> Model:
    return load(run_config()).fresh_model(STAMP).double()


def test_the_discriminator_starts_from_its_generators_weights(model: Model) -> None:
    theirs, own = generator_of(model).encoder, model.encoder
    for name, layer in {0: 0, 1: 2}.items():  # its first layer and its last
        for ours, given in zip(own.layers[name].parameters(), theirs.layers[layer].parameters(), strict=True):
            assert ours.equal(given)
    for ours, given in zip(own.embeddings.parameters(), theirs.embeddings.parameters(), strict=True):
        assert ours.equal(given)
        assert ours is not given


def test_the_term_is_the_loss_of_what_the_generator_puts_in(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row from the definition: the words drawn, the original words, the labels."""
    drawn: list[torch.Tensor] = []
    whole = type(generator_of(model).mlm_head).forward
    monkeypatch.setattr(
        type(generator_of(model).mlm_head),
        "forward",
        lambda self, *given: (found := whole(self, *given), drawn.append(found[1]))[0],
    )
    terms, _ = model(BATCH)
    ids, labels = BATCH.input_ids.clone(), torch.zeros(BATCH.tokens, dtype=torch.float64)
    ids[BATCH.masked_index] = drawn[0]
    labels[BATCH.masked_index] = (drawn[0] != BATCH.masked_ids).double()
    logits = model.rtd_head.logits(model.encoder(MicroBatch.from_lists([ids[:5], ids[5:10], ids[10:]])))
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    assert terms["rtd"].sum.item() == pytest.approx(loss.item(), rel=1e-9)
    assert (int(terms["rtd"].count), terms["rtd"].weight) == (BATCH.tokens, 1.0)
    assert [*dict(terms.items())] == ["rtd"]


def test_the_masked_figures_are_the_generators(model: Model) -> None:
    generator = generator_of(model)
    metrics = model(BATCH)[0].metrics
    logits = generator.mlm_head.logits(generator.encoder(BATCH), BATCH)
    losses = F.cross_entropy(logits, BATCH.masked_ids, reduction="none")
    is_mask = BATCH.input_ids[BATCH.masked_index] == STAMP.mask
    for kind, rows in (("mask", is_mask), ("random", ~is_mask)):
        found = metrics[f"{kind}_loss"]
        assert found.count.item() == rows.sum().item() > 0
        assert found.sum.item() == pytest.approx(losses[rows].sum().item())
    hits = logits.argmax(-1) == BATCH.masked_ids
    assert metrics["mlm_accuracy"].sum.item() == hits.sum().item()


def test_spare_rows_count_nowhere(model: Model) -> None:
    plain, padded = model(BATCH)[0]["rtd"], model(BATCH.padded(Shape(40, 8, 9, 20)))[0]["rtd"]
    assert padded.sum.item() == pytest.approx(plain.sum.item(), rel=1e-12)
    assert int(padded.count) == int(plain.count)


def test_only_the_discriminator_is_trained_and_stored(model: Model) -> None:
    model.train()
    model(BATCH)[0]["rtd"].sum.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not any(p.requires_grad or p.grad is not None for p in generator_of(model).parameters())
    assert not generator_of(model).training
    assert not any("generator" in name or "mlm" in name for name, _ in model.named_parameters())
    built = load(run_config()).build_model(STAMP)
    assert isinstance(built, Discriminator)
    assert built.frozen == ()


def test_its_weights_are_a_part_of_the_runs_identity() -> None:
    assert [*teacher_identity(run_config())] == ["generator"]


def test_a_missing_generator_is_named_by_its_setting() -> None:
    config = config_of("electra_two_stage", TINY)
    with pytest.raises(UserError, match=r"objective\.electra_two_stage\.generator: is empty"):
        load(config).fresh_model(STAMP)


def test_a_discriminator_of_another_kind_is_refused() -> None:
    config = run_config()
    config.encoder.segments = 3
    with pytest.raises(UserError, match=r"embeddings\.segment\.weight has shape \(2, 16\)"):
        load(config).fresh_model(STAMP)
