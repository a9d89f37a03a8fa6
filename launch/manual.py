"""RunConfig's source in; key, default and meaning of every setting out."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from pretrain.config import RunConfig


def manual(owner: type = RunConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(key, default, meaning) of each setting; the meaning is the docstring under the field."""
    defaults, meanings, hints = owner(), _meanings(owner), get_type_hints(owner)
    for f in fields(owner):
        if is_dataclass(hints[f.name]):
            yield from manual(hints[f.name], f"{prefix}{f.name}.")
        else:
            default: Any = getattr(defaults, f.name)
            yield (
                f"{prefix}{f.name}",
                repr(default) if default == "" else str(default),
                meanings.get(f.name, ""),
            )


def _meanings(owner: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
