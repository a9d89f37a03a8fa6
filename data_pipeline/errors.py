"""Define the exceptions for user errors: the command line prints one as a single line and exits with code 2."""

from collections.abc import Iterable, Sequence
from itertools import islice

from data_pipeline.io.redact import printable, redact, shortened

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
