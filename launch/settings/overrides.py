"""Parse the `key=value` pairs of a command line."""

from typing import Any

import yaml

from data_pipeline.errors import UserError
from pretrain.config.yaml_files import check_shape, refuse_odd


def parse_override(override: str) -> dict[str, Any]:
    """Return {"a": {"b": "value"}} of a.b=value; a list where the value is in brackets, else a text. Raises UserError
    for anything else."""
    refuse_odd(override, "command line")
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(
            f"cannot read {override!r}", where="command line", expected="key=value, such as train.steps=100"
        )
    value: Any = text  # the typed merge converts text to numbers; YAML is for lists only
    if text.startswith("["):
        try:
            check_shape(text)
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            raise UserError(
                f"cannot read {override!r}", where="command line", expected=f"{key}=[a, b]"
            ) from None
        refuse_odd(value, "command line", key)  # escapes in quotes are read by now
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def whole(value: Any) -> Any:
    """Return 1000 for 1e3, 1000.0 or the text of either; leave anything that is not a whole number in decimals to
    the typed merge, which refuses it."""
    if not isinstance(value, float | str):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    if not number.is_integer() or (isinstance(value, str) and _is_int(value)):
        return value
    return int(number)


def _is_int(text: str) -> bool:
    """Return whether Python parses all digits of it: a float would round those of a large seed."""
    try:
        int(text)
    except ValueError:
        return False
    return True
