"""Settings by what other programs call them."""

import pytest

from data_pipeline.errors import UserError
from launch.recipe import load_config, setting_names
from pretrain.config.aliases import OTHERS, called_here, known_as
from tests.command_line import Maskmill


def test_each_leads_to_a_setting_and_none_hides_one() -> None:
    """A name that is also the last part of a setting here leads to that setting."""
    names = set(setting_names())
    assert set(OTHERS.values()) <= names
    own = {name.rpartition(".")[2] for name in names}
    assert [name for name, ours in OTHERS.items() if name in own and ours.rpartition(".")[2] != name] == []


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("per_device_train_batch_size", "train.micro_batch"),
        ("--learning-rate", "optim.lr"),
        ("train.batch_size", "train.global_batch"),
        ("output_dir", "run.dir"),
        ("steps", ""),
    ],
)
def test_a_name_in_any_form(name: str, ours: str) -> None:
    assert called_here(name) == ours


def test_an_unknown_key_is_answered_with_the_setting_here() -> None:
    with pytest.raises(
        UserError, match=r"unknown key train\.batch_size \(Maskmill calls it train\.global_batch\)"
    ):
        load_config("demo", ["train.batch_size=8"])


@pytest.mark.parametrize("word", ["max_grad_norm", "gradient norm", "train.clip"])
def test_settings_are_found_by_name_meaning_and_other_names(word: str, maskmill: Maskmill) -> None:
    assert "train.clip = 1.0" in maskmill("settings", word).stdout
    assert "max_grad_norm" in known_as("train.clip")


def test_a_group_lists_its_own_settings_only(maskmill: Maskmill) -> None:
    keys = [
        line.split(" = ")[0] for line in maskmill("settings", "zero.").stdout.splitlines() if " = " in line
    ]
    assert keys
    assert all(key.startswith("zero.") for key in keys)
