"""Read the records of a part of a Parquet or Arrow file in batches of rows: number or id field, and text.

An Arrow file is in the stream format, which Hugging Face `datasets` uses, or in the file format; the parts of a file
take different batches. A Parquet file is split among workers by row groups.

pyarrow is imported only here, so only to read tables.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import BufferedReader

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_pipeline.errors import MAX_NAME, UserError, clipped, listed
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts, decode
from data_pipeline.sources.formats import Record, SourceFile, check_length, is_local_file, striped

# Read the rows of an Arrow file in batches, and find the columns of fields.

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def arrow_batches(
    file: SourceFile, stream: BufferedReader, fields: list[str], stack: ExitStack
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the columns `fields` of the part's batches: rows of the file before a batch, and the batch. Parts that
    share a file take different batches. Memory: one batch; `datasets` writes a thousand rows per batch."""
    if stream.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC):
        if file.compression:
            raise UserError(
                "Arrow's file format is read from its end", where=file.uri, remedy="decompress the file"
            )
        reader = pa.ipc.open_file(stream)
        found: Iterator[pa.RecordBatch] = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        found = _stream_batches(_Watched(stream))
    first = 0
    for number, batch in enumerate(found):
        if file.owns(number):
            yield first, batch
        first += len(batch)


def batch_parts(file: SourceFile, _settings: DataSettings, part_bytes: int) -> list[SourceFile]:
    """Share the batches of an Arrow file among parts."""
    return striped(file, part_bytes)


def path_of(schema: pa.Schema, name: str) -> list[str]:
    """Return the columns that lead to the field `name`, from the outside in; empty if there is none. A column of that
    very name wins; else `a.b` is the field b of the struct a. Where a column on the way is of type null, as in a part
    without any value, the path ends with it."""
    fields, path, rest = list(schema), [], name
    while True:
        exact = rest in (field.name for field in fields)
        here, dot, rest = (rest, "", "") if exact else rest.partition(".")
        found = [field for field in fields if field.name == here]
        if len(found) != 1:
            return []
        path.append(here)
        kind = found[0].type
        if not dot or pa.types.is_null(kind):
            return path
        fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def column_of(batch: pa.RecordBatch, name: str, uri: str) -> pa.Array:
    """Return the values of the field `name`; null where a struct on the way is. Raises UserError if there is none, and
    ArrowInvalid for a damaged column."""
    path = path_of(batch.schema, name)
    if not path:
        twice = batch.schema.names.count(name) > 1
        raise UserError(
            f"there {'are two columns' if twice else 'is no column'} {name!r}",
            where=uri,
            expected=f"one of {listed(batch.schema.names)}",
            remedy="set data.text_field and data.id_field",
        )
    column = batch.column(path[0])
    for inner in path[1:]:
        column.validate()
        column = pc.struct_field(column, inner)
    return column


def _stream_batches(stream: "_Watched") -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(stream)
    if stream.tail != _STREAM_END:  # pyarrow accepts a stream that is truncated between two batches
        raise pa.ArrowInvalid("it does not end as the format demands")


class _Watched:
    """A stream for pyarrow that remembers the last bytes read."""

    closed = False

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self.tail = b""

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.tail = data[-8:] if len(data) >= 8 else (self.tail + data)[-8:]
        return data

    def close(self) -> None:
        """Do nothing: the caller that opened the stream closes it."""


# Read the rows of a Parquet file in batches, and split it into runs of row groups.

BATCH_ROWS = 1024
BATCH_BYTES = 16 << 20
"""Target size of a batch in bytes, from the file's average row size: large rows make batches of fewer rows."""


def parquet_batches(
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


def row_group_parts(file: SourceFile, _settings: DataSettings, part_bytes: int) -> list[SourceFile]:
    """Cut a local Parquet file into runs of row groups of about `part_bytes` each. Raises UserError for a damaged
    file."""
    if file.compression or file.size <= part_bytes or not is_local_file(file):
        return [file]
    with open_bytes(file.uri, "") as stream:
        runs = list(damaged_named(_group_runs(stream, part_bytes), file.uri))
    return [replace(file, start=start, stop=stop, before=rows, size=size) for start, stop, rows, size in runs]


def _group_runs(stream: BufferedReader, part_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield first group, group after the last, rows before and bytes of each run."""
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


# Turn the batches of either format into records.

# A few large buffers, soon freed: the default pool would keep them, and keep a worker's memory at its peak.
pa.set_memory_pool(pa.system_memory_pool())

SLICE_BYTES = 8 << 20
"""Rows are converted to Python objects in slices of about this size."""


def table_records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the rows of one part: number (from 1) or id field, and text. Raises UserError for a damaged file, and for a
    column that is missing or of another type."""
    fields = [settings.text_field, *([settings.id_field] if settings.id_field else [])]
    with ExitStack() as stack:
        stream = stack.enter_context(open_bytes(file.uri, file.compression))
        batches = parquet_batches if file.format == "parquet" else arrow_batches
        found = _columns(batches(file, stream, fields, stack), fields, file.uri)
        for first, columns in damaged_named(found, file.uri):
            for number, text, *ids in _rows(columns, file.before + first + 1):
                try:
                    if ids and ids[0] is None:
                        raise UserError(
                            f"row {number} has no {settings.id_field!r}",
                            where=file.uri,
                            remedy="set data.id_field",
                        )
                    check_length(len(text or b""), f"{file.uri}:{number}")
                except UserError as error:
                    counts.skip_or_raise(error, settings)
                    continue
                yield decode(ids[0], counts) if ids else number, decode(text or b"", counts)


def _columns(
    batches: Iterator[tuple[int, pa.RecordBatch]], fields: list[str], uri: str
) -> Iterator[tuple[int, list[pa.Array]]]:
    for first, batch in batches:
        columns = [column_of(batch, name, uri) for name in fields]
        for name, column in zip(fields, columns, strict=True):
            _check_column(column, name, uri, text=name == fields[0])
        yield first, [_as_bytes(column) for column in columns]


def damaged_named(batches: Iterator, uri: str) -> Iterator:
    """Yield from `batches`, turning pyarrow's errors into one-line UserErrors that name the file."""
    try:
        yield from batches
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"not a whole table: {reason}", where=uri, remedy="copy or make it again") from error


def _rows(columns: list[pa.Array], first: int) -> Iterator[tuple]:
    """Yield (number, text, id) of every row, as bytes."""
    text = columns[0]
    rows = max(1, len(text) * SLICE_BYTES // max(text.nbytes, 1))
    for start in range(0, len(text), rows):
        values = [column.slice(start, rows).to_pylist() for column in columns]
        yield from zip(range(first + start, first + start + len(values[0])), *values, strict=True)


def _as_bytes(column: pa.Array) -> pa.Array:
    """Cast a column of text or integers to bytes; casting to text would raise on invalid UTF-8. Raises ArrowInvalid if
    offsets point outside the column, as in a damaged file: pyarrow would follow them."""
    kind = column.type
    if _without_values(column):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_integer(kind):
        column.validate(full=True)
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_dictionary(kind):
        values = _as_bytes(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, values, safe=True)
        column.validate(full=True)
        return column.dictionary_decode()
    if pa.types.is_string_view(kind):
        column.validate()
        column = column.cast(pa.binary_view())
        column.validate(full=True)
        return column.cast(pa.large_binary())
    column.validate()
    column = column.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    column.validate(full=True)
    return column


def _without_values(column: pa.Array) -> bool:
    """Return whether all values are null; a file without any has a column of type null, or of any other."""
    return pa.types.is_null(column.type) or (len(column) > 0 and column.null_count == len(column))


def _check_column(column: pa.Array, name: str, uri: str, text: bool) -> None:
    kind = column.type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not is_text and not _without_values(column) and (text or not pa.types.is_integer(kind)):
        raise UserError(
            f"column {name!r} holds {clipped(str(kind), MAX_NAME)}",
            where=uri,
            expected="text",
            remedy="set data.text_field or data.id_field",
        )
