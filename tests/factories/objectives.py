"""Objectives of tests, and how to register them with their settings."""

from dataclasses import dataclass, field

import pytest

from data_pipeline.shards.schema import VocabularyStamp
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.objectives.base import Model
from pretrain.objectives.mlm import Mlm
from pretrain.objectives.registry import OBJECTIVES, Registered


@dataclass
class HalvedSettings:
    divisor: int = 2
    """What the number of layers is divided by."""


@dataclass
class WithHalved(ObjectiveSettings):
    halved: HalvedSettings = field(default_factory=HalvedSettings)


class Halved(Mlm):
    """A masked language model with a part of the encoder's layers."""

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build it."""
        model = super().build_model(vocabulary)
        divisor = self.config.objective.of_member()["divisor"]
        model.encoder.layers = model.encoder.layers[: len(model.encoder.layers) // divisor]
        return model


def register(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    place: str,
    sequences: tuple[str, ...],
    settings: type[ObjectiveSettings] = ObjectiveSettings,
) -> None:
    """Register the objective of this name for a test; `settings` is ObjectiveSettings with a group of its own."""
    monkeypatch.setitem(OBJECTIVES, name, Registered(place, sequences))
    of_run, plain = RunConfig.__dataclass_fields__["objective"], RunConfig.__init__
    monkeypatch.setattr(of_run, "type", settings)
    monkeypatch.setattr(of_run, "default_factory", settings)
    monkeypatch.setitem(RunConfig.__annotations__, "objective", settings)
    monkeypatch.setattr(
        RunConfig, "__init__", lambda self, **values: plain(self, **{"objective": settings(), **values})
    )
