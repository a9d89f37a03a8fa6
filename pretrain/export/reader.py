"""Read the weights of a Hugging Face model of any registered family, under our names."""

from pathlib import Path

from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.export.families.registry import check_config, family_of
from pretrain.export.families.stored import stored_tensors
from pretrain.run.folder import model_folders


def read_weights(source: Path, run: RunConfig, vocabulary_size: int) -> dict[str, Tensor]:
    """Return the weights of the model in `source`, or of all models in its folders, by our names: float32, without
    vocabulary padding; heads missing in the source are missing in the result. Reads only safetensors: loading it runs
    no code.

    Raises UserError if no family reads it, or its config.json differs from the settings of `run`."""
    state: dict[str, Tensor] = {}
    for folder in model_folders(source) or [source]:
        check_config(folder, run, vocabulary_size)
        family, config = family_of(folder)
        tensors = family.from_hugging_face(stored_tensors(folder), config, folder)
        if beside := [folder / file for file in family.beside if (folder / file).is_file()]:
            tensors |= stored_tensors(folder, beside)
        for name, tensor in tensors.items():
            if not state.setdefault(name, tensor).equal(tensor):
                raise UserError(
                    f"{name} differs between its folders", where=source, expected="one model's weights in all"
                )
    return state
