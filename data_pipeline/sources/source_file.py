"""Define one part of a source, and the records that every format's reader yields."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data_pipeline.sources.cleaning import decoded
from data_pipeline.sources.read_counts import Counts

PASSAGE_BYTES = 1 << 20
"""A larger document is read in passages of about this size."""

Record = tuple[int | str, str, Iterable[str]]


@dataclass(frozen=True)
class SourceFile:
    """One part of a source: a file, or a piece of one."""

    uri: str  # what to open
    name: str  # path relative to the source's root: first half of its documents' ids
    format: str  # text, jsonl, parquet, arrow, wikiextractor or wikipedia
    compression: str  # "" or a value of decompress.COMPRESSIONS
    size: int  # bytes on disk: a hint for scheduling
    start: int = 0  # first byte; Parquet: first row group
    stop: int = -1  # byte after the last, row group after the last; -1: to the end
    before: int = 0  # line feeds, or Parquet rows, before `start`
    stripe: int = (
        0  # where `stripes` > 1: only each `stripes`-th record is this part's, from number `stripe` on
    )
    stripes: int = 1
    source: int = 0  # number in data.sources
    total: int = -1  # bytes of the whole file when it was found; -1: not known

    def owns(self, record: int) -> bool:
        """Return whether the record with this number, counted from any point, belongs to this part's stripe."""
        return record % self.stripes == self.stripe


def in_passages(record: int | str, parts: Iterator[bytes], counts: Counts) -> Record:
    """Make the record whose text is these bytes, which may be cut anywhere."""
    passages = decoded(parts, counts)
    return record, next(passages, ""), passages
