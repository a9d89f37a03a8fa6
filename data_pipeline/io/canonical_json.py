"""Encode JSON canonically: one value, one text."""

import json


def canonical_json(value: object, indent: int | None = None) -> bytes:
    """Encode JSON with sorted keys and the shortest digits that round-trip each number."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return (text + "\n").encode("utf-8")
