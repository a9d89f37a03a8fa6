"""Encode JSON canonically, one value, one text, and seal a file with the SHA-256 of its own content.

A sealed file is a JSON object with the field `sha256`: the hash of the object without it, as `canonical_json` encodes
it. It shows damage, wherever that is. It is no signature: whoever changes a file on purpose can seal it again.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SEAL = "sha256"
"""The field of a sealed object."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: object, indent: int | None = None) -> bytes:
    """Encode JSON with sorted keys and the shortest digits that round-trip each number."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return (text + "\n").encode("utf-8")


def sealed_json(values: Mapping[str, Any]) -> bytes:
    """Encode `values` as the text of a sealed file."""
    return canonical_json({**values, SEAL: _seal(values)}, indent=1)


def seal_holds(values: Mapping[str, Any]) -> bool | None:
    """Return whether the seal of a parsed object is that of its content; None if it has none, as one that was written
    before files were sealed."""
    if SEAL in values:
        try:
            return bool(values[SEAL] == _seal(values))
        except (ValueError, RecursionError):  # infinity, half a character, brackets too deep: never written
            return False
    # a seal whose name was changed is no missing one
    is_renamed = any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in values.values())
    return False if is_renamed else None


def _seal(values: Mapping[str, Any]) -> str:
    content = {name: value for name, value in values.items() if name != SEAL}
    return hashlib.sha256(canonical_json(content)).hexdigest()
