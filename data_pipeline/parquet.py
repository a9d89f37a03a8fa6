"""A Parquet file in, its records out, one batch of rows at a time; row groups are the units that workers share.

Apart from sources.py, so that only who reads Parquet imports pyarrow.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from data_pipeline.bytestream import open_bytes
from data_pipeline.errors import UserError

BATCH_ROWS = 1024


@contextmanager
def _open(uri: str, compression: str) -> Iterator[pq.ParquetFile]:
    with open_bytes(uri, compression) as stream, tempfile.TemporaryFile() as spool:
        if compression:  # the footer is read first, and a compressed stream cannot seek
            shutil.copyfileobj(stream, spool)
            spool.seek(0)
        try:
            yield pq.ParquetFile(spool if compression else stream)
        except pa.ArrowInvalid as error:
            raise UserError(
                f"not a whole Parquet file: {str(error).splitlines()[0]}",
                where=uri,
                remedy="copy or make it again",
            ) from error


def units(uri: str, unit_bytes: int) -> list[tuple[int, int, int, int]]:
    """Runs of row groups of about `unit_bytes` each: first group, group after the last, rows before, bytes."""
    with _open(uri, "") as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    found, start, rows_before, rows, size = [], 0, 0, 0, 0
    for i, group in enumerate(groups, 1):
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if size >= unit_bytes or i == len(groups):
            found.append((start, i, rows_before, size))
            start, rows_before, size = i, rows, 0
    return found


def records(
    uri: str, compression: str, start: int, stop: int, fields: list[str]
) -> Iterator[tuple[bytes | None, ...]]:
    """The columns `fields` of row groups `start`..`stop` - 1 (`stop` -1: the last), a tuple of UTF-8 bytes a row;
    None where a value is missing. The first field is text, the others may be integers."""
    with _open(uri, compression) as file:
        for name in fields:
            _check_column(file.schema_arrow, name, uri, text=name == fields[0])
        groups = range(start, file.metadata.num_row_groups if stop < 0 else stop)
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=fields):
            # As binary: pyarrow would raise at text that is not UTF-8. A dictionary must become text first.
            columns = [batch.column(name).cast(pa.large_string()).cast(pa.large_binary()) for name in fields]
            yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _check_column(schema: pa.Schema, name: str, uri: str, text: bool) -> None:
    if name not in schema.names:
        raise UserError(
            f"there is no column {name!r}",
            where=uri,
            expected=f"one of {', '.join(schema.names)}",
            remedy="set data.text_field and data.id_field",
        )
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not is_text and (text or not pa.types.is_integer(kind)):
        raise UserError(
            f"column {name!r} holds {kind}",
            where=uri,
            expected="text",
            remedy="set data.text_field or data.id_field",
        )
