"""Members with BERT's layers against transformers' classes, of random sizes and lengths, in float64.

Weights of ours give their logits and losses for every member here; weights of theirs give ours for those whose class
has no file of its own that shows it (test_roberta.py, test_distilbert_reference.py).
"""

from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.export import with_own_inputs
from pretrain.export.parity import KeepFloat64
from pretrain.huggingface.base import Family
from pretrain.huggingface.registry import chosen_families
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import initialize, load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.causal import reversed_examples
from pretrain.objectives.electra import Discriminator, detect
from pretrain.objectives.registry import load
from tests.factories.models import config_of, scattered

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)
LONGEST = 20
BACKWARDS = "right_to_left"
BESIDE = "sbo_head."
"""Parameters of SpanBERT's boundary head, for which their class has no place."""
TAUGHT = ["distilbert", "distilroberta", "electra_two_stage"]
"""Members that learn beside a finished model, which these tests do without."""


@st.composite
def runs(draw: st.DrawFn, member: str) -> RunConfig:
    """Settings of a run of this member; what it needs is changed."""
    heads = draw(st.integers(1, 3))
    encoder = EncoderSettings(
        layers=draw(st.integers(1, 3)),
        hidden=heads * draw(st.sampled_from([2, 6, 8])),
        heads=heads,
        intermediate=draw(st.integers(3, 40)),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        max_positions=draw(st.integers(LONGEST, 30)),
        segments=draw(st.sampled_from([2, 3])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
    )
    run = config_of(member, encoder)
    run.objective.causal.direction = draw(st.sampled_from(["left_to_right", BACKWARDS]))
    return run


@st.composite
def batches(draw: st.DrawFn, member: str) -> MicroBatch:
    """One to four texts of 4 to LONGEST tokens in two segments, some of them masked; pairs have labels."""
    words = st.lists(st.integers(5, STAMP.size - 1), min_size=2, max_size=LONGEST - 2)
    texts = [[STAMP.cls, *ids, STAMP.sep] for ids in draw(st.lists(words, min_size=1, max_size=4))]
    firsts = [draw(st.integers(1, len(ids))) for ids in texts]
    if member == "causal":
        return MicroBatch.from_lists(texts, firsts)
    places = [draw(st.sets(st.integers(1, len(ids) - 2), min_size=1)) for ids in texts]
    masked = [{i: ids[i] for i in sorted(of)} for ids, of in zip(texts, places, strict=True)]
    for ids, of in zip(texts, places, strict=True):
        for place in of:
            ids[place] = STAMP.mask
    labels = [draw(st.integers(0, 1)) for _ in texts] if member == "bert" else None
    return MicroBatch.from_lists(texts, firsts, masked, labels)


def family_of(run: RunConfig) -> Family:
    [family] = chosen_families(load(run).families, run)
    return with_own_inputs(family.of_run(run), run)


def ours_of(run: RunConfig) -> Model:
    model = load(run).build_model(STAMP)
    initialize(model, seed=run.encoder.hidden, std=0.1)
    return scattered(model, torch.Generator().manual_seed(run.encoder.intermediate))


def theirs_of(run: RunConfig, family: Family) -> transformers.PreTrainedModel:
    """Their model of the run's settings, with weights of its own: float64 that float32 can hold."""
    fields = transformers.CONFIG_MAPPING[family.model_type](**family.config(run, STAMP))
    torch.manual_seed(run.encoder.intermediate)
    return scattered(getattr(transformers, family.export_class)(fields))


def our_loss(run: RunConfig, ours: Model, batch: MicroBatch) -> Tensor:
    if run.objective.name in ("distilbert", "distilroberta"):  # their other terms need a teacher
        return F.cross_entropy(ours.logits(batch)["mlm"], batch.masked_ids)
    if isinstance(ours, Discriminator):  # its forward pass needs a generator
        judged = detect(ours.encoder, ours.rtd_head, batch, sampled(batch)).all
        return judged.loss / judged.count
    terms, _ = ours(batch)
    if run.objective.name == "spanbert":  # their class has no boundary head
        terms = {"mlm": terms["mlm"]}
    return sum(term.weight * term.sum / term.count for term in terms.values())


def sampled(batch: MicroBatch) -> Tensor:
    """Words in place of the masked ones, every other one of them the original."""
    even_R = torch.arange(len(batch.masked_ids)) % 2 == 0
    return torch.where(even_R, batch.masked_ids, 5)


def their_loss(
    run: RunConfig, theirs: transformers.PreTrainedModel, family: Family, batch: MicroBatch
) -> Tensor:
    """What transformers' own class says is the loss."""
    if run.objective.name == "causal":  # the class itself moves the labels by one token
        if run.objective.causal.direction == BACKWARDS:
            batch = reversed_examples(batch)
        inputs = family.inputs(batch, STAMP.pad)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        return theirs(**inputs, labels=labels).loss
    if "rtd" in family.heads:
        original_T, batch = batch.filled(batch.masked_ids).input_ids, batch.filled(sampled(batch))
        inputs = family.inputs(batch, STAMP.pad)
        logits_T = theirs(**inputs).logits[inputs["attention_mask"].bool()]
        # as the class does, which rounds the labels' type, and so its loss, to float32
        return F.binary_cross_entropy_with_logits(logits_T, (batch.input_ids != original_T).double())
    inputs, rows = family.inputs(batch, STAMP.pad), batch.masked_index
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[batch.example_index[rows], batch.positions[rows]] = batch.masked_ids
    pairs = {"next_sentence_label": batch.labels} if "nsp" in family.heads else {}
    return theirs(**inputs, labels=labels, **pairs).loss


@torch.no_grad()
def compare(run: RunConfig, ours: Model, theirs: transformers.PreTrainedModel, batch: MicroBatch) -> None:
    """The logits of every head, and the loss."""
    family = family_of(run)
    own, logits = ours.logits(batch), family.logits(theirs, batch, STAMP.pad)
    assert own.keys() == logits.keys()
    for head, values in logits.items():
        expected = values[batch.masked_index] if head == "mlm" else values
        torch.testing.assert_close(own[head], expected, rtol=0, atol=1e-9)
    with KeepFloat64():  # in which theirs would round a decoder's logits
        loss = their_loss(run, theirs, family, batch).item()
    assert our_loss(run, ours, batch).item() == pytest.approx(loss, rel=1e-9)


@examples_of(max_examples=4, deadline=None, phases=[Phase.generate])
@given(data=st.data())
@pytest.mark.parametrize("member", ["bert", "mlm", "causal", "roberta", "xlmr", "spanbert", *TAUGHT])
def test_our_weights_give_their_logits_and_loss_and_come_back(member: str, data: st.DataObject) -> None:
    run, batch = data.draw(runs(member)), data.draw(batches(member))
    family, ours = family_of(run), ours_of(run)
    theirs, fields = theirs_of(run, family), family.config(run, STAMP)
    state = without_padding(ours, dict(ours.named_parameters()))
    written = family.to_hugging_face(state, fields)
    missing, unexpected = theirs.load_state_dict(written, strict=False)
    assert not unexpected
    assert set(missing) <= set(family.tied)
    theirs.tie_weights()
    compare(run, ours, theirs, batch)
    back = family.from_hugging_face({n: t.float() for n, t in written.items()}, fields, Path("model"))
    assert back.keys() == {name for name in state if not name.startswith(BESIDE)}
    assert all(back[name].equal(state[name].float()) for name in back)


@examples_of(max_examples=4, deadline=None, phases=[Phase.generate])
@given(data=st.data())
@pytest.mark.parametrize("member", ["bert", "mlm", "causal", "spanbert", "electra_two_stage"])
def test_their_weights_give_our_logits_and_loss(member: str, data: st.DataObject) -> None:
    run, batch = data.draw(runs(member)), data.draw(batches(member))
    family, ours = family_of(run), ours_of(run)
    theirs = theirs_of(run, family)
    config = theirs.config.to_dict()
    assert family.differences(config, run, STAMP.size) == []
    state = family.from_hugging_face(theirs.state_dict(), config, Path("model"))
    unmatched = load_parameters(ours, state, partial=member == "spanbert")
    assert all(name.startswith(BESIDE) for name in unmatched)
    compare(run, ours, theirs, batch)
