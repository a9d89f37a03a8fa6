"""Export: what transformers loads computes what we trained, and nothing that does not is left behind."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import NOTE
from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.export import parity
from pretrain.export.tokenizer import write_tokenizer
from pretrain.huggingface import bert
from pretrain.huggingface.bert import BERT_FOR_PRETRAINING
from pretrain.huggingface.folder import read_weights
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters
from pretrain.objectives.registry import OBJECTIVES
from tests.factories.exports import Exporter, random_weights
from tests.factories.models import config_of, fresh_model


@pytest.fixture
def exporter(settings: EncoderSettings, tokenizer_json: str, examples: Examples) -> Exporter:
    return Exporter(settings, tokenizer_json, examples)


def imported(
    folder: Path, settings: EncoderSettings, name: str = "bert", words: int = 85
) -> dict[str, Tensor]:
    return read_weights(folder, config_of(name, settings), words)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu"])
def test_round_trip_is_bit_equal(
    name: str, activation: str, settings: EncoderSettings, exporter: Exporter, tmp_path: Path
) -> None:
    settings.activation = activation
    state = random_weights(name, settings)
    found = exporter.export(tmp_path / "model", name)
    logits = fresh_model(name, settings, 85).logits(MicroBatch.from_examples(exporter.examples))
    # where a class gives the states behind its head no name, they are compared by the head alone
    assert set(logits) - set(found) <= {"hidden"}, "some head is not compared"
    for head in found.values():
        assert head.difference <= head.allowed == 1e-9 * max(1.0, head.largest_logit)
        assert 0 < head.difference_float32 < 1e-3
    back = imported(tmp_path / "model", settings, name)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[n], state[n]) for n in state)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_transformers_loads_all_keys_and_ties(exporter: Exporter, tmp_path: Path) -> None:
    exporter.export(tmp_path / "model")
    model, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(info.values())
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert model.config.vocab_size == 85
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert not any("decoder" in key for key in file.keys())  # noqa: SIM118


def test_tokenizer_and_fill_mask(exporter: Exporter, tmp_path: Path) -> None:
    exporter.export(tmp_path / "model")
    for kind in (transformers.AutoTokenizer, transformers.BertTokenizer):
        tokenizer = kind.from_pretrained(tmp_path / "model")
        assert isinstance(tokenizer, transformers.BertTokenizer)
        encoded = tokenizer("The QUICK fôx", "it jumped")
        assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == [
            "[CLS]", "the", "quick", "fox", "[SEP]", "it", "jump", "##ed", "[SEP]"
        ]  # fmt: skip
        assert encoded["token_type_ids"] == [0] * 5 + [1] * 4
        assert tokenizer.model_max_length == 48
        assert tokenizer.mask_token_id == 4
    assert (tmp_path / "model" / "vocab.txt").read_text("utf-8").split("\n")[5] == "the"
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "model"))
    guesses = fill("the quick [MASK] jumped over the lazy dog", top_k=3)
    assert len(guesses) == 3
    assert all(0 < guess["score"] < 1 for guess in guesses)


def test_card_states_data_recipe_and_parity(exporter: Exporter, streams: Examples, tmp_path: Path) -> None:
    exporter.examples = streams
    exporter.export(tmp_path / "my.model", "mlm")
    card = (tmp_path / "my.model" / "README.md").read_text("utf-8")
    assert "\nlibrary_name: transformers\n" in card.partition("\n---\n")[0]
    for line in (
        "# my.model",
        "## Data",
        "| held-out \\| share | 0.05 |",
        "| optim.lr | 0.001 |",
        "A test.",
        "## Proof of the export",
    ):
        assert line in card
    assert "no pooler" in card


SWAPS = {
    "query and key": ("encoder.layers.{i}.attention.query", "encoder.layers.{i}.attention.key"),
    "norms of a layer": ("encoder.layers.{i}.attention_norm", "encoder.layers.{i}.feed_forward_norm"),
    "norms of the ends": ("encoder.embeddings.norm", "mlm_head.norm"),
    "dense of the heads": ("mlm_head.dense", "nsp_head.pooler"),
}


@pytest.mark.parametrize("swap", SWAPS)
def test_a_wrong_mapping_fails_and_leaves_nothing(
    swap: str,
    exporter: Exporter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = SWAPS[swap]
    right = dict(bert.NAMES)
    monkeypatch.setitem(bert.NAMES, a, right[b])
    monkeypatch.setitem(bert.NAMES, b, right[a])
    with pytest.raises(UserError, match="logits of the exported model differ from ours"):
        exporter.export(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_pooler_shows_in_its_own_head_only(
    exporter: Exporter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    loaded = parity._loaded

    def spoilt(folder: Path, export_class: str) -> transformers.PreTrainedModel:
        model = loaded(folder, export_class)
        model.bert.pooler.dense.bias.data += 1e-6
        seen["model"] = model
        return model

    monkeypatch.setattr(parity, "_loaded", spoilt)
    with pytest.raises(UserError, match="the nsp logits of the exported model differ"):
        exporter.export(tmp_path / "model")
    assert seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ours", "wrong"), [("gelu_tanh", "gelu"), ("gelu", "gelu_pytorch_tanh")])
def test_a_wrong_activation_fails(
    ours: str,
    wrong: str,
    exporter: Exporter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter.settings.activation = ours
    monkeypatch.setitem(bert.ACTIVATIONS, ours, wrong)
    with pytest.raises(UserError, match="logits of the exported model differ"):
        exporter.export(tmp_path / "model")


def test_missing_keys_fail(
    exporter: Exporter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(bert.NAMES, "nsp_head.pooler", "bert.pooler.thick")
    with pytest.raises(UserError, match=r"BertForPreTraining loads with .*bert\.pooler\.dense\.bias"):
        exporter.export(tmp_path / "model")


def test_gelu_tanh_has_one_right_name() -> None:
    """Of the two tanh forms of transformers, the one we export is ours to the bit; the other to rounding."""
    x = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    ours = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.equal(transformers.activations.ACT2FN["gelu_pytorch_tanh"](x), ours)
    assert (transformers.activations.ACT2FN["gelu_new"](x) - ours).abs().max() < 1e-13


def test_an_existing_folder_is_kept_unless_told(exporter: Exporter, tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        exporter.export(out)
    assert (out / "thesis.txt").read_text() == "mine"
    exporter.export(out, overwrite=True)
    assert not (out / "thesis.txt").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_every_name_translates_both_ways(settings: EncoderSettings) -> None:
    settings.layers = 11
    model = fresh_model("bert", settings, 85)
    family = BERT_FOR_PRETRAINING
    state = dict(model.named_parameters())
    stored = family.to_hugging_face(state, {})
    assert list(stored) == [family.their_name(name) for name in state]
    assert list(family.from_hugging_face(stored, {}, Path("model"))) == list(state)
    for unknown in (
        "electra.head.weight",
        "encoder.layers.x.attention.query.weight",
        "mlm_head.dense.weight.bias",
    ):
        with pytest.raises(KeyError):
            family.their_name(unknown)


@pytest.fixture
def folder(exporter: Exporter, tmp_path: Path) -> Path:
    exporter.export(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: dict[str, Tensor | None], rename: tuple[str, str] = ("", "")) -> None:
    (folder / NOTE).unlink(missing_ok=True)  # which has the hash of what is changed
    stored = {k.replace(*rename): v for k, v in load_file(folder / "model.safetensors").items()} | change
    save_file(
        {k: v for k, v in stored.items() if v is not None}, folder / "model.safetensors", {"format": "pt"}
    )


def test_import_of_older_and_barer_files(folder: Path, settings: EncoderSettings) -> None:
    expected = imported(folder, settings)
    rewrite(
        folder,
        {"bert.embeddings.position_ids": torch.arange(48)[None]},
        ("LayerNorm.weight", "LayerNorm.gamma"),
    )
    again = imported(folder, settings)
    assert all(torch.equal(again[n], expected[n]) for n in expected)

    transformers.BertModel.from_pretrained(folder).save_pretrained(folder / "bare")
    bare = imported(folder / "bare", settings)
    assert expected.keys() - bare.keys() == {
        n for n in expected if n.startswith(("mlm_head", "nsp_head.classifier"))
    }
    model = fresh_model("bert", settings, 85)
    assert set(load_parameters(model, bare, partial=True)) == expected.keys() - bare.keys()


def test_import_refuses_untied_and_foreign_weights(folder: Path, settings: EncoderSettings) -> None:
    rewrite(folder, {"cls.predictions.decoder.bias": torch.ones(85)})
    with pytest.raises(UserError, match=r"decoder\.bias differs from cls\.predictions\.bias"):
        imported(folder, settings)
    rewrite(folder, {"cls.predictions.decoder.bias": None, "bert.crossattention.weight": torch.ones(2)})
    with pytest.raises(UserError, match=r"another kind of model: bert\.crossattention\.weight"):
        imported(folder, settings)


def test_import_lists_every_difference_of_settings(folder: Path, settings: EncoderSettings) -> None:
    settings.hidden, settings.activation = 48, "relu"
    with pytest.raises(UserError) as error:
        imported(folder, settings, words=99)
    for part in (
        "encoder.hidden is 48, hidden_size 24",
        "activation is relu",
        "99 entries, vocab_size is 85",
    ):
        assert part in str(error.value)


def test_import_reads_no_pickle(folder: Path, settings: EncoderSettings) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "maskmill.json").unlink()  # its hashes
    with pytest.raises(
        UserError, match=r"can run code: from transformers import BertForPreTraining; .*save_pretrained"
    ):
        imported(folder, settings)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"config\.json"):
        imported(folder, settings)


def test_a_damaged_file_is_named(folder: Path, settings: EncoderSettings) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="its bytes changed since the export"):
        imported(folder, settings)
    (folder / "maskmill.json").unlink()
    with pytest.raises(UserError, match="damaged"):
        imported(folder, settings)


@pytest.mark.parametrize(
    "change", [{"lowercase": False}, {"strip_accents": False}, {"handle_chinese_chars": False}]
)
def test_tokenizers_of_every_kind_keep_their_ids(change: dict, tokenizer_json: str, tmp_path: Path) -> None:
    stored = json.loads(tokenizer_json)
    stored["normalizer"] |= change
    write_tokenizer(json.dumps(stored), tmp_path, 48)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)("The fôx", add_special_tokens=False)[
        "input_ids"
    ]
    the, fox, unknown = 5, 8, 1
    assert ids == {"lowercase": [unknown, unknown], "strip_accents": [the, unknown]}.get(*change, [the, fox])


def test_a_tokenizer_that_would_change_is_refused(tokenizer_json: str, tmp_path: Path) -> None:
    stored = json.loads(tokenizer_json)
    stored["model"]["max_input_chars_per_word"] = 3
    with pytest.raises(UserError, match="other ids"):
        write_tokenizer(json.dumps(stored), tmp_path, 48)
    stored["normalizer"] = {"type": "Lowercase"}
    with pytest.raises(UserError, match="normalizer: 'Lowercase'"):
        write_tokenizer(json.dumps(stored), tmp_path, 48)
