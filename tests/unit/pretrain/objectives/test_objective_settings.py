"""An objective's own settings: typed, refused where unknown or of no use, shown, and a part of the run's identity."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from launch.completion import manual
from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.huggingface.registry import chosen_families
from pretrain.objectives.registry import OBJECTIVES, load, meet_needs, registered
from pretrain.preflight.check_run import identity_of
from pretrain.preflight.validate import check
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
    [phase] = phases_of(config)
    plan: Any = SimpleNamespace(index=index, streams=1, masking=None, precision="fp32", phase=phase)
    return identity_of(config, plan)


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
    modules = {type(getattr(ObjectiveSettings(), name)).__module__ for name in groups}
    assert {module.rpartition(".")[0] for module in modules} == {"pretrain.config"}


MODERN_BODY = ["norm_place=pre", "norm_biases=false", "biases=false", "gated=true", "positions=rope"]
OTHERS = {"embedding_size": 64, "sharing": "all", "norm_place": "pre", "gated": True, "positions": "rope"}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_encoder_of_another_kind_is_refused_where_the_objective_has_no_place_for_it(name: str) -> None:
    config = RunConfig()
    config.objective.name, config.data.sequences = name, registered(name).sequences[0]
    config.data.masking = registered(name).masking[0]
    meet_needs(config)
    check(config)
    for key, value in OTHERS.items():
        changed = replace(config, encoder=replace(config.encoder, **{key: value}))
        if key in registered(name).encoder:
            check(changed)
        else:
            with pytest.raises(
                UserError, match=f"models of objective.name={name} have no encoder.{key}, got {value}"
            ):
                check(changed)


@pytest.mark.parametrize(
    ("own", "exported"),
    [
        ([], "DistilBertForMaskedLM"),
        (["layer_norm_eps=1e-5"], "BertForMaskedLM"),  # as of a RoBERTa's student
        (["layer_norm_eps=1e-5", *MODERN_BODY], "ModernBertForMaskedLM"),
    ],
)
def test_a_distilled_student_has_its_teachers_epsilon(own: list[str], exported: str) -> None:
    config = loaded("objective.name=distilbert", "encoder.segments=0", *(f"encoder.{one}" for one in own))
    [family] = chosen_families(load(config).families, config)
    assert family.export_class == exported
    assert family.settings(family.config(config, VocabularyStamp.of_size(100)))["layer_norm_eps"] == (
        config.encoder.layer_norm_eps
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("kv_heads=3", "encoder.kv_heads=3 does not divide encoder.heads=4"),
        ("positions=rope hidden=12", "heads of 3, which have no two halves"),
        (
            "positions=rope hidden=36 heads=2",
            "generator_share=0.25 makes the generator 9 wide: its heads have no two",
        ),
        (
            "hidden=64 head_transform=false",
            "generator_share=0.25 with encoder.head_transform=false: the generator's hidden states are 16 wide, the "
            "words 64",
        ),
        ("rope_theta=500", "encoder.positions=learned, which rotates nothing"),
        ("local_rope_theta=500", "encoder.positions=learned, which rotates nothing"),
        ("norm=rms", "encoder.norm_biases=false"),
        ("embedding_size=64 head_transform=false", "encoder.head_transform=false with"),
        ("norm=batch", "encoder.norm: must be one of layer, rms, got batch"),
        ("norm_place=middle", "encoder.norm_place: must be one of post, pre"),
        ("positions=none", "encoder.positions: must be one of learned, rope"),
        ("local_attention=1", r"encoder.local_attention: must be in \[2, 131072\], got 1"),
        ("global_every=0", "encoder.global_every: must be in"),
        ("heads=3", r"encoder.hidden=\d+ is not a multiple of encoder.heads=3"),
        ("activation=swish", "encoder.activation: must be one of gelu_tanh, gelu, relu, silu, got swish"),
        ("dropout=1.0", r"encoder.dropout: must be in \[0, 0.99\], got 1"),
        ("attention_dropout=-0.1", "encoder.attention_dropout: must be in .*, got -0.1"),
        ("layers=0", "encoder.layers: must be in .*, got 0"),
        ("attention_output_dropout=1", "encoder.attention_output_dropout: must be in"),
    ],
)
def test_switches_of_the_encoder_that_contradict_each_other_are_told(settings: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        loaded("objective.name=electra", *(f"encoder.{one}" for one in settings.split()))
