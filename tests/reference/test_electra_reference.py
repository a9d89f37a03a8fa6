"""ELECTRA's two models against transformers' with equal weights, both ways: logits and losses in float64."""

from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Family
from pretrain.huggingface.electra import DELTA, ELECTRA_FOR_MASKED_LM, ELECTRA_FOR_PRETRAINING, taken_apart
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from tests.factories.models import scattered, scattered_model

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)
FAMILIES = (ELECTRA_FOR_PRETRAINING, ELECTRA_FOR_MASKED_LM)


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    heads = draw(st.integers(1, 3))
    encoder = EncoderSettings(
        layers=draw(st.integers(1, 3)),
        hidden=8 * heads,
        heads=heads,
        intermediate=draw(st.integers(5, 40)),
        embedding_size=draw(st.sampled_from([0, 6, 8 * heads, 40])),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        max_positions=20,
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
    )
    run = RunConfig(encoder=encoder)
    run.objective.name = "electra"
    run.objective.electra.generator_share = draw(st.sampled_from([0.25, 1 / 3, 0.5, 1.0]))
    run.objective.electra.generator_layers = draw(st.sampled_from([0, 2]))
    run.objective.electra.embeddings = draw(st.sampled_from(["shared", "disentangled", "separate"]))
    return run


@st.composite
def batches(draw: st.DrawFn) -> MicroBatch:
    words = st.lists(st.integers(5, STAMP.size - 1), min_size=2, max_size=16)
    sequences = [[STAMP.cls, *ids, STAMP.sep] for ids in draw(st.lists(words, min_size=1, max_size=4))]
    firsts = [draw(st.integers(1, len(ids))) for ids in sequences]
    masked = [{1: ids[1], len(ids) - 2: ids[-2]} for ids in sequences]
    for ids in sequences:
        ids[1] = STAMP.mask
    return MicroBatch.from_lists(sequences, firsts, masked)


def empty(family: Family, run: RunConfig) -> transformers.PreTrainedModel:
    """Their model of the run's settings, with weights of its own: float64 that float32 can hold."""
    fields = transformers.ElectraConfig(**family.config(run, STAMP))
    torch.manual_seed(3)
    model = getattr(transformers, family.export_class)(fields).eval()
    return scattered(model)


def of(run: RunConfig) -> list[Family]:
    return [family.of_run(run) for family in FAMILIES]


def compare(ours: Model, theirs: list[transformers.PreTrainedModel], batch: MicroBatch) -> None:
    """Both heads' logits, and both losses as transformers takes their means."""
    corrupted: list[MicroBatch] = []
    ours.encoder.register_forward_pre_hook(lambda _, given: corrupted.append(given[0]))
    with torch.no_grad():
        terms, _ = ours(batch)
        read = corrupted[0]
        own = {"rtd": ours.rtd_head.logits(ours.encoder(batch)), "mlm": ours.logits(batch)["mlm"]}
        logits = [f.logits(model, batch, STAMP.pad) for f, model in zip(FAMILIES, theirs, strict=True)]
        torch.testing.assert_close(own["rtd"], logits[0]["rtd"], rtol=0, atol=1e-9)
        torch.testing.assert_close(own["mlm"], logits[1]["mlm"][batch.masked_index], rtol=0, atol=1e-9)

        labels_T = (read.input_ids != batch.filled(batch.masked_ids).input_ids).long()
        inputs = ELECTRA_FOR_PRETRAINING.inputs(read, STAMP.pad)
        labels = torch.zeros_like(inputs["input_ids"]).masked_scatter(
            inputs["attention_mask"].bool(), labels_T
        )
        found = theirs[0](**inputs, labels=labels)
        scores_T = found.logits[inputs["attention_mask"].bool()]
        loss = F.binary_cross_entropy_with_logits(scores_T, labels_T.double()).item()
        mean = (terms["rtd"].sum / terms["rtd"].count).item()
        assert mean == pytest.approx(loss, rel=1e-9)
        assert mean == pytest.approx(found.loss.item(), rel=1e-6)  # which they round to float32
        targets_T = torch.full((batch.tokens,), -100)
        targets_T[batch.masked_index] = batch.masked_ids
        inputs = ELECTRA_FOR_MASKED_LM.inputs(batch, STAMP.pad)
        targets = torch.full_like(inputs["input_ids"], -100)
        targets = targets.masked_scatter(inputs["attention_mask"].bool(), targets_T)
        generator = theirs[1](**inputs, labels=targets).loss.item()
        assert (terms["mlm"].sum / terms["mlm"].count).item() == pytest.approx(generator, rel=1e-9)


@examples_of(max_examples=6, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_our_weights_give_their_logits_and_losses(run: RunConfig, batch: MicroBatch) -> None:
    ours, theirs = scattered_model(run, STAMP), [empty(family, run) for family in FAMILIES]
    state = without_padding(ours, dict(ours.named_parameters()))
    for family, model in zip(of(run), theirs, strict=True):
        written = family.to_hugging_face(state, family.config(run, STAMP))
        missing, unexpected = model.load_state_dict(written, strict=False)
        assert not unexpected
        assert set(missing) <= set(family.tied)
        model.tie_weights()
    compare(ours, theirs, batch)


@examples_of(max_examples=6, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_their_weights_give_our_logits_and_losses(run: RunConfig, batch: MicroBatch) -> None:
    theirs = [empty(family, run) for family in FAMILIES]
    discriminator, generator = (model.electra.embeddings for model in theirs)
    if run.objective.electra.embeddings == "shared":
        generator.load_state_dict(discriminator.state_dict())
    state = {}
    for family, model in zip(of(run), theirs, strict=True):
        assert family.differences(model.config.to_dict(), run, STAMP.size) == []
        state |= family.from_hugging_face(model.state_dict(), model.config.to_dict(), Path("model"))
    ours = scattered_model(run, STAMP)
    state = {name: tensor.double() for name, tensor in state.items()}  # so that differences are exact
    state = taken_apart(state, [name for name, _ in ours.named_parameters() if name.endswith(DELTA)])
    load_parameters(ours, state)
    compare(ours, theirs, batch)
