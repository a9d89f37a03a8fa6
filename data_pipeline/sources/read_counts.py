"""Count what is read, cleaned and dropped between files and token ids; `prepare` sums and shows the counts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings

_RECORDS = ("documents", "repeated_documents", "empty_documents", "pages_passed_over")
"""Counts that together are the records that could be read."""
FIRST_BAD = 5
"""Records that could not be read and are named; the others are counted."""


@dataclass
class Counts:
    """Counts of one part of a source; `a + b` are those of both, in any order."""

    bytes: int = 0
    """Text of the documents kept, in bytes of UTF-8."""
    documents: int = 0
    """Documents read that hold text."""
    pages_passed_over: int = 0
    """Wikipedia redirects and pages that are not articles: skipped."""
    bad_records: int = 0
    """Records that could not be read: skipped by data.bad_records=skip."""
    empty_documents: int = 0
    """Documents without a visible character: dropped."""
    invalid_characters: int = 0
    """Invalid UTF-8 sequences and lone surrogates: each became U+FFFD."""
    control_characters: int = 0
    """NULs and other control characters: removed."""
    repeated_documents: int = 0
    """Documents that repeat an earlier one, entirely or in every paragraph: dropped by data.duplicates."""
    repeated_paragraphs: int = 0
    """Paragraphs in the remaining documents that repeat an earlier one: dropped by data.duplicates."""
    repeated_bytes: int = 0
    """Text of these documents and paragraphs, in bytes of UTF-8."""
    sentences: int = 0
    """Sentences found, including those dropped because they have no token."""
    empty_sentences: int = 0
    """Sentences without a token: dropped."""
    documents_without_tokens: int = 0
    """Documents with text but without a token: dropped."""
    tokens: int = 0
    """Tokens of the sentences kept."""
    unknown_tokens: int = 0
    """Of these, tokens that are [UNK]."""
    unknown_long_words: int = 0
    """Of these, words of more characters than the vocabulary cuts into pieces."""

    def __post_init__(self) -> None:
        self.first_bad: list[str] = []
        """What is wrong with the first bad records, and where."""

    def skip_or_raise(self, error: UserError, settings: DataSettings) -> None:
        """Count the record that `error` is about, where data.bad_records=skip. Else raises the error."""
        if settings.bad_records != "skip":
            raise error
        self.bad_records += 1
        if len(self.first_bad) < FIRST_BAD:
            self.first_bad.append(str(error))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name, in order of declaration."""
        return asdict(self)


def check_bad_records(reading: Mapping[str, int], first: Sequence[str], settings: DataSettings) -> None:
    """Raise UserError if more records could not be read than data.bad_records_limit allows; none, where they are not
    to be skipped, as after another preparation skipped them."""
    bad = reading.get("bad_records", 0)
    read = sum(reading.get(name, 0) for name in _RECORDS)
    most = settings.bad_records_limit if settings.bad_records == "skip" else 0.0
    if bad > most * (bad + read):
        raise UserError(
            f"{bad:,} of {bad + read:,} records could not be read; the first: {first[0] if first else 'unknown'}",
            where="data.bad_records_limit" if most else "data.bad_records",
            expected=f"at most {most:.2%} of the records" if most else "",
            remedy="mend the sources, or raise it" if most else "skip leaves them out",
        )
