"""Load a YAML file once it is known to have a size and a depth that a person would write.

The parsers recurse in C, where 60,000 open brackets end the process, and an alias of an alias of an alias doubles what
is read each time. Events tell the shape before anything is built of them.
"""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

DEPTH, VALUES = 40, 20_000
"""The deepest nesting and the most values, aliases counted as what they stand for."""


def load_yaml(path: Path) -> Any:
    """The file as OmegaConf reads it: no objects, interpolations unresolved. Raises YAMLError also for what is nested
    or repeated beyond reason, OSError, UnicodeDecodeError."""
    check_shape(path.read_text(encoding="utf-8"))
    try:
        return OmegaConf.load(path)
    except ValueError as error:  # a date or a number that is none
        raise yaml.YAMLError(str(error)) from None


def check_shape(text: str) -> None:
    """Raises YAMLError where `text` is no YAML, or has more than DEPTH levels or VALUES values."""
    sizes: dict[str, int] = {}
    open_ones: list[tuple[str | None, int]] = [(None, 0)]  # anchor and number of values of each collection
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((anchor, 0))
            if len(open_ones) > DEPTH:
                raise yaml.YAMLError(f"nested deeper than {DEPTH} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, VALUES)  # one inside itself has no end
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, so_far = open_ones.pop()
        if so_far + size >= VALUES:
            raise yaml.YAMLError(f"more than {VALUES} values, or an alias within itself")
        open_ones.append((outer, so_far + size))
