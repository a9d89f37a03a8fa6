"""Our student against transformers' DistilBERT with equal weights: logits and loss in float64."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.huggingface.bert import DISTILBERT_FOR_MASKED_LM
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.registry import load
from tests.factories.models import config_of

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)


@examples_of(max_examples=8, deadline=None)
@given(st.data())
def test_their_weights_give_their_logits_and_loss(data: st.DataObject) -> None:
    heads = data.draw(st.integers(1, 3))
    encoder = EncoderSettings(
        layers=data.draw(st.integers(1, 3)),
        hidden=8 * heads,
        heads=heads,
        intermediate=data.draw(st.integers(5, 40)),
        activation=data.draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        max_positions=20,
    )
    config, family = config_of("distilbert", encoder), DISTILBERT_FOR_MASKED_LM
    fields = family.config(config, STAMP)
    torch.manual_seed(heads)
    theirs = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**fields)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    ours = load(config).build_model(STAMP)
    stored = {name: tensor.detach() for name, tensor in theirs.named_parameters(remove_duplicate=False)}
    load_parameters(ours, family.from_hugging_face(stored, fields, "here"))  # type: ignore[arg-type]

    words = st.lists(st.integers(5, STAMP.size - 1), min_size=2, max_size=16)
    texts = data.draw(st.lists(words, min_size=1, max_size=4))
    batch = MicroBatch.from_lists(
        [[2, 4, *ids[1:], 3] for ids in texts], masked=[{1: ids[0]} for ids in texts]
    )
    expected = family.logits(theirs.double(), batch, pad=0)["mlm"][batch.masked_index]
    found = ours.double().eval().logits(batch)["mlm"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    columns = family.inputs(batch, pad=0)
    labels = torch.full_like(columns["input_ids"], -100)
    labels[:, 1] = batch.masked_ids
    loss = F.cross_entropy(found, batch.masked_ids)
    assert theirs(**columns, labels=labels).loss.item() == pytest.approx(loss.item(), rel=1e-9)
    back = family.to_hugging_face(without_padding(ours, dict(ours.named_parameters())), fields)
    assert all(back[name].float().equal(stored[name].float()) for name in back)
    assert stored.keys() - back.keys() == {"vocab_projector.weight"}


def test_distilbert_base_has_its_parameters() -> None:
    """66,985,530: DistilBERT-base with its head, of the uncased vocabulary."""
    config = config_of("distilbert", EncoderSettings(layers=6))
    with torch.device("meta"):
        module = load(config).build_model(VocabularyStamp.of_size(30522))
    shapes = without_padding(module, dict(module.named_parameters()))
    assert sum(p.numel() for p in shapes.values()) == 66_985_530
