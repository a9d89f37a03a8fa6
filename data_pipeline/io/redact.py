"""Redact credentials in text and settings, and escape what must not reach a terminal.

Everything that is written or shown is redacted here: run folders are copied, reports are shared. Everything that is
shown passes `printable`, since texts, tokenizers, keys and names come from strangers, and a terminal obeys an escape
sequence in them.
"""

import json
import re
from typing import Any

# Both take time in proportion to the text: each is tried once for a run of the characters that it begins with.
_USER = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]*+://)([^/@\s]*+)@")
_CONTAINERS = ("abfs://", "abfss://", "wasb://", "wasbs://")  # Azure's CONTAINER@ACCOUNT is not a user
_SIGNED = re.compile(
    r"(?i)([?&;](?=[\w.-]*?(?:sig|token|key|secret|password|credential))[\w.-]++=)[^&;\s\"']++"
)


def redact(text: str) -> str:
    """Return `text` without user names and passwords in URIs, or signatures and keys in their queries."""
    return _SIGNED.sub(r"\1***", _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    if found[1].lower().endswith(_CONTAINERS) and ":" not in found[2]:
        return found[0]
    return f"{found[1]}***@"


def redact_settings(settings: Any) -> Any:
    """Return a dict or list of settings, nested to any depth, with all text redacted."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [redact_settings(value) for value in settings]
    return redact(settings) if isinstance(settings, str) else settings


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, other ends of lines, what changes the direction of text, and halves of
surrogate pairs, which no stream takes."""
LONGEST_WORD, LONGEST_LINE = 400, 3000
"""Characters of what is shown in one line: keys, names and lines that other packages quote may have any length."""


def printable(text: str) -> str:
    """Return `text` with the characters that a terminal obeys, or that reorder what it shows, as escapes (`\\x1b`)."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown_json(values: Any, sort_keys: bool = False) -> str:
    """Return `values` as JSON for people and programs; all that `printable` escapes is escaped as JSON has it."""
    return json.dumps(values, indent=1, sort_keys=sort_keys).replace("\x7f", "\\u007f")


def shortened(line: str) -> str:
    """Return `line` with the middle of very long words, and of a very long line, left out."""
    line = _LONG.sub(lambda found: _ends(found[0], LONGEST_WORD), line)
    return _ends(line, LONGEST_LINE)


_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def _ends(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 3 // 4]}...{text[-most // 4 :]}"
