"""A config.json with a field of another kind is refused in one line, of every class, before anything is built of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from data_pipeline.errors import UserError
from launch.recipe import load_config, with_folder_settings
from pretrain.config.yaml_files import schema
from pretrain.huggingface.registry import check_config
from tests.factories.configs import ALONE, WORDS, valid_config

SETTINGS = schema()
"""With what earlier folders stated: making them anew takes longer than a case."""
OF_OTHER_KINDS: list[Any] = [None, "a", "12", [], ["a"], -1, 0, 0.5, True, {}, {"a": 1}]


def written(folder: Path, fields: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def read(folder: Path, settings: Any = SETTINGS) -> Any:
    """The settings of a run that starts from the folder."""
    settings.init_from = str(folder)
    return with_folder_settings(settings, set())


def refusal(folder: Path) -> str:
    """The line that says why the folder is refused; empty if it is read."""
    try:
        read(folder)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ALONE)
def test_a_field_of_any_kind_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    good = valid_config(name)
    settings = read(written(tmp_path, good))
    assert (settings.encoder.layers, settings.encoder.hidden, settings.encoder.heads) == (4, 32, 2)
    refused = 0
    for key in good:
        for value in OF_OTHER_KINDS:
            said = refusal(written(tmp_path, good | {key: value}))
            refused += bool(said)
            assert "\n" not in said
            assert not said or "config.json" in said
    assert refused > len(good), "most fields are read"


BERT, ROBERTA = "BertForPreTraining", "RobertaForMaskedLM"
MODERNBERT, EUROBERT = "ModernBertForMaskedLM", "EuroBertForMaskedLM"


@pytest.mark.parametrize(
    ("name", "key", "value", "expected"),
    [
        (ROBERTA, "pad_token_id", None, "what transformers writes there"),
        (ROBERTA, "max_position_embeddings", "514", "what transformers writes there"),
        (BERT, "max_position_embeddings", "512", "a whole number"),
        (BERT, "num_hidden_layers", "twelve", "a whole number"),
        (BERT, "num_hidden_layers", True, "a whole number"),
        (BERT, "num_hidden_layers", 1.5, "a whole number"),
        (BERT, "layer_norm_eps", "1e-12", "a number"),
        (BERT, "hidden_act", ["gelu"], "what transformers writes there"),
        (BERT, "type_vocab_size", {}, "a whole number"),
        (MODERNBERT, "rope_parameters", ["default"], "what transformers writes there"),
        (MODERNBERT, "rope_parameters", {"full_attention": 160_000.0}, "what transformers writes there"),
        (MODERNBERT, "rope_parameters", {"full_attention": {"rope_theta": "1e4"}}, "a number"),
        (MODERNBERT, "layer_types", 3, "what transformers writes there"),
        (MODERNBERT, "norm_bias", 0, "true or false"),
        (EUROBERT, "rope_parameters", 5, "what transformers writes there"),
        ("AlbertForPreTraining", "num_hidden_groups", "1", "a whole number"),
        ("ElectraForPreTraining", "electra_embeddings", ["shared"], "a word"),
    ],
)
def test_the_field_and_what_is_expected_are_named(
    name: str, key: str, value: Any, expected: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, valid_config(name) | {key: value})
    with pytest.raises(UserError) as caught:
        load_config("domain", [f"init_from={folder}"])
    said = str(caught.value)
    assert said.startswith(f"{folder}/config.json: cannot be read: {key}=")
    assert f"(expected {expected}" in said
    assert "take the file that came with the weights" in said


def test_a_long_value_is_not_repeated_and_a_deep_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(written(tmp_path, valid_config(BERT) | {"num_hidden_layers": "1" * 5000}))
    assert len(str(caught.value)) < 400
    (tmp_path / "config.json").write_text('{"a": ' + "[" * 60_000 + "]" * 60_000 + "}")
    with pytest.raises(UserError, match=r"a JSON object"):
        read(tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_the_valid_ones_fit_the_run_that_they_state(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path, valid_config(name))
    config = OmegaConf.to_object(read(folder, schema()))
    check_config(folder, config, WORDS)
    with pytest.raises(UserError, match="vocab_size is 100"):
        check_config(folder, config, WORDS + 1)


def refused_by_the_run(name: str, fields: dict[str, Any], folder: Path, lacks: tuple[str, ...] = ()) -> str:
    """The line that says why the settings that such a folder states do not fit it; empty if they do."""
    stated = {key: value for key, value in (valid_config(name) | fields).items() if key not in lacks}
    config = OmegaConf.to_object(read(written(folder, stated), schema()))
    try:
        check_config(folder, config, WORDS)
    except UserError as error:
        return str(error)
    return ""


DECODER, SCALED = "BertLMHeadModel", {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "fields", "lacks", "said"),
    [
        (BERT, {"is_decoder": True}, (), "is_decoder is True, which must be False"),
        (ROBERTA, {"is_decoder": True}, (), "is_decoder is True, which must be False"),
        ("ErnieForPreTraining", {"is_decoder": True}, (), "is_decoder is True"),
        ("ElectraForPreTraining", {"is_decoder": True}, (), "is_decoder is True"),
        (DECODER, {}, ("is_decoder",), "is_decoder is False, which must be True"),
        (MODERNBERT, {"rope_scaling": SCALED}, (), "rope_scaling is {'factor': 2.0, 'rope_type': 'linear'}"),
        (EUROBERT, {"rope_scaling": SCALED}, ("rope_parameters",), "rope_scaling is"),
        (
            MODERNBERT,
            {"hidden_activation": "silu"},
            ("classifier_activation",),
            "classifier_activation is gelu, hidden_activation silu, which must be equal",
        ),
        (MODERNBERT, {"decoder_bias": False}, (), "decoder_bias is False, which must be True"),
        (MODERNBERT, {"attention_bias": True}, ("mlp_bias",), "mlp_bias is False, attention_bias True"),
        (MODERNBERT, {"attention_bias": True}, ("classifier_bias",), "classifier_bias is False"),
        (EUROBERT, {"attention_bias": True}, ("mlp_bias",), "mlp_bias is False, attention_bias True"),
    ],
)
def test_a_field_that_changes_what_is_computed_is_not_passed_over(
    name: str, fields: dict[str, Any], lacks: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert said in refused_by_the_run(name, fields, tmp_path, lacks)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"type": "default"}])
def test_a_scaling_that_changes_no_angle_is_read(scaling: Any, tmp_path: Path) -> None:
    assert refused_by_the_run(MODERNBERT, {"rope_scaling": scaling}, tmp_path) == ""


NAMES_OF_FUNCTIONS = {
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@pytest.mark.parametrize(("key", "name"), [("hidden_act", BERT), ("ff_activation", "XLNetLMHeadModel")])
def test_every_name_of_a_function_is_read(key: str, name: str, tmp_path: Path) -> None:
    from transformers.activations import ACT2FN

    from pretrain.huggingface.bert import ACTIVATIONS

    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    for theirs, ours in NAMES_OF_FUNCTIONS.items():
        assert (
            read(written(tmp_path, valid_config(name) | {key: theirs}), schema()).encoder.activation == ours
        )
        torch.testing.assert_close(ACT2FN[theirs](x), ACT2FN[ACTIVATIONS[ours]](x), rtol=0, atol=1e-8)
