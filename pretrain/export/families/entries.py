"""Define the entries of a family's tables, and match the names of parameters by them, both ways."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Config = Mapping[str, Any]
"""The fields of a config.json."""


class Field(NamedTuple):
    """A field of config.json whose value differs from our setting's."""

    name: str
    to: Callable[[Any], Any]
    """Our value -> theirs."""
    back: Callable[[Any], Any]
    """Their value -> ours; None if we have none."""


class Weight(NamedTuple):
    """A tensor that is stored in another form than ours: with more rows, or another order of its dimensions."""

    name: str
    to: Callable[["Tensor", Config], "Tensor"]
    back: Callable[["Tensor", Config], "Tensor"]

    @property
    def same(self) -> bool:
        """Whether it is stored in our form after all."""
        return self.back is _same


class Part(NamedTuple):
    """A tensor that is stored as some of the rows of another one: equal parts, one below the other."""

    name: str
    number: int
    """Which part it is, from 0."""
    parts: int


class Head(NamedTuple):
    """The output of transformers' model that holds the logits of one of our heads."""

    output: str
    per_token: bool = True
    """Shaped (examples, longest, ...), one row per token; False: (examples, ...)."""


def field_of(entry: str | Field) -> Field:
    """Return the entry as a Field; a name alone has the same value on both sides."""
    return entry if isinstance(entry, Field) else Field(entry, _same, _same)


def weight_of(entry: str | Weight | Part) -> Weight | Part:
    """Return the entry as a Weight or Part; a name alone is a tensor of the same form on both sides."""
    return Weight(entry, _same, _same) if isinstance(entry, str) else entry


def _same(value: Any, _: object = None) -> Any:
    return value


def matched(pattern: str, name: str) -> dict[str, str] | None:
    """Return the numbers in `name`, and its ending if `pattern` covers both; None if they do not match."""
    found = _compiled(pattern).fullmatch(name)
    return {key: value or "" for key, value in found.groupdict().items()} if found else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    core = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
    return re.compile(core + r"(?P<kind>\.weight|\.bias)?")
