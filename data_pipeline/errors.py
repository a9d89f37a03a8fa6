"""Define the exception for everything a person can put right: the command line prints it as one line and exits 2."""

from data_pipeline.io.redact import redact

LONGEST = 2000
"""Characters of what is wrong: a damaged file is quoted by other packages at any length."""


class UserError(Exception):
    """What is wrong, where, what was expected and what to do, in one line.

    >>> str(UserError("no such file", where="books.txt", expected="a text file", remedy="check data.sources"))
    'books.txt: no such file (expected a text file; check data.sources)'
    """

    def __init__(self, what: str, *, where: object = "", expected: str = "", remedy: str = "") -> None:
        what = what if len(what) <= LONGEST else what[:LONGEST] + "..."
        self.what, self.where, self.expected, self.remedy = what, str(where), expected, remedy
        hints = "; ".join(part for part in (f"expected {expected}" if expected else "", remedy) if part)
        line = (f"{where}: " if str(where) else "") + what + (f" ({hints})" if hints else "")
        super().__init__(redact(" ".join(line.split())))

    def __reduce__(self):  # keyword-only arguments must survive the way back from a worker process
        return _rebuild, (type(self), self.what, self.where, self.expected, self.remedy)


class DamagedError(UserError):
    """A part of the shards is missing, or is not what was written: a reader may be told to go on without it. What
    cannot be read for another reason (no permission, no network) is not of this kind."""


def _rebuild(kind: type[UserError], what: str, where: str, expected: str, remedy: str) -> UserError:
    return kind(what, where=where, expected=expected, remedy=remedy)
