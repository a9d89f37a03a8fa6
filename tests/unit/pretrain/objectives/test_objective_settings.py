"""An objective's own settings: typed, refused where unknown or of no use, shown, and a part of the run's identity."""

from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.shards.schema import VocabularyStamp
from launch.settings.manual import manual
from launch.settings.recipe import load_config
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.objectives.registry import OBJECTIVES, load, meet_needs, registered
from pretrain.preflight.validate import check
from pretrain.training.claim_folder import identity_of
from tests.factories.objectives import WithHalved, register


@pytest.fixture(autouse=True)
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    register(
        monkeypatch,
        "halved",
        "tests.factories.objectives:Halved",
        ("doc_sentences",),
        settings=WithHalved,
    )


def loaded(*settings: str) -> RunConfig:
    return load_config("demo", ["data.sequences=", *settings])


def identity(config: RunConfig) -> dict[str, Any]:
    stamp = VocabularyStamp.of_size(100)
    index = SimpleNamespace(identity="", vocabulary=stamp)
    return identity_of(config, SimpleNamespace(index=index, streams=1, masking=None, precision="fp32"))  # type: ignore[arg-type]


def test_a_member_is_made_from_its_own_settings() -> None:
    config = loaded("objective.name=halved", "objective.halved.divisor=1", "encoder.layers=4")
    assert config.objective.of_member() == {"divisor": 1}
    assert len(load(config).build_model(VocabularyStamp.of_size(100)).encoder.layers) == 4
    assert config.data.sequences == "doc_sentences"


def test_keys_and_types_are_checked() -> None:
    with pytest.raises(UserError, match=r"unknown key objective\.halved\.divisr.*objective\.halved\.divisor"):
        loaded("objective.name=halved", "objective.halved.divisr=1")
    with pytest.raises(UserError, match=r"objective\.halved\.divisor"):
        loaded("objective.name=halved", "objective.halved.divisor=many")


def test_settings_of_another_objective_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"objective\.halved\.divisor is set, and objective\.name=mlm does not use it"
    ):
        loaded("objective.name=mlm", "objective.halved.divisor=1")
    assert loaded("objective.name=mlm", "objective.halved.divisor=2").objective.of_member() == {}


def test_the_manual_and_the_identity_have_them() -> None:
    lines = {key: (value, meaning) for key, value, meaning in manual()}
    assert lines["objective.halved.divisor"] == ("2", "What the number of layers is divided by.")
    own = identity(loaded("objective.name=halved", "objective.halved.divisor=1"))
    assert own["objective.halved.divisor"] == 1
    assert not any("halved" in key for key in identity(loaded("objective.name=mlm")))


def test_every_group_belongs_to_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    groups = set(vars(ObjectiveSettings())) - {"name"}
    assert groups <= set(OBJECTIVES)
    assert all(
        type(getattr(ObjectiveSettings(), name)).__module__ == "pretrain.config.settings" for name in groups
    )


@pytest.mark.parametrize("name", [name for name, known in OBJECTIVES.items() if not known.encoder])
def test_an_encoder_without_a_place_in_its_export_is_refused(name: str) -> None:
    config = RunConfig()
    config.objective.name, config.data.sequences = name, registered(name).sequences[0]
    config.data.masking = registered(name).masking[0]
    meet_needs(config)
    check(config)
    config.encoder.embedding_size = 64
    with pytest.raises(
        UserError, match=f"models of objective.name={name} have no encoder.embedding_size, got 64"
    ):
        check(config)
