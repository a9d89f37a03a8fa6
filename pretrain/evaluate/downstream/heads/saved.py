"""Save and load heads that no class of transformers has: safetensors beside the encoder's own folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from data_pipeline.errors import UserError, first_line

HEAD_FILE = "head.safetensors"
"""Name of the file beside an encoder's own."""
LABELS = "labels"
"""Key of the classes' names in it, and of those of a head that has one set of classes."""


class Output(NamedTuple):
    """The loss where targets are given, and (examples, tokens, ...) logits: what transformers' models return by the
    same names."""

    loss: Tensor | None
    logits: Tensor


def save_beside(
    head: nn.Module, path: Path, labels: Mapping[str, Sequence[str]] | None = None, without: str = ""
) -> None:
    """Write a head's weights to `path`, except those whose names begin with `without`, and with them the names of its
    classes."""
    weights = {
        name: value.detach().cpu().contiguous()
        for name, value in head.state_dict().items()
        if not (without and name.startswith(without))
    }
    save_file(weights, path, {LABELS: json.dumps(dict(labels or {}), ensure_ascii=False)})


def load_beside(head: nn.Module, path: Path, without: str = "") -> None:
    """Read a head's weights. Raises UserError where there are none, or others than the head has."""
    try:
        with safe_open(path, "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the head cannot be read: {first_line(error)}",
            where=path,
            expected="a model that maskmill evaluate --save wrote with the same settings",
        ) from error
    wanted = {
        name: value.shape
        for name, value in head.state_dict().items()
        if not (without and name.startswith(without))
    }
    if wanted != {name: value.shape for name, value in found.items()}:
        raise UserError(
            "the head has other weights", where=path, expected="a head of the same labels and settings"
        )
    head.load_state_dict(found, strict=False)


def labels_beside(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of a saved head. Raises UserError where there is none."""
    try:
        with safe_open(path, "pt") as file:
            sets = json.loads((file.metadata() or {})[LABELS])
            return {str(name): tuple(map(str, labels)) for name, labels in sets.items()}
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"the head cannot be read: {first_line(error)}",
            where=path,
            expected="a model that maskmill evaluate --save wrote",
        ) from error
