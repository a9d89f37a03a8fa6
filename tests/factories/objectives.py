"""Objectives of tests, and how to register them with their settings."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config import yaml_files
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.objectives.base import Model, Terms
from pretrain.objectives.mlm import MaskedTokens, Mlm
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
    monkeypatch.setattr(
        yaml_files, "_built", yaml_files._built.__wrapped__
    )  # what was built before lacks the group


class RemembersTokens(MaskedTokens):
    """A masked language model whose loss depends a little on the tokens that came before in each stream."""

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the loss, and remember how many tokens a stream had, and the sum of their ids: whole numbers, so that
        what is remembered does not depend on how a batch was cut."""
        terms, _ = super().forward(batch)
        assert memory is not None
        lengths = torch.tensor(batch.lengths, device=batch.input_ids.device)
        examples_T = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        ids_E = torch.zeros(len(lengths), device=lengths.device)
        ids_E = ids_E.index_add(0, examples_T, batch.input_ids.float())
        term = terms["mlm"]
        past = 1 + 1e-3 * torch.tanh(1e-3 * memory["sums"][:, 1].sum())
        terms["mlm"] = term._replace(sum=term.sum * past)
        sums = memory["sums"] + torch.stack((lengths.float(), ids_E), 1)
        return terms, {"sums": sums, "steps": memory["steps"] + 1}


class Remembering(Mlm):
    """The objective of such a model."""

    memory: ClassVar[dict[str, tuple[int, ...]]] = {"sums": (2,), "steps": ()}

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build it."""
        return RemembersTokens(self.build_encoder(vocabulary), vocabulary.mask)


def register_remembering() -> None:
    """Register the objective `remembering` in this process, for good."""
    place = "tests.factories.objectives:Remembering"
    OBJECTIVES["remembering"] = Registered(place, ("doc_sentences",), has_memory=True)
