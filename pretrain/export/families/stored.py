"""Read the tensors of a Hugging Face folder, by their names in its files.

Reads only safetensors: loading it runs no code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import check_hashes
from pretrain.export.families.headers import whole
from pretrain.export.families.registry import weight_files

if TYPE_CHECKING:
    from torch import Tensor


def stored_tensors(folder: Path, paths: Sequence[Path] = ()) -> "dict[str, Tensor]":
    """Read all weight files of the folder, or `paths` in it. Raises UserError if it has none, or one is damaged."""
    from safetensors.torch import load_file  # imports torch, which light commands do without

    check_hashes(folder)
    stored: dict[str, Tensor] = {}
    for path in paths or weight_files(folder):
        with whole(path):
            stored |= load_file(path)
    for name, tensor in stored.items():
        if name.endswith(".weight") and not tensor.is_floating_point():
            raise UserError(
                f"{name} holds {str(tensor.dtype).removeprefix('torch.')}",
                where=folder,
                expected="weights as floating-point numbers",
            )
    return stored
