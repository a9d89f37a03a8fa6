"""Define the exception for every mistake of the user: the command line prints it as one line and exits with code 2."""

from data_pipeline.io.redact import redact

MAX_CHARACTERS = 2000
"""Of what is wrong: other packages quote a damaged file at any length."""


class UserError(Exception):
    """What is wrong, where, what was expected and what to do, in one line.

    >>> str(UserError("no such file", where="books.txt", expected="a text file", remedy="check data.sources"))
    'books.txt: no such file (expected a text file; check data.sources)'
    """

    def __init__(self, what: str, *, where: object = "", expected: str = "", remedy: str = "") -> None:
        what = what if len(what) <= MAX_CHARACTERS else what[:MAX_CHARACTERS] + "..."
        self.what, self.where, self.expected, self.remedy = what, str(where), expected, remedy
        hints = "; ".join(part for part in (f"expected {expected}" if expected else "", remedy) if part)
        line = (f"{where}: " if str(where) else "") + what + (f" ({hints})" if hints else "")
        super().__init__(redact(" ".join(line.split())))

    def __reduce__(self):  # keyword-only arguments must survive the way back from a worker process
        return _rebuild, (type(self), self.what, self.where, self.expected, self.remedy)


class DamagedError(UserError):
    """A part of the shards is missing, or is not what was written: a reader may be set to skip it. What
    cannot be read for another reason (no permission, no network) is not of this kind."""


def _rebuild(kind: type[UserError], what: str, where: str, expected: str, remedy: str) -> UserError:
    return kind(what, where=where, expected=expected, remedy=remedy)
