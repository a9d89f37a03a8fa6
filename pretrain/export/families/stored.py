"""Read the tensors of a Hugging Face folder, by their names in its files.

Reads only safetensors: loading it runs no code.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.export.families.registry import weight_files


def stored_tensors(folder: Path, paths: Sequence[Path] = ()) -> dict[str, Tensor]:
    """Read all weight files of the folder, or `paths` in it. Raises UserError if it has none, or one is damaged."""
    stored: dict[str, Tensor] = {}
    for path in paths or weight_files(folder):
        try:
            stored |= load_file(path)
        except SafetensorError as error:
            raise UserError(
                f"is damaged: {error}", where=path, expected="a whole safetensors file"
            ) from error
    return stored
