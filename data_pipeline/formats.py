"""One unit of a source in, its records out: (record, text, more) with the text as it stands in the file.

A unit may be a piece of a larger file: every piece finds the records that are its own without reading the others.
A record too long to be held comes in passages: the first is `text`, the others are read from `more`, before the
next record is asked for. Each format has a module, which only those import who read it: pyarrow takes its time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipeline.counts import Counts
from data_pipeline.hygiene import decoded
from data_pipeline.settings import DataSettings

PASSAGE_BYTES = 1 << 20
"""A document of more bytes comes in passages of about this size."""

Record = tuple[int | str, str, Iterable[str]]


@dataclass(frozen=True)
class SourceFile:
    """One unit of work: a file, or a piece of one."""

    uri: str  # what to open
    name: str  # path relative to the source's root: the first half of its documents' ids
    format: str  # text, jsonl, parquet, arrow, wikiextractor or wikipedia
    compression: str  # "" or a value of bytestream.COMPRESSIONS
    size: int  # bytes on disk: a hint for scheduling
    start: int = 0  # first byte; Parquet: first row group
    stop: int = -1  # byte after the last, row group after the last; -1: to the end
    before: int = 0  # line feeds, or Parquet rows, before `start`
    stripe: int = (
        0  # where `stripes` > 1: only each `stripes`-th record is this unit's, from number `stripe` on
    )
    stripes: int = 1
    source: int = 0  # number in data.sources
    total: int = -1  # bytes of the whole file when it was found; -1: not known

    def owns(self, record: int) -> bool:
        """Whether the record with this number, counted from any point, is of this unit's stripe."""
        return record % self.stripes == self.stripe


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """The records of one unit: id field or number (the line on which it begins, or its row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format in ("parquet", "arrow"):
        from data_pipeline.tables import table_records

        return table_records(file, settings, counts)
    if file.format == "wikipedia":
        from data_pipeline.wikipedia import pages

        return pages(file, counts)
    if file.format == "jsonl":
        from data_pipeline.json_lines import json_records

        return json_records(file, settings, counts)
    if file.format == "wikiextractor":
        from data_pipeline.wikiextractor import extracted_pages

        return extracted_pages(file, counts)
    from data_pipeline.plain_text import texts

    return texts(file, settings, counts)


def in_passages(record: int | str, parts: Iterator[bytes], counts: Counts) -> Record:
    """The record whose text are these bytes, which may be cut anywhere."""
    passages = decoded(parts, counts)
    return record, next(passages, ""), passages
