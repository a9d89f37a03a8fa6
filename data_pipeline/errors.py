"""Define the errors that a user can mend, and redact, escape and shorten all text that is shown.

The command line prints a UserError as a single line and exits with code 2.

Everything that is written or shown is redacted here: run folders are copied, reports are shared. Everything that is
shown passes `printable`, since texts, tokenizers, keys and names come from strangers, and a terminal obeys an escape
sequence in them.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

EXIT_FAILED, EXIT_USER_ERROR, EXIT_STOPPED, EXIT_INTERRUPTED = 1, 2, 3, 130
"""Exit codes: of an error that nobody foresaw; of a UserError, which would recur; of a training that a signal has
ended, which is saved and which the same command resumes; of any other verb after Ctrl-C."""

# Redact credentials in text and settings.

# Both patterns take time in proportion to the text: each is tried once for a run of the characters that it begins with.
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


# Escape and shorten what is shown.

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


# Make errors of one line, and the parts of such a line.

MAX_CHARACTERS = 2000
"""Longest message kept: other packages may quote a damaged file at any length."""

MAX_NAME, MAX_NAMES = 60, 20
"""Longest name, and most names, that a message lists of a file's own."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def clipped(text: str, most: int) -> str:
    """Return `text`, or its first `most` characters and dots."""
    return text if len(text) <= most else text[:most] + "..."


def listed(names: Iterable[str]) -> str:
    """Join names from outside for a message: the first MAX_NAMES, each shortened; `none` if there are none."""
    first = [clipped(name, MAX_NAME) for name in islice(names, MAX_NAMES + 1)]
    return ", ".join([*first[:MAX_NAMES], *(["..."] if len(first) > MAX_NAMES else [])]) or "none"


class UserError(Exception):
    """A user error in one line: what is wrong, where, what was expected and what to do.

    >>> str(UserError("no such file", where="books.txt", expected="a text file", remedy="check data.sources"))
    'books.txt: no such file (expected a text file; check data.sources)'
    """

    def __init__(self, what: str, *, where: object = "", expected: str = "", remedy: str = "") -> None:
        what, expected, remedy = (clipped(part, MAX_CHARACTERS) for part in (what, expected, remedy))
        self.what, self.where, self.expected, self.remedy = what, str(where), expected, remedy
        hints = "; ".join(part for part in (f"expected {expected}" if expected else "", remedy) if part)
        line = (f"{where}: " if str(where) else "") + what + (f" ({hints})" if hints else "")
        super().__init__(shortened(printable(redact(" ".join(line.split())))))

    def __reduce__(self):  # keyword-only arguments must survive the way back from a worker process
        return _rebuild, (type(self), self.what, self.where, self.expected, self.remedy)


class DamagedError(UserError):
    """A part of the shards is missing or corrupted; a reader may be set to skip it. Failures to read for other
    reasons (no permission, no network) do not raise it."""


class SeveralErrors(UserError):
    """Several errors at once, one per line below a first line that counts them."""

    def __init__(self, errors: Sequence[UserError], where: object = "") -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(errors)} are wrong", where=where)
        self.args = ("\n  ".join([f"{self.args[0]}:", *map(str, errors)]),)

    def __reduce__(self):
        return type(self), (self.errors, self.where)


def one_error(errors: Sequence[UserError], where: str) -> UserError:
    """Combine `errors` into one: a single one is returned as is, with `where` if it has none; several as a list."""
    if len(errors) > 1:
        return SeveralErrors(errors, where)
    only = errors[0]
    return _rebuild(type(only), only.what, only.where or where, only.expected, only.remedy)


def _rebuild(kind: type[UserError], what: str, where: str, expected: str, remedy: str) -> UserError:
    return kind(what, where=where, expected=expected, remedy=remedy)
