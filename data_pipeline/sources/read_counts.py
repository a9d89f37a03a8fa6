"""Count what is read, cleaned and dropped between files and token ids; `prepare` sums and shows the counts."""

from dataclasses import asdict, dataclass, fields


@dataclass
class Counts:
    """Counts of one part of a source; `a + b` are those of both, in any order."""

    bytes: int = 0
    """Text of the documents kept, in bytes of UTF-8."""
    documents: int = 0
    """Documents read that hold text."""
    pages_passed_over: int = 0
    """Wikipedia redirects and pages that are not articles: skipped."""
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

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name, in order of declaration."""
        return asdict(self)
