"""Read the rows of a Parquet file in batches, and split it among workers by row groups."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.sources.formats.arrow import path_of
from data_pipeline.sources.source_file import SourceFile

BATCH_ROWS = 1024
BATCH_BYTES = 16 << 20
"""Target size of a batch in bytes, from the file's average row size: large rows make batches of fewer rows."""


def batches(
    file: SourceFile, stream: BufferedReader, fields: list[str], stack: ExitStack
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns `fields` of the part's row groups: rows of the part before a batch, and the batch. Memory: a
    batch, and a page with its decompressed content, which pyarrow holds to read one."""
    if file.compression:  # the footer is read first, and a compressed stream cannot seek
        spool = tempfile.TemporaryFile()  # noqa: SIM115
        stack.callback(spool.close)
        shutil.copyfileobj(stream, spool)
        spool.seek(0)
        table = _opened(spool)
    else:
        table = _opened(stream)
    groups = range(file.start, table.num_row_groups if file.stop < 0 else file.stop)
    columns = [".".join(path_of(table.schema_arrow, name)) for name in fields]
    if not all(columns):  # an empty batch tells the caller which columns exist
        yield 0, pa.RecordBatch.from_pylist([], schema=table.schema_arrow)
        return
    size = sum(table.metadata.row_group(group).total_byte_size for group in groups)
    rows = sum(table.metadata.row_group(group).num_rows for group in groups)
    at_once = min(BATCH_ROWS, max(1, rows * BATCH_BYTES // max(size, 1)))
    first = 0
    for batch in table.iter_batches(at_once, row_groups=groups, columns=columns, use_threads=False):
        yield first, batch
        first += len(batch)


def parts(stream: BufferedReader, part_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield runs of row groups of about `part_bytes` each: first group, group after the last, rows before, bytes."""
    metadata = _opened(stream).metadata
    start, rows_before, rows, size = 0, 0, 0, 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if size >= part_bytes or i + 1 == metadata.num_row_groups:
            yield start, i + 1, rows_before, size
            start, rows_before, size = i + 1, rows, 0


def _opened(stream) -> pq.ParquetFile:  # type: ignore[no-untyped-def]
    """Open with small reads and without read-ahead, so that no column of a row group is held whole."""
    return pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
