"""Models and settings of tests, from an objective's name and an encoder's sizes."""

from dataclasses import replace
from typing import Any

import torch

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load, meet_needs
from tests.factories.teachers import with_teacher


def config_of(
    name: str,
    encoder: EncoderSettings,
    seed: int = 0,
    activation_checkpointing: bool = False,
    vocabulary_size: int = 0,
) -> RunConfig:
    """The settings of a run of this objective and encoder, in which what the objective needs is changed; with a size of
    the vocabulary, its teacher is there."""
    config = RunConfig(encoder=replace(encoder))
    config.objective.name, config.run.seed = name, seed
    config.train.activation_checkpointing = activation_checkpointing
    meet_needs(config)
    return with_teacher(config, vocabulary_size) if vocabulary_size else config


def fresh_model(
    name: str,
    encoder: EncoderSettings,
    vocabulary_size: int,
    seed: int = 0,
    mask_id: int = -1,
    activation_checkpointing: bool = False,
) -> Model:
    """The objective's model with fresh weights."""
    config = config_of(name, encoder, seed, activation_checkpointing, vocabulary_size)
    vocabulary = VocabularyStamp.of_size(vocabulary_size)._replace(mask=mask_id)
    return load(config).fresh_model(vocabulary)


def scattered_model(run: RunConfig, vocabulary: VocabularyStamp) -> Model:
    """Our model in float64, its weights far from each other and none of them 0."""
    model = load(run).fresh_model(vocabulary)
    return scattered(model, torch.Generator().manual_seed(run.encoder.hidden))


@torch.no_grad()
def scattered(module: Any, generator: torch.Generator | None = None) -> Any:
    """Move every weight by a draw of deviation 0.2; in evaluation mode, float64 that float32 can hold."""
    for parameter in module.parameters():
        parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return module.double().eval()
