"""ERNIE against transformers with equal weights, both ways: logits and losses in float64; what is refused."""

from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.settings import mask_stages
from data_pipeline.shards.index import VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.export import write_config
from pretrain.huggingface.bert import ERNIE_FOR_PRETRAINING
from pretrain.huggingface.registry import check_config
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.preflight.memory import meta_model
from tests.factories.models import scattered, scattered_model

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    heads = draw(st.integers(1, 3))
    encoder = EncoderSettings(
        layers=draw(st.integers(1, 3)),
        hidden=8 * heads,
        heads=heads,
        intermediate=draw(st.integers(5, 40)),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh"])),
        max_positions=draw(st.integers(18, 25)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
    )
    run = RunConfig(encoder=encoder)
    run.objective.name, run.data.sequences = "ernie", "segment_pair"
    return run


@st.composite
def batches(draw: st.DrawFn) -> MicroBatch:
    words = st.lists(st.integers(5, STAMP.size - 1), min_size=2, max_size=16)
    sequences = [[STAMP.cls, *ids, STAMP.sep] for ids in draw(st.lists(words, min_size=1, max_size=4))]
    firsts = [draw(st.integers(1, len(ids))) for ids in sequences]
    masked = [{1: ids[1], len(ids) - 2: ids[-2]} for ids in sequences]
    return MicroBatch.from_lists(sequences, firsts, masked, [draw(st.integers(0, 1)) for _ in sequences])


def theirs_of(run: RunConfig) -> transformers.ErnieForPreTraining:
    """Their model with weights of its own: float64 that float32 can hold."""
    torch.manual_seed(3)
    config = transformers.ErnieConfig(**ERNIE_FOR_PRETRAINING.config(run, STAMP))
    model = transformers.ErnieForPreTraining(config).eval()
    return scattered(model)


def compare(ours: Model, theirs: transformers.ErnieForPreTraining, batch: MicroBatch) -> None:
    """Both heads' logits, and the sum of both losses: label 0 is the true next segment for both."""
    with torch.no_grad():
        terms, _ = ours(batch)
        own, logits = ours.logits(batch), ERNIE_FOR_PRETRAINING.logits(theirs, batch, STAMP.pad)
        torch.testing.assert_close(own["mlm"], logits["mlm"][batch.masked_index], rtol=0, atol=1e-9)
        torch.testing.assert_close(own["nsp"], logits["nsp"], rtol=0, atol=1e-9)
        inputs = ERNIE_FOR_PRETRAINING.inputs(batch, STAMP.pad)
        targets_T = torch.full((batch.tokens,), -100)
        targets_T[batch.masked_index] = batch.masked_ids
        targets = torch.full_like(inputs["input_ids"], -100)
        targets = targets.masked_scatter(inputs["attention_mask"].bool(), targets_T)
        loss = theirs(**inputs, labels=targets, next_sentence_label=batch.labels).loss
    mean = sum((term.sum / term.count).item() for term in terms.values())
    assert mean == pytest.approx(loss.item(), rel=1e-9)


@examples_of(max_examples=4, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_our_weights_give_their_logits_and_losses(run: RunConfig, batch: MicroBatch) -> None:
    ours, theirs = scattered_model(run, STAMP), theirs_of(run)
    state = without_padding(ours, dict(ours.named_parameters()))
    written = ERNIE_FOR_PRETRAINING.to_hugging_face(state, ERNIE_FOR_PRETRAINING.config(run, STAMP))
    missing, unexpected = theirs.load_state_dict(written, strict=False)
    assert not unexpected
    assert set(missing) <= set(ERNIE_FOR_PRETRAINING.tied)
    theirs.tie_weights()
    compare(ours, theirs, batch)


@examples_of(max_examples=4, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_their_weights_give_our_logits_and_losses(run: RunConfig, batch: MicroBatch) -> None:
    theirs = theirs_of(run)
    config = theirs.config.to_dict()
    assert ERNIE_FOR_PRETRAINING.differences(config, run, STAMP.size) == []
    ours = scattered_model(run, STAMP)
    load_parameters(ours, ERNIE_FOR_PRETRAINING.from_hugging_face(theirs.state_dict(), config, Path("model")))
    compare(ours, theirs, batch)


def test_a_model_with_task_embeddings_is_refused(tmp_path: Path) -> None:
    run = RunConfig()
    fields = ERNIE_FOR_PRETRAINING.config(run, STAMP)
    write_config(ERNIE_FOR_PRETRAINING, fields, tmp_path)
    check_config(tmp_path, run, STAMP.size)
    write_config(ERNIE_FOR_PRETRAINING, fields | {"use_task_id": True}, tmp_path)
    with pytest.raises(UserError, match="use_task_id is True, which must be False"):
        check_config(tmp_path, run, STAMP.size)


@pytest.mark.parametrize("name", ["ernie_base", "ernie_tiny"])
def test_recipes_go_through_the_three_stages(name: str) -> None:
    config = load_config(name, [])
    stages = mask_stages(config.data)
    assert [stage.kind for stage in stages] == ["token", "phrase", "entity"]
    assert stages[-1].first < config.train.steps
    assert config.data.dynamic_masking
    assert (config.encoder.activation, config.encoder.layer_norm_eps) == ("relu", 1e-5)
    assert config.data.sequences == "segment_pair"


def test_ernie_base_has_its_parameters() -> None:
    """100,477,778: transformers' ErnieForPreTraining with 18,000 entries and 513 positions."""
    model = meta_model(load_config("ernie_base", []), 18_000)
    padding = (18_048 - 18_000) * (768 + 1)
    assert sum(p.numel() for p in model.parameters()) - padding == 100_477_778
