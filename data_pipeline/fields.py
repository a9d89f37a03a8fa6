"""Declare settings as fields of dataclasses, each with the values that it may have, and check them by that.

    epochs: float = setting(3.0, at_least=0)
    schedule: str = setting("linear", one_of=("linear", "constant"))

The metadata of a field holds its `Values`, and marks: whatever else is declared of the setting, as affects_bytes=True.
`wrong_values` returns every value out of range in an object of settings; a `Rule` is a combination of settings that is
not allowed. Nothing here imports numpy: settings are checked before anything else is loaded.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from data_pipeline.errors import UserError, one_error

MOST = 10**15
"""Maximum of numbers that have no other: beyond it doubles no longer hold every integer, and sums leave 64 bits."""


@dataclass(frozen=True)
class Values:
    """The values that a setting may have; of a list, those of each entry."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    also: tuple[float, ...] = ()
    """Numbers outside that range which are allowed as well."""
    one_of: tuple[Any, ...] | str = ()
    """The allowed values, or `module:NAME` of the registry that has them as its keys."""
    entries: int = 0
    """Of a list: how many it has; 0: any number."""
    hint: str = ""
    """What to do about another value."""
    refused: Mapping[Any, tuple[str, str]] = field(default_factory=dict)
    """Other values that someone may expect to be allowed -> why they are not, and what to do."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values where they can be listed; a registry is imported only now."""
        if isinstance(self.one_of, str):
            module, _, name = self.one_of.partition(":")
            return tuple(getattr(import_module(module), name))
        return self.one_of

    def allow(self, value: Any) -> bool:
        """Return whether a setting may have this value."""
        if isinstance(value, list):
            return self.entries in (0, len(value)) and all(map(self.allow, value))
        if self.one_of:
            return value in self.choices
        if (self.at_least, self.above) == (None, None) or value in self.also:
            return True
        low = self.at_least <= value if self.at_least is not None else self.above < value
        high = value < self.below if self.below is not None else value <= self._most
        return bool(low and high)

    def expected(self, value: Any) -> str:
        """Describe the allowed values, for a message that `value` is none of them."""
        if self.one_of:
            names = ", ".join(str(choice) for choice in self.choices if choice != "")
            return f"one of {names}" + (", or empty" if "" in self.choices else "")
        too_large = max(value, default=0) > MOST if isinstance(value, list) else value > MOST
        if self.at_most is None and self.below is None and not too_large:
            described = f"at least {self.at_least}" if self.above is None else f"above {self.above}"
        else:
            low = f"[{self.at_least}" if self.above is None else f"({self.above}"
            described = f"in {low}, " + (f"{self._most}]" if self.below is None else f"{self.below})")
        numbers = f"{self.entries} numbers " if self.entries else ""
        return numbers + described + "".join(f", or {number}" for number in self.also)

    @property
    def _most(self) -> float:
        return MOST if self.at_most is None else self.at_most


_RANGE = frozenset(f.name for f in fields(Values))


def setting(default: Any, **declared: Any) -> Any:
    """Declare a setting: a field with this default, the `Values` that it may have, and marks."""
    values = Values(**{key: declared.pop(key) for key in _RANGE & declared.keys()})
    metadata = declared if values == Values() else {"values": values, **declared}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


# Look at declared settings.


def declared(owner: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Yield every setting of a dataclass and of the dataclasses in its fields, in order: (dotted name, field)."""
    for one in fields(owner):
        if isinstance(one.type, type) and is_dataclass(one.type):
            yield from declared(one.type, f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", one


def marked(owner: type, mark: str, value: object = True) -> tuple[str, ...]:
    """Return the names of a dataclass's fields whose `mark` has this value."""
    return tuple(one.name for one in fields(owner) if one.metadata.get(mark) == value)


def value_of(settings: Any, key: str) -> Any:
    """Return the setting with this dotted name."""
    for part in key.split("."):
        settings = getattr(settings, part)
    return settings


def set_value(settings: Any, key: str, value: Any) -> None:
    """Change the setting with this dotted name."""
    group, _, name = key.rpartition(".")
    setattr(value_of(settings, group) if group else settings, name, value)


# Find what is wrong.


def wrong_values(settings: Any, prefix: str = "") -> list[UserError]:
    """List the values out of range, by dotted names, in an object of settings and those in its fields."""
    wrong = []
    for one in fields(settings):
        value, key = getattr(settings, one.name), f"{prefix}{one.name}"
        if is_dataclass(value):
            wrong += wrong_values(value, f"{key}.")
        elif error := wrong_value(one, value, key):
            wrong.append(error)
    return wrong


def wrong_value(declaration: Field[Any], value: Any, key: str) -> UserError | None:
    """Return the error for a value that the setting may not have; None if it may. `key`: its dotted name."""
    values = declaration.metadata.get("values", Values())
    if values.allow(value):
        return None
    if isinstance(value, str) and value in values.refused:
        why, hint = values.refused[value]
        return UserError(f"{value} {why}", where=key, remedy=hint)
    each = "each " if isinstance(value, list) and not values.entries else ""
    got = next((item for item in value if not values.allow(item)), value) if each else value
    return UserError(f"{each}must be {values.expected(value)}, got {got}", where=key, remedy=values.hint)


class Rule(NamedTuple):
    """A combination of settings that is not allowed."""

    broken: bool
    what: str
    """The settings, with their values, and why they conflict."""
    hint: str
    """What to set instead."""
    where: str = ""
    """The setting to change, where `what` does not name it."""


def broken(rules: Iterable[Rule]) -> list[UserError]:
    """Return an error for each broken rule."""
    return [UserError(rule.what, where=rule.where, remedy=rule.hint) for rule in rules if rule.broken]


def unknown_key(key: str, known: Collection[str], where: object) -> UserError:
    """Return the error for a name that is none of the `known` ones: with the nearest, or with all."""
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return UserError(f"unknown key {key}", where=where, expected=f"one of {', '.join(near or known)}")


Settings = TypeVar("Settings")
_KINDS = {str: "a text", int: "a whole number"}


def made(owner: type[Settings], values: Mapping[str, Any], where: object) -> Settings:
    """Make a dataclass of settings from a mapping. Raises UserError that lists all unknown and missing keys, and all
    values of another type or out of range."""
    known: dict[str, Field[Any]] = {one.name: one for one in fields(owner)}  # type: ignore[arg-type]
    wrong: list[UserError | None] = [unknown_key(key, known, where) for key in values if key not in known]
    for name, one in known.items():
        if name not in values:
            if one.default is MISSING and one.default_factory is MISSING:
                wrong.append(UserError(f"has no {name}", where=where))
        elif one.type in _KINDS and type(values[name]) is not one.type:
            what = f"must be {_KINDS[one.type]}, got {values[name]!r}"
            wrong.append(UserError(what, where=f"{where}, {name}"))
        else:
            wrong.append(wrong_value(one, values[name], f"{where}, {name}"))
    if found := [error for error in wrong if error]:
        raise one_error(found, where=str(where))
    return owner(**values)
