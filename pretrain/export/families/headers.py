"""Read names and shapes of the tensors of a Hugging Face folder, from the headers of its files, without torch.

A header says how long its file is, so that a file that was cut off, or is none, shows here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from safetensors import SafetensorError, safe_open

from data_pipeline.errors import UserError
from pretrain.export.families.registry import weight_files

POINTER = b"version https://git-lfs"
"""How the small text begins that stands for a large file in a repository that was cloned without them."""


class Header(NamedTuple):
    """What is known of a tensor without reading it, as far as a family's tables ask."""

    shape: tuple[int, ...]

    def equal(self, other: Self) -> bool:
        """Return whether the two can be one tensor."""
        return self.shape == other.shape


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Raise UserError for what safetensors finds wrong with the file that is read meanwhile."""
    try:
        yield
    except SafetensorError as error:
        pointer = path.read_bytes()[: len(POINTER)] == POINTER if path.stat().st_size < 1024 else False
        remedy = "it is Git LFS's pointer to one: `git lfs pull` in its folder" if pointer else ""
        raise UserError(
            f"is damaged: {error}", where=path, expected="a whole safetensors file", remedy=remedy
        ) from error


def stored_headers(folder: Path, paths: Sequence[Path] = ()) -> dict[str, Header]:
    """Read the headers of all weight files of the folder, or of `paths` in it: their names -> shapes. Raises UserError
    if it has none, or one is damaged."""
    headers: dict[str, Header] = {}
    for path in paths or weight_files(folder):
        with whole(path), safe_open(path, "numpy") as file:
            headers |= {name: Header(tuple(file.get_slice(name).get_shape())) for name in file.keys()}  # noqa: SIM118
    return headers
