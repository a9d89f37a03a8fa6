"""Load YAML, refuse what settings from outside must not hold, and merge the rest into the schema of all settings.

The parsers recurse in C, where 60,000 open brackets crash the process, and nested aliases double the data at each
level: parser events reveal the shape before any object is built. OmegaConf resolves `${oc.env:KEY}`, which would put
secrets of the environment into requests, checkpoints and reports, and takes exponential time for nested ones:
`refuse_odd` refuses every `${`, wherever keys and values come from, before OmegaConf sees it. It also refuses what
raises errors of many kinds in the code that uses it, or reaches a terminal: integers beyond 64 bits, texts with a NUL
or an escape character.
"""

import io
import re
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data_pipeline.errors import UserError, first_line
from pretrain.config.settings import RunConfig

DEPTH, VALUES = 40, 20_000
"""Maximum nesting depth and maximum number of values, with aliases counted as expanded."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but tabs and line ends
LARGEST_INTEGER = 2**63
"""The largest seed; other settings have smaller ranges."""


def load_yaml(path: Path) -> Any:
    """Load a file as dicts, lists and plain values: no objects, nothing resolved. Raises UserError, also for excessive
    nesting or repetition and for what `refuse_odd` refuses."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {first_line(error)}", where=path) from None
    return parse_yaml(text, path)


def parse_yaml(text: str, where: object) -> Any:
    """Parse a text, which is that of `where`, as `load_yaml` does a file."""
    try:
        check_shape(text, where)
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"not YAML: {getattr(error, 'problem', None) or error}", where=f"{where}{line}"
        ) from None
    except (OSError, ValueError, OmegaConfBaseException) as error:  # a lone number; an invalid date
        raise UserError(f"cannot be read: {first_line(error)}", where=where) from None
    refuse_odd(values, where)
    return values


def refuse_odd(values: Any, where: object, key: str = "") -> None:
    """Raise UserError if a text among `values`, dicts and lists of any depth, or one of their keys holds an
    interpolation or a control character, or if an integer is beyond 64 bits. `key`: the dotted name of `values`."""
    if isinstance(values, dict):
        for name, value in values.items():
            _refuse_odd_text(str(name), where)
            refuse_odd(value, where, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list | tuple):
        for value in values:
            refuse_odd(value, where, key)
    elif isinstance(values, str):
        _refuse_odd_text(values, where)
    elif isinstance(values, int) and abs(values) > LARGEST_INTEGER:
        raise UserError(f"{key} is beyond 64 bits", where=where, expected="a number of at most 19 digits")


def _refuse_odd_text(text: str, where: object) -> None:
    if "${" in text:  # escaped as \${ as well: OmegaConf would drop the backslash
        raise UserError(
            "interpolation, ${...}, is not supported", where=where, expected="the value itself, without ${"
        )
    if found := _CONTROL.search(text):
        raise UserError(
            f"a control character, {found[0]!r}, in a key or value", where=where, expected="text without it"
        )
    if text == "???":
        raise UserError("??? is no value", where=where, remedy="leave the setting out to keep its default")


def check_shape(text: str, where: object = None) -> None:
    """Raise YAMLError if `text` is not YAML, or has more than DEPTH levels or VALUES values; with `where`, UserError
    that names the line of a key or value that `refuse_odd` would refuse."""
    # libyaml yields the same events several times as fast; what it finds wrong, the other one puts into words
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):
            _check_events(yaml.parse(text, Loader=yaml.CSafeLoader), where)
            return
    _check_events(yaml.parse(text, Loader=yaml.SafeLoader), where)


def _check_events(events: Iterable[yaml.Event], where: object) -> None:
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
        elif where is not None:
            _refuse_odd_text(event.value, f"{where}, line {event.start_mark.line + 1}")
        if anchor is not None:
            sizes[anchor] = size
        outer, so_far = open_ones.pop()
        if so_far + size >= VALUES:
            raise yaml.YAMLError(f"more than {VALUES} values, or an alias within itself")
        open_ones.append((outer, so_far + size))


# The typed schema of all settings, into which recipes, overrides and the settings of run folders are merged.


def schema() -> DictConfig:
    """Return every setting of RunConfig at its default; the caller may change it."""
    return deepcopy(_built())


@cache
def _built() -> DictConfig:
    return OmegaConf.structured(RunConfig)  # takes five times as long as a copy of what it makes


def merged(config: DictConfig, values: dict[str, Any], where: object) -> DictConfig:
    """Return `config`, which is used up, with `values` in place of its own. Raises UserError for what `refuse_odd`
    refuses, and for keys and types that `config` does not have."""
    refuse_odd(values, where)
    try:
        return OmegaConf.unsafe_merge(config, values)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise _user_error(error, where) from None


def typed(config: DictConfig, where: object) -> Any:
    """Return the dataclass that `config` describes. Raises UserError for a value that is lacking (`???`), and for
    numbers, which were texts until now, that `refuse_odd` refuses."""
    try:
        refuse_odd(OmegaConf.to_container(config, resolve=False), where)
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise _user_error(error, where) from None


def _user_error(error: OmegaConfBaseException, where: object) -> UserError:
    key = getattr(error, "full_key", "") or ""
    return UserError(f"{key}: {first_line(error)}" if key else first_line(error), where=where)
