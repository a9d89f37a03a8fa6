"""RoBERTa and XLM-R against transformers: weights both ways, positions behind <pad>, segments folded, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from data_pipeline.vocabulary.base import Vocabulary
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.export.export import export
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.load import quiet
from pretrain.huggingface.registry import FAMILIES
from pretrain.model.batch import IGNORED, MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load
from pretrain.preflight.check_run import check_vocabulary
from tests.factories.exports import CARD
from tests.factories.models import config_of, fresh_model
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples

MEMBERS = {"roberta": "RobertaForMaskedLM", "xlmr": "XLMRobertaForMaskedLM"}
KINDS = {"roberta": "bpe", "xlmr": "unigram"}


def vocabulary_of(name: str) -> Vocabulary:
    """A small vocabulary of the member's kind, with its special tokens."""
    return trained(KINDS[name], specials="roberta" if name == "xlmr" else "")


shapes = st.fixed_dictionaries(
    {
        "heads": st.integers(1, 3),
        "size": st.integers(1, 5),  # of a head
        "layers": st.integers(1, 2),
        "intermediate": st.integers(3, 20),
        "max_positions": st.integers(9, 20),
        "words": st.integers(11, 90),
        "pad": st.integers(0, 4),
        "seed": st.integers(0, 999),
    }
)


def theirs_of(family: str, shape: dict[str, int]) -> tuple[RunConfig, transformers.PreTrainedModel]:
    """A model of transformers with random weights, none of them zero but for <pad>'s rows, and our settings for it."""
    encoder = EncoderSettings(
        layers=shape["layers"], hidden=shape["heads"] * shape["size"] * 2, heads=shape["heads"],
        intermediate=shape["intermediate"], max_positions=shape["max_positions"], activation="gelu", segments=0,
        layer_norm_eps=1e-5, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    name = next(member for member, exported in MEMBERS.items() if exported == family)
    config = config_of(name, encoder)
    stamp = VocabularyStamp("", shape["words"], cls=5, sep=6, mask=7, pad=shape["pad"], unk=8)
    fields = FAMILIES[family].config(config, stamp)
    torch.manual_seed(shape["seed"])
    kind = getattr(transformers, family)
    with quiet():
        theirs = kind(kind.config_class(**fields)).double().eval()
    for parameter in theirs.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return config, theirs


def batch_of(shape: dict[str, int]) -> MicroBatch:
    """Examples of many lengths, up to all positions, <pad> not among their tokens, some of them to predict."""
    draws = np.random.RandomState(shape["seed"])
    lengths = [3, shape["max_positions"], *draws.randint(3, shape["max_positions"], 3)]
    ids = np.setdiff1d(np.arange(shape["words"]), shape["pad"])
    sequences = [draws.choice(ids, n).tolist() for n in lengths]
    masked = [{int(p): int(draws.choice(ids)) for p in draws.choice(n, 2, replace=False)} for n in lengths]
    return MicroBatch.from_lists(sequences, masked=masked)


def their_loss(theirs: transformers.PreTrainedModel, family: str, batch: MicroBatch, pad: int) -> Tensor:
    """What transformers' own class says is the loss."""
    inputs = FAMILIES[family].inputs(batch, pad)
    flat = torch.full((batch.tokens,), -100)
    flat[batch.masked_index] = batch.masked_ids
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[inputs["attention_mask"].bool()] = flat
    return theirs(**inputs, labels=labels).loss


@pytest.mark.parametrize("family", MEMBERS.values())
@settings(max_examples=4, deadline=None)
@given(shape=shapes)
def test_their_random_weights_give_our_logits_and_loss(
    family: str, shape: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    config, theirs = theirs_of(family, shape)
    folder = tmp_path_factory.mktemp("theirs")
    with quiet():
        theirs.float().save_pretrained(folder)
    theirs.double()
    state = read_weights(folder, config, shape["words"])
    ours = load(config).build_model(VocabularyStamp.of_size(shape["words"])).double().eval()
    batch = batch_of(shape)
    with torch.no_grad():  # folded in float32: of the sum of two tables there is one rounding
        table = theirs.roberta.embeddings
        positions = table.position_embeddings.weight[shape["pad"] + 1 :] + table.token_type_embeddings.weight
        assert (state["encoder.embeddings.position.weight"] - positions).abs().max() < 1e-6
        load_parameters(ours, state | {"encoder.embeddings.position.weight": positions}, where="theirs")
        every = replace(
            batch,
            masked_index=torch.arange(batch.tokens),
            masked_ids=torch.full((batch.tokens,), IGNORED),
        )
        logits = FAMILIES[family].logits(theirs, batch, shape["pad"])["mlm"]
        torch.testing.assert_close(ours.logits(every)["mlm"], logits, rtol=0, atol=1e-9)
        [term] = ours(batch)[0].values()
        expected = their_loss(theirs, family, batch, shape["pad"])
    assert (term.sum / term.count).item() == pytest.approx(expected.item(), abs=1e-9)


def exported(name: str, folder: Path, **encoder: Any) -> tuple[Model, dict[str, Tensor]]:
    """A model of random weights exported with a vocabulary of its kind, and the tensors of the file."""
    vocabulary = vocabulary_of(name)
    settings = EncoderSettings(
        layers=2, hidden=24, heads=3, intermediate=40, max_positions=48, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3, layer_norm_eps=1e-5, **encoder,
    )  # fmt: skip
    model = fresh_model(name, settings, vocabulary.size, seed=1)
    examples = masked_examples(12, vocabulary.size, pairs=False)
    examples.tokens[:5] = vocabulary.pad  # as random replacement may write it
    config = config_of(name, settings)
    parity = export(dict(model.named_parameters()), config, vocabulary.json, folder, examples, CARD)
    assert parity["mlm"].difference <= parity["mlm"].allowed
    return model, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", MEMBERS)
def test_an_export_is_what_transformers_expects(name: str, tmp_path: Path) -> None:
    model, stored = exported(name, tmp_path / "model")
    vocabulary = vocabulary_of(name)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    before = vocabulary.pad + 1
    assert (config.max_position_embeddings, config.type_vocab_size) == (48 + before, 1)
    assert (config.pad_token_id, config.bos_token_id) == (vocabulary.pad, vocabulary.cls)
    assert config.eos_token_id == vocabulary.sep
    positions = stored["roberta.embeddings.position_embeddings.weight"]
    assert not positions[:before].any()
    assert before == 2
    assert positions[before:].equal(model.get_parameter("encoder.embeddings.position.weight").detach())
    assert stored["roberta.embeddings.token_type_embeddings.weight"].equal(torch.zeros(1, 24))
    assert [key for key in stored if "decoder" in key or "pooler" in key] == ["lm_head.decoder.bias"]

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    for role in ("bos", "eos", "cls", "sep", "pad", "unk", "mask"):
        place = {"bos": "cls", "eos": "sep"}.get(role, role)
        assert getattr(tokenizer, f"{role}_token_id") == getattr(vocabulary, place)
    encoded = tokenizer("the man", "the end")
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert (encoded["input_ids"][0], encoded["input_ids"][-1]) == (vocabulary.cls, vocabulary.sep)
    filled = transformers.pipeline("fill-mask", model=str(tmp_path / "model"))
    assert len(filled(f"the {tokenizer.mask_token} end")) == 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["vocabulary.kind=wordpiece"], "vocabulary.kind=wordpiece does not fit objective.name=roberta (choose bpe)"),
        (["encoder.segments=2"], "encoder.segments=2 does not fit objective.name=roberta (choose 0)"),
        (["encoder.activation=gelu_tanh"], "encoder.activation=gelu_tanh does not fit"),
        (["data.sequences=sentence_order"], "cannot learn from data.sequences=sentence_order"),
        (["objective.name=xlmr"], "vocabulary.kind=bpe does not fit objective.name=xlmr"),
        (["objective.name=xlmr", "vocabulary.kind=unigram"], "vocabulary.specials= does not fit objective.name=xlmr"),
        (["vocabulary.specials=roberta"], "vocabulary.specials=roberta with vocabulary.kind=bpe"),
        (["objective.name=mlm", "encoder.segments=1"], "encoder.segments=1 tells nothing apart"),
    ],
)  # fmt: skip
def test_what_is_no_roberta_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("roberta_tiny", settings)
    assert said in str(caught.value)


@pytest.mark.parametrize(("name", "other"), [("roberta", "wordpiece"), ("xlmr", "bpe")])
def test_a_vocabulary_of_another_kind_is_refused(name: str, other: str) -> None:
    config = load_config(f"{name}_tiny", [])
    check_vocabulary(config, vocabulary_of(name), "folder")
    with pytest.raises(
        UserError, match=rf"^folder: the vocabulary is {other} \(expected {KINDS[name]}, which"
    ):
        check_vocabulary(config, trained(other), "folder")


@pytest.mark.parametrize("name", ["roberta_base", "roberta_tiny", "xlmr_base", "xlmr_tiny"])
def test_recipes_are_of_their_kind(name: str) -> None:
    for phase in phases_of(load_config(name, [])):
        config = phase.config
        assert config.data.dynamic_masking
        assert (config.data.sequences, config.data.short_seq_prob) == ("full_sentences", 0.0)
        assert (config.encoder.segments, config.encoder.layer_norm_eps) == (0, 1e-5)
        assert (config.optim.betas, config.optim.weight_decay) == ([0.9, 0.98], 0.01)
    if name.startswith("xlmr"):
        assert (config.data.smoothing, config.data.across_languages) == (0.3, False)


def test_roberta_base_has_its_parameters() -> None:
    """124,697,433: base with 514 positions, one segment, 50,265 entries (objectives of Liu et al. 2019)."""
    config = load_config("roberta_base", [])
    with torch.device("meta"):
        model = load(config).build_model(VocabularyStamp.of_size(50_265))
    shapes = without_padding(model, dict(model.named_parameters()))
    added = (2 + 1) * 768  # rows that only transformers has
    assert sum(p.numel() for p in shapes.values()) + added == 124_697_433
