"""Read the weights of a Hugging Face model of any registered family, under our names."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.errors import UserError
from pretrain.config.encoder import EncoderSettings, half_of, in_layer, layer_and_rest, owner_of
from pretrain.config.settings import RunConfig
from pretrain.export.families.registry import check_config, family_of
from pretrain.export.families.stored import stored_tensors
from pretrain.run.folder import model_folders

if TYPE_CHECKING:
    from torch import Tensor


def read_weights(source: Path, run: RunConfig, vocabulary_size: int) -> "dict[str, Tensor]":
    """Return the weights of the model in `source`, or of all models in its folders, by our names: float32, without
    vocabulary padding; heads missing in the source are missing in the result. Reads only safetensors: loading it runs
    no code.

    Raises UserError if no family reads it, its config.json differs from the settings of `run`, or layers that share
    parameters in `run` have different ones there."""
    state: dict[str, Tensor] = {}
    for folder in model_folders(source) or [source]:
        check_config(folder, run, vocabulary_size)
        family, config = family_of(folder)
        tensors = family.of_run(run).from_hugging_face(stored_tensors(folder), config, folder)
        if beside := [folder / file for file in family.beside if (folder / file).is_file()]:
            tensors |= stored_tensors(folder, beside)
        for name, tensor in tensors.items():
            if not state.setdefault(name, tensor).equal(tensor):
                raise UserError(
                    f"{name} differs between its folders", where=source, expected="one model's weights in all"
                )
    return merge_shared(state, run.encoder, source)


def merge_shared(
    state: "Mapping[str, Tensor]", settings: EncoderSettings, where: Path
) -> "dict[str, Tensor]":
    """Keep one copy of the tensors that layers share, under the name of the layer that owns them. Raises UserError if
    two copies differ."""
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, place = name, layer_and_rest(name)
        if place and place[0] < settings.layers:
            layer, rest = place
            owner = in_layer(owner_of(settings, layer, half_of(rest)), rest)
        if not merged.setdefault(owner, tensor).equal(tensor):
            raise UserError(
                f"{name} differs from {owner}",
                where=where,
                expected=f"equal tensors where encoder.sharing={settings.sharing}"
                f" with encoder.groups={settings.groups} has one",
                remedy="choose the sharing that it was trained with",
            )
    return merged
