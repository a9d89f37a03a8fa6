"""ALBERT against transformers: weights both ways over sizes, groups and sharing, what is refused, its tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import NOTE
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.export import export
from pretrain.huggingface.albert import ALBERT_FOR_PRETRAINING
from pretrain.huggingface.folder import merge_shared, read_weights
from pretrain.huggingface.load import quiet
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from tests.factories.exports import CARD
from tests.factories.models import config_of, fresh_model, scattered, scattered_model
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)
PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
ONE_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0.{}"


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    heads, layers = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    sharing = draw(st.sampled_from(["none", "all", "attention", "feed_forward"]))
    encoder = EncoderSettings(
        layers=layers,
        hidden=8 * heads,
        embedding_size=draw(st.sampled_from([0, 6, 8 * heads, 40])),
        sharing=sharing,
        groups=1 if sharing == "none" else draw(st.integers(1, layers)),
        heads=heads,
        intermediate=draw(st.integers(5, 40)),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        max_positions=20,
        segments=draw(st.sampled_from([0, 2, 3])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
    )
    run = RunConfig(encoder=encoder)
    run.objective.name, run.data.sequences = "albert", "sentence_order"
    return run


@st.composite
def batches(draw: st.DrawFn) -> MicroBatch:
    words = st.lists(st.integers(5, STAMP.size - 1), min_size=2, max_size=16)
    sequences = [[STAMP.cls, *ids, STAMP.sep] for ids in draw(st.lists(words, min_size=1, max_size=4))]
    firsts = [draw(st.integers(1, len(ids))) for ids in sequences]
    masked = [{1: ids[1], len(ids) - 2: ids[-2]} for ids in sequences]
    labels = [draw(st.integers(0, 1)) for _ in sequences]
    return MicroBatch.from_lists(sequences, firsts, masked, labels)


def theirs_of(config: dict[str, Any]) -> transformers.AlbertForPreTraining:
    """Their model with weights of its own: float64 that float32 can hold."""
    torch.manual_seed(3)
    model = transformers.AlbertForPreTraining(transformers.AlbertConfig(**config)).eval()
    return scattered(model)


def compare(ours: Model, theirs: transformers.AlbertForPreTraining, batch: MicroBatch) -> None:
    """Both heads' logits, and the sum of both losses."""
    with torch.no_grad():
        terms, _ = ours(batch)
        own, logits = ours.logits(batch), ALBERT_FOR_PRETRAINING.logits(theirs, batch, STAMP.pad)
        torch.testing.assert_close(own["mlm"], logits["mlm"][batch.masked_index], rtol=0, atol=1e-9)
        torch.testing.assert_close(own["nsp"], logits["nsp"], rtol=0, atol=1e-9)
        inputs = ALBERT_FOR_PRETRAINING.inputs(batch, STAMP.pad)
        targets_T = torch.full((batch.tokens,), -100)
        targets_T[batch.masked_index] = batch.masked_ids
        targets = torch.full_like(inputs["input_ids"], -100)
        targets = targets.masked_scatter(inputs["attention_mask"].bool(), targets_T)
        loss = theirs(**inputs, labels=targets, sentence_order_label=batch.labels).loss
    assert set(terms) == {"mlm", "sop"}
    mean = sum((term.sum / term.count).item() for term in terms.values())
    assert mean == pytest.approx(loss.item(), rel=1e-9)


@examples_of(max_examples=12, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_our_weights_give_their_logits_and_losses_and_come_back(run: RunConfig, batch: MicroBatch) -> None:
    if run.encoder.segments == 0:
        batch = replace(batch, segment_ids=torch.zeros_like(batch.segment_ids))
    ours, config = scattered_model(run, STAMP), ALBERT_FOR_PRETRAINING.config(run, STAMP)
    theirs = theirs_of(config)
    state = without_padding(ours, dict(ours.named_parameters()))
    written = ALBERT_FOR_PRETRAINING.to_hugging_face(state, config)
    missing, unexpected = theirs.load_state_dict(written, strict=False)
    assert not unexpected
    assert set(missing) <= set(ALBERT_FOR_PRETRAINING.tied)
    theirs.tie_weights()
    compare(ours, theirs, batch)
    single = {name: tensor.detach().float() for name, tensor in written.items()}
    back = ALBERT_FOR_PRETRAINING.from_hugging_face(single, config, Path("model"))
    merged = merge_shared(back, run.encoder, Path("model"))
    assert merged.keys() == state.keys()
    if run.encoder.segments:
        assert all(merged[name].equal(tensor.detach().float()) for name, tensor in state.items())


@examples_of(max_examples=8, deadline=None, phases=[Phase.generate])
@given(run=runs(), batch=batches())
def test_their_weights_give_our_logits_and_losses(run: RunConfig, batch: MicroBatch) -> None:
    run.encoder.segments = 2
    if run.encoder.sharing in ("attention", "feed_forward"):  # theirs have no equal halves of layers
        run.encoder.sharing = "all"
    config = ALBERT_FOR_PRETRAINING.config(run, STAMP)
    theirs = theirs_of(config)
    projection = theirs.albert.encoder.embedding_hidden_mapping_in
    with torch.no_grad():
        if run.encoder.embedding_width == run.encoder.hidden:
            projection.weight.copy_(torch.eye(run.encoder.hidden))
            projection.bias.zero_()
    assert ALBERT_FOR_PRETRAINING.differences(theirs.config.to_dict(), run, STAMP.size) == []
    state = ALBERT_FOR_PRETRAINING.from_hugging_face(theirs.state_dict(), config, Path("model"))
    for settings in (run.encoder, replace(run.encoder, sharing="none", groups=1)):
        ours = scattered_model(replace(run, encoder=settings), STAMP)
        load_parameters(ours, merge_shared(state, settings, Path("model")))
        compare(ours, theirs, batch)


def exported(folder: Path, kind: str = "unigram", **changes: Any) -> tuple[RunConfig, dict[str, Tensor]]:
    """A model of random weights exported with a vocabulary of this kind, and our names and tensors."""
    vocabulary = trained(kind)
    settings = EncoderSettings(
        layers=3, hidden=24, embedding_size=10, heads=3, intermediate=40, max_positions=48, dropout=0.0,
        attention_dropout=0.0, initializer_range=0.3,
    )  # fmt: skip
    config = config_of("albert", replace(settings, **changes))
    config.data.sequences = "sentence_order"
    model = fresh_model("albert", config.encoder, vocabulary.size, seed=1)
    state = without_padding(model, {name: p.detach() for name, p in model.named_parameters()})
    parity = export(state, config, vocabulary.json, folder, masked_examples(12, vocabulary.size), CARD)
    assert set(parity) == {"mlm", "nsp"}
    return config, state


def test_an_export_is_what_transformers_expects(tmp_path: Path) -> None:
    config, state = exported(tmp_path / "model", sharing="all")
    vocabulary, fields = trained("unigram"), transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert (fields.num_hidden_groups, fields.inner_group_num, fields.embedding_size) == (1, 1, 10)
    assert (fields.pad_token_id, fields.bos_token_id, fields.eos_token_id) == (0, 2, 3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
    encoded = tokenizer("The man", "the END")
    assert encoded["input_ids"] == tokenizer("the man", "the end")["input_ids"]
    assert set(encoded) == {"input_ids", "token_type_ids", "attention_mask"}
    assert encoded["token_type_ids"][-1] == 1
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert [name for name in stored if "decoder" in name] == ["predictions.decoder.bias"]
    back = read_weights(tmp_path / "model", config, vocabulary.size)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in state)
    with quiet():
        encoder = transformers.AlbertModel.from_pretrained(tmp_path / "model")
        encoder.save_pretrained(tmp_path / "headless")
    headless = read_weights(tmp_path / "headless", config, vocabulary.size)
    assert headless.keys() == {n for n in state if n.startswith("encoder.")} | {
        "nsp_head.pooler.weight",
        "nsp_head.pooler.bias",
    }


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_its_vocabulary_may_be_of_another_kind(kind: str, tmp_path: Path) -> None:
    exported(tmp_path / "model", kind, sharing="all")
    vocabulary, tokenizer = trained(kind), transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("The man", "the end")["input_ids"]
    assert (ids[0], ids[-1], tokenizer.mask_token_id) == (vocabulary.cls, vocabulary.sep, vocabulary.mask)
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "model"))
    assert len(fill(f"a {tokenizer.mask_token}")) == 5


@pytest.mark.parametrize(("sharing", "groups"), [("attention", 1), ("feed_forward", 2)])
def test_a_shared_half_is_copied_and_merged_again_only_if_it_is_equal(
    sharing: str, groups: int, tmp_path: Path
) -> None:
    folder, size = tmp_path / "model", trained("unigram").size
    config, state = exported(folder, sharing=sharing, groups=groups)
    assert transformers.AutoConfig.from_pretrained(folder).num_hidden_groups == 3
    back = read_weights(folder, config, size)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in state)

    stored = load_file(folder / "model.safetensors")
    copy = ONE_LAYER.format(1, "attention.key.weight" if sharing == "attention" else "ffn.bias")
    stored[copy] = stored[copy] + 1e-3
    (folder / NOTE).unlink()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=r"encoder\.layers\.1\.\S+ differs from encoder\.layers\.0\."
    ) as caught:
        read_weights(folder, config, size)
    assert f"where encoder.sharing={sharing} with encoder.groups={groups} has one" in str(caught.value)
    assert "\n" not in str(caught.value)
    config.encoder.sharing, config.encoder.groups = "none", 1
    assert len(read_weights(folder, config, size)) > len(state)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("inner_group_num", 2, "inner_group_num is 2, which must be 1"),
        ("num_hidden_groups", 0, "num_hidden_groups is 0, which must be from 1 to num_hidden_layers=3"),
        ("num_hidden_groups", 4, "num_hidden_groups is 4, which must be"),
        ("num_hidden_groups", "1", "num_hidden_groups is 1, which must be"),
        ("embedding_size", 12, "encoder.embedding_size is 10, embedding_size 12"),
    ],
)
def test_another_config_is_refused(field: str, value: object, said: str) -> None:
    run = RunConfig(encoder=EncoderSettings(layers=3, embedding_size=10, sharing="all"))
    config = ALBERT_FOR_PRETRAINING.config(run, STAMP)
    assert ALBERT_FOR_PRETRAINING.differences(config, run, STAMP.size) == []
    [found] = ALBERT_FOR_PRETRAINING.differences(config | {field: value}, run, STAMP.size)
    assert found.startswith(said)


def test_wide_embeddings_have_no_projection(tmp_path: Path) -> None:
    config, _ = exported(tmp_path / "model", embedding_size=24, sharing="all", groups=2)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored[f"{PROJECTION}.weight"].equal(torch.eye(24))
    assert not stored[f"{PROJECTION}.bias"].any()
    stored[f"{PROJECTION}.bias"][3] = 0.5
    (tmp_path / "model" / NOTE).unlink()
    save_file(stored, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="projects embeddings that are as wide as the encoder"):
        read_weights(tmp_path / "model", config, trained("unigram").size)
