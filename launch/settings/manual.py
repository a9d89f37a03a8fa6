"""List key, value and meaning of every setting, from RunConfig's source and optionally one run's settings."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from pretrain.config.settings import RunConfig


def manual(settings: Any = None, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, meaning) of each setting; the meaning is the docstring under the field. Without `settings`,
    values are the defaults."""
    settings = RunConfig() if settings is None else settings
    owner = type(settings)
    meanings, hints = _meanings(owner), get_type_hints(owner)
    for f in fields(owner):
        value: Any = getattr(settings, f.name)
        if is_dataclass(hints[f.name]):
            yield from manual(value, f"{prefix}{f.name}.")
        else:
            yield (
                f"{prefix}{f.name}",
                repr(value) if value == "" else str(value),
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
