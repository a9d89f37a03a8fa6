"""Our packed model against transformers' padded one with equal weights: logits, losses and every gradient."""

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.huggingface.base import Family
from pretrain.huggingface.registry import FAMILIES
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import with_defaults
from tests.factories.models import config_of, fresh_model

VOCABULARY = 85
STAMP = VocabularyStamp("", VOCABULARY, cls=2, sep=3, mask=4, pad=0, unk=1)


def pair(name: str, settings: EncoderSettings) -> tuple[Model, transformers.PreTrainedModel, Family]:
    """Our model and transformers' with the same weights, in float64, and the family that says how."""
    ours = fresh_model(name, settings, VOCABULARY, seed=5)
    family_name = with_defaults(name).families[0]
    family = FAMILIES[family_name]
    fields = family.config(config_of(name, settings), STAMP)
    theirs = getattr(transformers, family_name)(transformers.CONFIG_MAPPING[family.model_type](**fields))
    state = without_padding(ours, dict(ours.named_parameters()))
    missing, unexpected = theirs.load_state_dict(family.to_hugging_face(state, fields), strict=False)
    assert not unexpected
    assert set(missing) <= set(family.tied)
    theirs.tie_weights()
    return ours.double(), theirs.double(), family


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu"])
@pytest.mark.parametrize("name", ["bert", "mlm"])
def test_losses_and_gradients(
    name: str, activation: str, settings: EncoderSettings, examples: Examples, streams: Examples
) -> None:
    settings.activation = activation
    ours, theirs, family = pair(name, settings)
    batch = MicroBatch.from_examples(examples if with_defaults(name).pairs else streams)
    terms, _ = ours(batch)
    sum(t.weight * t.sum / t.count for t in terms.values()).backward()

    logits = family.logits(theirs, batch, pad=0)
    expected = {}
    if "mlm" in logits:
        expected["mlm"] = F.cross_entropy(logits["mlm"][batch.masked_index], batch.masked_ids)
    if "causal" in logits:
        expected["causal"] = F.cross_entropy(logits["causal"], batch.next_tokens(), ignore_index=-1)
    if "nsp" in logits:
        expected["nsp"] = F.cross_entropy(logits["nsp"], batch.labels)
    assert terms.keys() == expected.keys()
    for term, loss in expected.items():
        assert (terms[term].sum / terms[term].count).item() == pytest.approx(loss.item(), rel=1e-12)

    sum(expected.values()).backward()
    gradients = dict(theirs.named_parameters(remove_duplicate=False))
    for parameter, gradient in without_padding(ours, {n: p.grad for n, p in ours.named_parameters()}).items():
        name, weight = family._to(parameter)
        reference = weight.back(gradients[name].grad, theirs.config.to_dict())
        if parameter.endswith("word.weight"):  # transformers lets no gradient through its lookup of [PAD]
            gradient, reference = gradient[1:], reference[1:]
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-12, msg=parameter)


def test_their_own_loss_is_ours(settings: EncoderSettings, examples: Examples) -> None:
    """BertForPreTraining's loss is the mean over masked tokens plus the mean over pairs, as our terms add up."""
    ours, theirs, _ = pair("bert", settings)
    batch = MicroBatch.from_examples(examples.take(np.arange(4)))
    terms, _ = ours(batch)
    longest = max(batch.lengths)
    shown = torch.arange(longest)[None, :] < torch.tensor(batch.lengths)[:, None]
    columns = {name: torch.zeros(shown.shape, dtype=torch.int64) for name in ("input_ids", "token_type_ids")}
    columns["input_ids"][shown], columns["token_type_ids"][shown] = batch.input_ids, batch.segment_ids
    flat = torch.full((batch.tokens,), -100)
    flat[batch.masked_index] = batch.masked_ids
    labels = torch.full(shown.shape, -100)
    labels[shown] = flat
    out = theirs(**columns, attention_mask=shown.long(), labels=labels, next_sentence_label=batch.labels)
    total = sum(t.weight * t.sum / t.count for t in terms.values())
    assert total.item() == pytest.approx(out.loss.item(), rel=1e-12)


def test_bert_base_has_its_parameters() -> None:
    """110,106,428: BERT-base with both heads (objectives of Devlin et al. 2019, uncased vocabulary)."""
    with torch.device("meta"):
        module = with_defaults("bert").build_model(VocabularyStamp.of_size(30522))
    shapes = without_padding(module, dict(module.named_parameters()))
    assert sum(p.numel() for p in shapes.values()) == 110_106_428
