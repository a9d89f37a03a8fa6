"""Clean raw bytes or text, and count what is read, changed and dropped between files and token ids.

The rules of cleaning, in this order:

1. Bytes are UTF-8. Each invalid sequence becomes one U+FFFD (the codec's `replace` rule), and so does each lone
   surrogate from a JSON escape. Text in UTF-16 or UTF-32 is refused.
2. CR LF becomes LF; a lone CR becomes a space.
3. NUL and the other control characters (Unicode category Cc, except tab and line feed) are removed.

A byte-order mark at the start of a file is dropped. Everything else is left to the tokenizer. Rules 2 and 3 do the
same as BERT's own `clean_text`, so they change no token id.

The changes by rules 1 and 3 are counted. `prepare` sums and shows the counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings

# Count what is read, cleaned and dropped, and refuse too many records that cannot be read.

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


# Decode and clean text by the rules, and refuse files that hold no text in UTF-8.

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
"""Separates the paragraphs of a document."""

_MAGIC = {
    b"PK\x03\x04": "a zip archive, as .docx, .xlsx, .epub, .jar and .npz are",
    b"PK\x05\x06": "an empty zip archive",
    b"%PDF-": "a PDF",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"RIFF": "a RIFF file (WebP, WAV or AVI)",
    b"OggS": "an Ogg file",
    b"ID3": "an MP3 file",
    b"fLaC": "a FLAC file",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an OLE document, as .doc and .xls are",
    b"SQLite format 3\0": "an SQLite database",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"\x7fELF": "a program",
    b"\x04\x22\x4d\x18": "an LZ4 file",
    b"\x1f\x9d": "a compress (.Z) file",
    b"wOFF": "a font",
    b"\0asm": "a WebAssembly program",
}
"""What binary files begin with."""
_BLOCK = 1 << 22
_C0 = bytes(c for c in (*range(0x20), 0x7F) if c not in b"\t\n")
_C1 = re.compile(
    rb"\xc2[\x80-\x9f]"
)  # U+0080..U+009F as UTF-8: the literal first byte makes this a fast scan
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def decode(raw: bytes, counts: Counts, errors: str = "replace") -> str:
    """Decode `raw` by rule 1, or by another rule of the codec for invalid bytes; these are counted alike."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "replace")
        counts.invalid_characters += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
        return text if errors == "replace" else raw.decode("utf-8", errors)


def clean(text: str, counts: Counts) -> str:
    """Clean `text` by the rules above; return it without a copy if nothing changes."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", " ")
    if not (_is_dirty(text) if len(text) <= _BLOCK else any(map(_is_dirty, _blocks(text)))):
        return text
    text, found = _SURROGATE.subn("\ufffd", text)
    counts.invalid_characters += found
    text, found = _CONTROL.subn("", text)
    counts.control_characters += found
    return text


def utf8_size(text: str) -> int:
    """Return the size of `text` in UTF-8, in bytes."""
    return len(text) if text.isascii() else sum(len(block.encode("utf-8")) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """Cut `text` into blocks, so that a huge document is not held twice."""
    return (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))


def _is_dirty(block: str) -> bool:
    """Return whether `block` needs cleaning: one encoding and two scans, far faster than _CONTROL."""
    if block.isascii():
        return len(block.encode("ascii").translate(None, _C0)) < len(block)
    try:
        raw = block.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return len(raw.translate(None, _C0)) < len(raw) or _C1.search(raw) is not None


def check_encoding(head: bytes, where: str) -> None:
    """Raise UserError if `head`, the start of a file, is that of a file of another kind, by its first bytes, or is
    UTF-16 or UTF-32: detected by its byte-order mark, or by its NULs, which in Western text fill two or three of every
    four byte positions and none of the others."""
    binary = b"\0" in head[:64]  # text may begin with RIFF or ID3
    kind = next((_MAGIC[m] for m in _MAGIC if head.startswith(m) and (binary or not m.isalnum())), "")
    if kind or (binary and head[257:262] == b"ustar"):
        raise UserError(
            f"is no text but {kind or 'a tar archive'}",
            where=where,
            expected="text in UTF-8",
            remedy="take the text out of it first, or leave the file out",
        )
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff"))
    shares = sorted(head[place::4].count(0) * 4 / max(len(head), 1) for place in range(4))
    if marked or (len(head) >= 16 and shares[0] < 0.1 and shares[2] > 0.8 and not 0.1 < shares[1] < 0.8):
        raise UserError(
            "the text is not UTF-8 but looks like UTF-16 or UTF-32",
            where=where,
            expected="UTF-8",
            remedy="convert it, for instance with iconv -f UTF-16 -t UTF-8",
        )
