"""Find and drop documents and paragraphs that repeat earlier ones exactly.

    fingerprint    one part of a source -> hashes of its documents and paragraphs, sorted, in runs
    find_repeats   a range of hashes of all parts -> what repeats, part by part
    without_repeats  the documents of one part -> the same without what repeats

Documents are compared by their whole cleaned text, paragraphs by the text between blank lines, both stripped of outer
white space, by 128-bit BLAKE2b. The first occurrence is kept: the earliest record in the earliest part, as `discover`
lists them. That follows from the sources alone, so the number of workers changes nothing. Repeats within a run are
found when it is fingerprinted, so each run of a part contributes a hash only once, however common it is.
Memory: one run, or one range, at a time.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import whole_folder
from data_pipeline.io.npy import save_column
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import BLANK_LINES, Counts, utf8_size
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.read import read

RUN_ENTRIES = 1 << 21
"""Hashes sorted together: 64 MB."""
RANGE_ENTRIES = 1 << 22
"""Approximate number of hashes compared together."""
WHOLE = -1
"""Paragraph number of an entry for a whole document."""

_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8"), ("paragraph", "<i8")])
_REPEAT = np.dtype([("part", "<u4"), ("document", "<u8"), ("paragraph", "<i8")])
_PLACE = struct.Struct("<Qq")
_KINDS = {"keep": (), "documents": (b"document",), "paragraphs": (b"paragraph",)}
_KINDS["both"] = _KINDS["documents"] + _KINDS["paragraphs"]


def kinds(settings: DataSettings) -> tuple[bytes, ...]:
    """Return what `settings.duplicates` compares: b"document", b"paragraph", both or neither. Raises UserError for an
    unknown value."""
    if settings.duplicates not in _KINDS:
        raise UserError(
            f"unknown {settings.duplicates!r}", where="data.duplicates", expected=" or ".join(_KINDS)
        )
    return _KINDS[settings.duplicates]


def fingerprint(source: SourceFile, settings: DataSettings, out: str) -> dict[str, Any]:
    """Write the sorted hashes of one part into the folder `out`: for each run, the first of equal hashes in
    NUMBER.first.npy and the positions of the others in NUMBER.repeats.npy. Return the number of first hashes."""
    entries = 0
    with whole_folder(out) as folder:
        for number, run in enumerate(_runs(source, settings)):
            order = np.lexsort(
                (run["low"], run["high"])
            )  # stable: equal hashes stay in the order of the text
            run = run[order]
            first = np.ones(len(run), np.bool_)
            first[1:] = (run["high"][1:] != run["high"][:-1]) | (run["low"][1:] != run["low"][:-1])
            save_column(folder / f"{number:06d}.first.npy", run[first])
            save_column(folder / f"{number:06d}.repeats.npy", run[~first][["document", "paragraph"]])
            entries += int(first.sum())
    return {"entries": entries}


def _runs(source: SourceFile, settings: DataSettings) -> Iterator[NDArray]:
    compared = kinds(settings)
    entries = bytearray()
    for number, document in enumerate(read(source, settings, Counts())):
        for entry in _entries(document.text, number, compared):
            entries += entry
            if len(entries) >= RUN_ENTRIES * _ENTRY.itemsize:
                yield np.frombuffer(bytes(entries), _ENTRY)
                entries.clear()
    if entries:
        yield np.frombuffer(bytes(entries), _ENTRY)


def _entries(text: str, document: int, compared: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield an entry for each paragraph of a document and one for all of it, as far as they are compared."""
    if b"paragraph" in compared:
        for number, paragraph in enumerate(paragraphs(text)):
            yield _entry(b"paragraph", paragraph, document, number)
    if b"document" in compared:
        yield _entry(b"document", text, document, WHOLE)


def _entry(kind: bytes, text: str, document: int, paragraph: int) -> bytes:
    """Return the hash of a text without outer white space, and its position; b"" if it is empty. `kind` distinguishes
    documents from paragraphs."""
    solid = text.strip()
    if not solid:
        return b""
    digest = hashlib.blake2b(solid.encode("utf-8"), digest_size=16, person=kind).digest()
    return digest + _PLACE.pack(document, paragraph)


def paragraphs(text: str) -> Iterator[str]:
    """Cut the text into paragraphs, each with the blank lines after it."""
    at = 0
    for gap in BLANK_LINES.finditer(text, 0, len(text.rstrip())):
        yield text[at : gap.end()]
        at = gap.end()
    yield text[at:]


def ranges(entries: int) -> list[tuple[int, int]]:
    """Return ranges (first, last) of the hashes' upper halves, each with about RANGE_ENTRIES of `entries` hashes."""
    count = -(-entries // RANGE_ENTRIES) or 1
    borders = [(n << 64) // count for n in range(count + 1)]
    return [(first, last - 1) for first, last in pairwise(borders)]


def find_repeats(folders: list[str], first: int, last: int, out: str) -> dict[str, Any]:
    """Compare the hashes between `first` and `last` of all parts, given by their `folders` in order, and write the
    repeats, sorted by part, into the folder `out`. Return their number."""
    found, owner_of = [np.empty(0, _ENTRY)], [np.empty(0, np.uint32)]
    for part, folder in enumerate(folders):
        for path in sorted(Path(folder).glob("*.first.npy")):
            run = np.load(path, mmap_mode="r", allow_pickle=False)
            start = np.searchsorted(run["high"], np.uint64(first), "left")
            stop = np.searchsorted(run["high"], np.uint64(last), "right")
            found.append(np.array(run[start:stop]))
            owner_of.append(np.full(len(found[-1]), part, np.uint32))
    entries, owners = np.concatenate(found), np.concatenate(owner_of)
    del found, owner_of
    order = np.lexsort((entries["low"], entries["high"]))  # stable: the first part's comes first
    high, low = entries["high"][order], entries["low"][order]
    again = 1 + np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    places = np.sort(order[again])
    repeats = np.empty(len(places), _REPEAT)
    repeats["part"] = owners[places]
    repeats["document"], repeats["paragraph"] = entries["document"][places], entries["paragraph"][places]
    with whole_folder(out) as made:
        save_column(made / "repeats.npy", repeats)
    return {"repeats": len(repeats)}


@dataclass(frozen=True)
class Repeats:
    """The folders that hold the repeats of one part."""

    part: int
    fingerprints: str  # the part's folder
    found: tuple[str, ...]  # the folders of all ranges

    def places(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Read the repeats of the part: document numbers, ascending, and paragraph numbers (or WHOLE)."""
        found = [np.empty(0, [("document", "<u8"), ("paragraph", "<i8")])]
        found += [
            np.load(path, allow_pickle=False)
            for path in sorted(Path(self.fingerprints).glob("*.repeats.npy"))
        ]
        for folder in self.found:
            repeats = np.load(Path(folder) / "repeats.npy", mmap_mode="r", allow_pickle=False)
            start, stop = np.searchsorted(repeats["part"], [self.part, self.part + 1])
            found.append(np.array(repeats[start:stop][["document", "paragraph"]]))
        documents = np.concatenate([rows["document"] for rows in found])
        numbers = np.concatenate([rows["paragraph"] for rows in found])
        order = np.argsort(documents, kind="stable")
        return documents[order], numbers[order]


def without_repeats(
    documents: Iterable[Document], repeats: Repeats | None, counts: Counts
) -> Iterator[Document]:
    """Yield the part's documents without repeated documents and paragraphs; a document with no paragraph left is
    dropped too. `counts`, which `read` has updated, is corrected."""
    if repeats is None:
        yield from documents
        return
    numbers, places = repeats.places()
    for number, document in enumerate(documents):
        start, stop = np.searchsorted(numbers, np.array([number, number + 1], np.uint64))
        gone = set(places[start:stop].tolist())
        if not gone:
            yield document
            continue
        text = _kept(document.text, gone, counts)
        if text and not text.isspace():
            yield document._replace(text=text)
        else:
            counts.documents -= 1
            counts.repeated_documents += 1


def _kept(text: str, gone: set[int], counts: Counts) -> str:
    """Return the text of the paragraphs that are not `gone`; count the others."""
    if WHOLE in gone:
        _count_away(text, counts)
        return ""
    kept = []
    for number, paragraph in enumerate(paragraphs(text)):
        if number in gone:
            counts.repeated_paragraphs += 1
            _count_away(paragraph, counts)
        else:
            kept.append(paragraph)
    return "".join(kept)


def _count_away(text: str, counts: Counts) -> None:
    size = utf8_size(text)
    counts.bytes -= size
    counts.repeated_bytes += size
