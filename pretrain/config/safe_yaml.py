"""Load a YAML file after checking that its size and nesting depth are reasonable.

The parsers recurse in C, where 60,000 open brackets crash the process, and nested aliases double the data at each
level. Parser events reveal the shape before any object is built.
"""

import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

DEPTH, VALUES = 40, 20_000
"""Maximum nesting depth and maximum number of values, with aliases counted as expanded."""


def load_yaml(path: Path) -> Any:
    """Load a file with OmegaConf: no objects, interpolations unresolved. Raises YAMLError, also for excessive
    nesting or repetition, OSError and UnicodeDecodeError."""
    return parse_yaml(path.read_text(encoding="utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse a text as `load_yaml` does a file."""
    check_shape(text)
    try:
        return OmegaConf.load(io.StringIO(text))
    except ValueError as error:  # an invalid date or number
        raise yaml.YAMLError(str(error)) from None


def check_shape(text: str) -> None:
    """Raise YAMLError if `text` is not YAML, or has more than DEPTH levels or VALUES values."""
    # libyaml yields the same events several times as fast; what it finds wrong, the other one puts into words
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):
            _check_events(yaml.parse(text, Loader=yaml.CSafeLoader))
            return
    _check_events(yaml.parse(text, Loader=yaml.SafeLoader))


def _check_events(events: Iterable[yaml.Event]) -> None:
    sizes: dict[str, int] = {}
    open_ones: list[tuple[str | None, int]] = [(None, 0)]  # anchor and number of values of each collection
    for event in events:
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((anchor, 0))
            if len(open_ones) > DEPTH:
                raise yaml.YAMLError(f"nested deeper than {DEPTH} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, VALUES)  # an alias inside itself never ends
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, so_far = open_ones.pop()
        if so_far + size >= VALUES:
            raise yaml.YAMLError(f"more than {VALUES} values, or an alias within itself")
        open_ones.append((outer, so_far + size))
