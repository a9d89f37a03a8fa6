"""ModernBERT and EuroBERT against transformers' with equal weights, both ways, and what an encoder is exported as."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export import export
from pretrain.export.parity import KeepFloat64
from pretrain.huggingface.base import Family
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.load import quiet
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from pretrain.huggingface.registry import chosen_families, family_of
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load
from tests.factories.exports import CARD, random_weights
from tests.factories.models import config_of, scattered, scattered_model

STAMP = VocabularyStamp("", 70, cls=2, sep=3, mask=4, pad=0, unk=1)
FAMILIES = (MODERNBERT_FOR_MASKED_LM, EUROBERT_FOR_MASKED_LM)
LONGEST = 60


def modern(family: Family, **changes: object) -> EncoderSettings:
    """A small encoder that the family has a place for."""
    sizes = {"layers": 3, "hidden": 24, "heads": 2, "intermediate": 40, "max_positions": LONGEST}
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3, "layer_norm_eps": 1e-5}
    return EncoderSettings(**{**sizes, **rates, "activation": "gelu", **family.implied, **changes})


@st.composite
def runs(draw: st.DrawFn, family: Family) -> RunConfig:
    heads = draw(st.sampled_from([1, 2, 4]))
    changes = {
        "layers": draw(st.integers(1, 5)),
        "heads": heads,
        "hidden": heads * draw(st.sampled_from([2, 6, 8])),
        "intermediate": draw(st.integers(5, 40)),
        "activation": draw(st.sampled_from(["gelu", "gelu_tanh", "relu", "silu"])),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "rope_theta": draw(st.sampled_from([10_000.0, 160_000.0, 17.0])),
        "biases": draw(st.booleans()),
    }
    if family is MODERNBERT_FOR_MASKED_LM:
        changes["norm_biases"] = draw(st.booleans())
        changes["global_every"] = draw(st.integers(1, 4))
        changes["local_attention"] = draw(st.sampled_from([2, 4, 7, 16, 128]))  # of 7 keys: 3 on either side
        changes["local_rope_theta"] = draw(st.sampled_from([10_000.0, 23.0]))
    else:
        changes["kv_heads"] = draw(st.sampled_from([n for n in (0, 1, 2, 4) if heads % (n or 1) == 0]))
    return config_of("mlm", modern(family, **changes))


@st.composite
def batches(draw: st.DrawFn) -> MicroBatch:
    words = st.lists(st.integers(0, STAMP.size - 1), min_size=2, max_size=LONGEST - 2)
    return MicroBatch.from_lists(
        [[STAMP.cls, *ids, STAMP.sep] for ids in draw(st.lists(words, min_size=1, max_size=3))],
        masked=None,
    )


def empty(family: Family, run: RunConfig) -> transformers.PreTrainedModel:
    """Their model of the run's settings, with weights of its own: float64 that float32 can hold."""
    fields = transformers.CONFIG_MAPPING[family.model_type](**family.config(run, STAMP))
    torch.manual_seed(3)
    model = getattr(transformers, family.export_class)(fields).eval()
    return scattered(model)


@torch.no_grad()
def compare(ours: Model, theirs: transformers.PreTrainedModel, family: Family, batch: MicroBatch) -> None:
    batch = replace(batch, masked_index=torch.arange(batch.tokens), masked_ids=batch.input_ids)
    own = ours.logits(batch)["mlm"]
    with KeepFloat64():  # in which theirs would round rotations
        logits = family.logits(theirs, batch, STAMP.pad)["mlm"]
    allowed = 1e-9 * max(1.0, float(own.abs().max()))
    torch.testing.assert_close(own, logits, rtol=0, atol=allowed)


@examples_of(max_examples=8, deadline=None, phases=[Phase.generate])
@given(data=st.data())
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.export_class)
def test_our_weights_give_their_logits_and_come_back(family: Family, data: st.DataObject) -> None:
    run, batch = data.draw(runs(family)), data.draw(batches())
    ours, theirs = scattered_model(run, STAMP), empty(family, run)
    state = without_padding(ours, dict(ours.named_parameters()))
    fields = family.config(run, STAMP)
    written = family.to_hugging_face(state, fields)
    missing, unexpected = theirs.load_state_dict(written, strict=False)
    assert not unexpected
    assert set(missing) <= set(family.tied)
    theirs.tie_weights()
    compare(ours, theirs, family, batch)
    back = family.from_hugging_face({n: t.float() for n, t in written.items()}, fields, Path("model"))
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name].float()) for name in back)


@examples_of(max_examples=8, deadline=None, phases=[Phase.generate])
@given(data=st.data())
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.export_class)
def test_their_weights_give_our_logits(family: Family, data: st.DataObject) -> None:
    run, batch = data.draw(runs(family)), data.draw(batches())
    ours, theirs = scattered_model(run, STAMP), empty(family, run)
    config = theirs.config.to_dict()
    assert family.differences(config, run, STAMP.size) == []
    state = family.from_hugging_face(theirs.state_dict(), config, Path("model"))
    load_parameters(ours, state)
    compare(ours, theirs, family, batch)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.export_class)
def test_an_export_is_proven_read_back_and_its_tokenizer_gives_no_segments(
    family: Family, tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    own = (
        {"global_every": 2, "local_attention": 16, "local_rope_theta": 50.0} if family is FAMILIES[0] else {}
    )
    settings = modern(family, rope_theta=300.0, **own)
    config, state, folder = config_of("mlm", settings), random_weights("mlm", settings), tmp_path / "model"
    assert set(export.export(state, config, tokenizer_json, folder, streams, CARD)) == {"mlm"}
    assert family_of(folder)[0] is family
    back = read_weights(folder, config, 85)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in back)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert set(tokenizer("the quick fox")) == {"input_ids", "attention_mask"}
    stated = json.loads((folder / "config.json").read_text("utf-8"))
    read = family.settings(stated)
    assert {name: getattr(settings, name) for name in own} == {name: read[name] for name in own}
    assert read["rope_theta"] == 300.0
    with quiet():
        plain = transformers.AutoModel.from_pretrained(folder)
    assert type(plain).__name__ == family.export_class.replace("ForMaskedLM", "Model")
    with pytest.raises(UserError, match=r"encoder\.norm_place is post, "):
        read_weights(folder, config_of("mlm", replace(settings, norm_place="post")), 85)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.export_class)
def test_a_run_continues_with_a_larger_base_of_rope_and_its_export_has_it(
    family: Family, tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    settings = modern(family, rope_theta=300.0)
    state = random_weights("mlm", settings)
    export.export(state, config_of("mlm", settings), tokenizer_json, tmp_path / "short", streams, CARD)
    longer = config_of("mlm", replace(settings, rope_theta=9000.0))
    back = read_weights(tmp_path / "short", longer, 85)
    assert all(back[name].equal(state[name]) for name in state)
    found = export.export(back, longer, tokenizer_json, tmp_path / "long", streams, CARD)
    assert found["mlm"].difference <= found["mlm"].allowed  # transformers rotates by the new base as we do
    stated = [json.loads((tmp_path / name / "config.json").read_text("utf-8")) for name in ("short", "long")]
    assert [family.settings(one)["rope_theta"] for one in stated] == [300.0, 9000.0]
    with pytest.raises(UserError, match=r"encoder\.positions is learned, "):
        read_weights(tmp_path / "short", config_of("mlm", replace(settings, positions="learned")), 85)


def test_keys_of_both_generations_are_written_and_the_newer_decide() -> None:
    family = MODERNBERT_FOR_MASKED_LM
    run = config_of("mlm", modern(family, layers=4, global_every=2, rope_theta=300.0, local_rope_theta=50.0))
    older = family.config(run, STAMP)
    assert (older["global_attn_every_n_layers"], older["global_rope_theta"], older["local_rope_theta"]) == (
        2,
        300,
        50,
    )
    newer = transformers.ModernBertConfig(**older).to_dict()
    without = {k: v for k, v in newer.items() if k not in ("global_attn_every_n_layers", "global_rope_theta")}
    assert family.settings(without)["rope_theta"] == 300.0
    assert family.settings(without)["global_every"] == 2
    assert family.settings({**newer, "layer_types": ["full_attention"] * 4})["global_every"] == 1
    odd = {**newer, "layer_types": [*newer["layer_types"][:3], "full_attention"]}
    assert any("encoder.global_every" in line for line in family.differences(odd, run, STAMP.size))
    scaled = {"full_attention": {"rope_type": "yarn", "rope_theta": 300.0}}
    told = family.differences({**newer, "rope_parameters": scaled}, run, STAMP.size)
    assert any("encoder.rope_theta" in line for line in told)
    assert any(
        "mlp_bias" in line for line in family.differences({**newer, "mlp_bias": False}, run, STAMP.size)
    )


def test_one_rate_of_dropout_is_in_every_field_that_has_one_and_a_folder_may_differ() -> None:
    run = config_of("bert", replace(modern(MODERNBERT_FOR_MASKED_LM), dropout=0.2, attention_dropout=0.3))
    fields = MODERNBERT_FOR_MASKED_LM.config(run, STAMP)
    rates = {name: value for name, value in fields.items() if name.endswith("_dropout")}
    assert rates == {"embedding_dropout": 0.2, "mlp_dropout": 0.2, "attention_dropout": 0.3}
    other = {**fields, "mlp_dropout": 0.0}
    assert MODERNBERT_FOR_MASKED_LM.differences(other, run, STAMP.size) == []


def test_the_encoder_chooses_what_it_is_exported_as() -> None:
    def chosen(name: str, encoder: EncoderSettings) -> list[str]:
        config = config_of(name, encoder)
        return [family.export_class for family in chosen_families(load(config).families, config)]

    for name, plain in (
        ("mlm", "BertForMaskedLM"),
        ("bert", "BertForPreTraining"),
        ("roberta", "RobertaForMaskedLM"),
    ):
        assert chosen(name, EncoderSettings()) == [plain]
        for family in FAMILIES:
            assert chosen(name, modern(family)) == [family.export_class]
    # what changes nothing in an encoder stands in no way: as many heads of keys, local layers where there are none
    assert chosen("mlm", EncoderSettings(kv_heads=12, local_attention=64)) == ["BertForMaskedLM"]
    assert chosen("mlm", modern(FAMILIES[0], kv_heads=2)) == ["ModernBertForMaskedLM"]
    unused = {"local_attention": 16, "local_rope_theta": 250_000.0}
    assert chosen("mlm", modern(FAMILIES[1], **unused)) == ["EuroBertForMaskedLM"]
    for encoder in (modern(FAMILIES[0], kv_heads=1), modern(FAMILIES[1], global_every=2, **unused)):
        with pytest.raises(UserError, match="no class of transformers has such an encoder"):
            chosen("mlm", encoder)
    with pytest.raises(
        UserError, match=r"no class of transformers has such an encoder: encoder\.gated is False"
    ):
        chosen("mlm", modern(MODERNBERT_FOR_MASKED_LM, gated=False))


@pytest.mark.parametrize(("name", "head"), [("bert", "nsp_head"), ("spanbert", "sbo_head")])
def test_a_head_that_the_class_lacks_is_kept_beside(
    name: str, head: str, tokenizer_json: str, examples: Examples, tmp_path: Path
) -> None:
    settings = modern(MODERNBERT_FOR_MASKED_LM)
    config, state = config_of(name, settings), random_weights(name, settings)
    config.data.sequences = "segment_pair" if name == "bert" else "doc_sentences"
    export.export(state, config, tokenizer_json, tmp_path / "model", examples, CARD)
    back = read_weights(tmp_path / "model", config, 85)
    assert any(name.startswith(head) for name in back)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in back)


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ({"layers": 22, "hidden": 768, "heads": 12, "intermediate": 1152}, 149_655_232),
        ({"layers": 28, "hidden": 1024, "heads": 16, "intermediate": 2624}, 395_881_664),
    ],
)
def test_the_published_sizes(sizes: dict[str, int], parameters: int) -> None:
    """Parameters of ModernBertForMaskedLM at the published settings, as transformers counts them."""
    run = config_of("mlm", modern(MODERNBERT_FOR_MASKED_LM, **sizes, biases=False, norm_biases=False))
    with torch.device("meta"):
        model = load(run).build_model(VocabularyStamp.of_size(50_368))
        fields = transformers.ModernBertConfig(
            **MODERNBERT_FOR_MASKED_LM.config(run, VocabularyStamp.of_size(50_368)._replace(pad=0))
        )
        theirs = transformers.ModernBertForMaskedLM(fields)
    own = sum(p.numel() for p in without_padding(model, dict(model.named_parameters())).values())
    assert own == parameters == sum(p.numel() for p in theirs.parameters())
