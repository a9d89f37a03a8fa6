"""Read and check a Hugging Face folder's config.json before any library does.

Its numbers are checked before something is made as large as they say. Does not import torch.
"""

import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import read_json

LIMITS = (
    (re.compile(r"(layers?|groups?|heads?|experts|group_num)$"), 1 << 12),
    (re.compile(r"num_labels$"), 1 << 17),
    (re.compile(r"size|dim|width|length|window|position|embed|inner|hidden|intermediate|vocab"), 1 << 24),
    (re.compile(""), 1 << 48),
)
"""Largest integer in a config.json by the name of its field, the first that matches: of things that are made one by
one, of entries in tables, of sizes of tensors, of anything else."""
NOT_HERE = ("quantization_config", "backbone")
"""Fields of a config.json for models that need weights of another kind, or of another folder."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the folder's config.json. Raises UserError where it is none, for a number that is no size of any model, and
    for a model that needs more than the files of its folder."""
    path = folder / "config.json"
    config = read_json(path)
    for name, value in _integers(config):
        most = next(most for pattern, most in LIMITS if pattern.search(name))
        if abs(value) > most:
            raise UserError(
                f"cannot be read: {name}={reprlib.repr(value)}", where=path, expected=f"at most {most:,}"
            )
    classes = config.get("architectures")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise UserError(
            f"cannot be read: architectures={reprlib.repr(classes)}", where=path, expected="a list of names"
        )
    for name in NOT_HERE:
        if config.get(name):
            raise UserError(
                f"cannot be read: {name}={reprlib.repr(config[name])}",
                where=path,
                expected="a model whose folder has all its weights as numbers",
            )
    return config


def _integers(found: object, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers in a JSON value with the names that they stand under."""
    if isinstance(found, int) and not isinstance(found, bool):
        yield name, found
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from _integers(value, key)
    elif isinstance(found, list):
        for value in found:
            yield from _integers(value, name)
