"""What a Hugging Face folder states is read before anything else; what contradicts it is one line."""

import json
import shutil
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.files import load_vocabulary
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.folder import folder_settings
from pretrain.huggingface.registry import FAMILIES
from pretrain.objectives.registry import OBJECTIVES
from pretrain.run.files import CONFIG
from pretrain.training.initial_weights_check import check_hugging_face, check_vocabulary_there
from tests.factories.vocabularies import eurobert_tokenizer, trained

FIELDS = {
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "hidden_act": "relu",
    "max_position_embeddings": 130,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
    "hidden_dropout_prob": 0.3,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT without weights."""
    vocabulary = trained("wordpiece")
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(vocabulary.json, "utf-8")
    changed(folder, vocab_size=vocabulary.size)
    return folder


def changed(folder: Path, **fields: object) -> None:
    (folder / "config.json").write_text(json.dumps(FIELDS | {"vocab_size": 463} | fields))


def settings(folder: Path, *overrides: str, recipe: str = "domain") -> RunConfig:
    return load_config(recipe, [f"init_from={folder}", *overrides])


def test_nothing_of_the_encoder_need_be_said(folder: Path) -> None:
    config = settings(folder)
    assert config.encoder == EncoderSettings(
        layers=3, hidden=48, heads=4, intermediate=80, activation="relu", max_positions=130, layer_norm_eps=1e-6,
        dropout=0.3, attention_dropout=EncoderSettings().attention_dropout,
    )  # fmt: skip
    assert (config.objective.name, config.data.sequences) == ("bert", "segment_pair")
    assert (config.data.vocab, config.vocabulary.kind) == (str(folder), "wordpiece")


def test_what_is_said_beside_it_holds(folder: Path, tmp_path: Path) -> None:
    more = ["objective.name=mlm", "encoder.dropout=0", "encoder.max_positions=256", "data.vocab=other"]
    config = settings(folder, *more, "encoder.layers=3")
    assert (config.objective.name, config.data.sequences, config.data.vocab) == (
        "mlm",
        "doc_sentences",
        "other",
    )
    assert (config.encoder.dropout, config.encoder.max_positions) == (0.0, 256)
    assert (config.encoder.layers, config.encoder.attention_dropout) == (3, 0.1)
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: domain\ninit_from: {folder}\nencoder: {{hidden: 64, layers: 3}}\n")
    with pytest.raises(UserError) as caught:
        load_config(str(own), ["encoder.activation=gelu", "encoder.max_positions=64"])
    said = str(caught.value)
    assert said.startswith(f"init_from={folder}: is another model: ")
    for part in ("encoder.hidden=64 (there: 48)", "encoder.activation=gelu (there: relu)"):
        assert part in said
    assert "encoder.max_positions=64 (there: 130)" in said
    assert "layers" not in said


def test_a_recipe_of_another_model_contradicts(folder: Path) -> None:
    with pytest.raises(UserError, match=r"encoder.layers=2 \(there: 3\), encoder.hidden=128 \(there: 48\)"):
        settings(folder, recipe="demo")


def test_a_run_keeps_what_it_read_when_the_folder_is_gone(folder: Path, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    before = settings(folder, f"run.dir={tmp_path}/run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.structured(before)))
    shutil.rmtree(folder)
    assert settings(folder, f"run.dir={tmp_path}/run") == before
    assert settings(folder, f"run.dir={tmp_path}/other").encoder == EncoderSettings()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_act": "mish"}, "hidden_act is 'mish' (expected a value that encoder.activation has"),
        ({"model_type": "t5"}, "model_type is 't5'"),
        ({"vocab_size": 460}, "the tokenizer has 463 entries, vocab_size is 460"),
        ({"model_type": "electra", "architectures": ["ElectraForMaskedLM"]}, "ELECTRA's generator alone"),
    ],
)
def test_what_no_encoder_here_has_is_refused(fields: dict, said: str, folder: Path) -> None:
    changed(folder, **fields)
    with pytest.raises(UserError) as caught:
        settings(folder)
    assert said in str(caught.value)


def test_a_published_eurobert_is_refused_for_its_tokenizer_and_its_output_words(folder: Path) -> None:
    """Fields as EuroBERT/EuroBERT-210m states them, but for its sizes."""
    fields = {"model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"], "hidden_act": "silu"}
    fields |= {"rms_norm_eps": 1e-5, "rope_theta": 250_000, "rope_scaling": None, "num_key_value_heads": 4}
    fields |= {"attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False}
    fields |= {
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
        "pad_token_id": 128_001,
        "mask_token_id": 128_002,
    }
    changed(folder, **fields)
    found = [_refusal(folder)]
    (folder / "tokenizer.json").write_text(json.dumps(eurobert_tokenizer()), "utf-8")
    found.append(_refusal(folder))
    assert found[0].startswith(f"{folder}/config.json: ")
    assert "tie_word_embeddings is False, which must be True" in found[0]
    assert found[1].startswith(f"{folder}/tokenizer.json: pre_tokenizer: 'Split, ByteLevel'")
    assert "RoBERTa's or ModernBERT's byte-level BPE" in found[1]
    assert not any("\n" in line for line in found)


def _refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_hugging_face(settings(folder), load_vocabulary(folder))
    return str(caught.value)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_tokenizer_without_mask_is_refused(kind: str, folder: Path) -> None:
    vocabulary = trained(kind)
    definition = vocabulary.definition()
    mask, entries = vocabulary.specials.mask, definition["model"]["vocab"]
    if isinstance(entries, dict):
        definition["model"]["vocab"] = {t.replace(mask, "other"): i for t, i in entries.items()}
    else:
        definition["model"]["vocab"] = [[t.replace(mask, "other"), score] for t, score in entries]
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["content"] != mask]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    changed(folder, vocab_size=512)
    with pytest.raises(UserError, match=r"lacks (\[MASK\]|<mask>)"):
        settings(folder)


def test_pickled_weights_are_refused_with_what_converts_them(folder: Path) -> None:
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(UserError) as caught:
        check_hugging_face(settings(folder), load_vocabulary(folder))
    lines = f"BertForPreTraining.from_pretrained('{folder}').save_pretrained('{folder}')"
    assert f"from transformers import BertForPreTraining; {lines}" in str(caught.value)
    (folder / "model.safetensors").touch()
    with pytest.raises(UserError, match=r"model\.safetensors: is damaged"):
        check_hugging_face(settings(folder), load_vocabulary(folder))
    with pytest.raises(UserError, match="has another vocabulary"):
        check_hugging_face(settings(folder), trained("bpe"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = settings(tmp_path / "typo")
    with pytest.raises(UserError) as caught:
        check_vocabulary_there(config)
    assert str(caught.value).startswith(f"init_from={tmp_path}/typo: no such folder (expected a Hugging Face")
    config.data.vocab = "given"  # shards can be made before the run that training will start from has ended
    check_vocabulary_there(config)
    config.data.vocab, config.init_from = "", ""
    check_vocabulary_there(config)


def test_a_folder_without_a_vocabulary_that_is_read_is_refused(folder: Path) -> None:
    check_vocabulary_there(settings(folder))
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    with pytest.raises(UserError) as caught:
        check_vocabulary_there(settings(folder))
    said = str(caught.value)
    assert said.startswith(
        f"{folder}: no vocabulary in this folder (expected tokenizer.json or vocab.txt or "
    )
    assert f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')" in said
    check_vocabulary_there(settings(folder, "data.vocab=other"))


def test_every_family_is_continued_by_an_objective() -> None:
    assert {family.objective for family in FAMILIES.values()} <= set(OBJECTIVES)


def test_a_folder_that_is_not_hugging_faces_states_nothing(tmp_path: Path) -> None:
    assert folder_settings(tmp_path) == {}
    assert folder_settings(tmp_path / "none") == {}
