"""Read the records of a part of a Parquet or Arrow file in batches of rows: number or id field, and text.

Separate from sources/read.py, so that pyarrow is imported only to read tables.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.errors import MAX_NAME, UserError, clipped
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import decode, decoded
from data_pipeline.sources.formats import arrow, parquet
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import PASSAGE_BYTES, Record, SourceFile

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
        batches = parquet.batches if file.format == "parquet" else arrow.batches
        found = _columns(batches(file, stream, fields, stack), fields, file.uri)
        for first, columns in damaged_named(found, file.uri):
            for number, text, *ids in _rows(columns, file.before + first + 1):
                if ids and ids[0] is None:
                    error = UserError(
                        f"row {number} has no {settings.id_field!r}",
                        where=file.uri,
                        remedy="set data.id_field",
                    )
                    counts.skip_or_raise(error, settings)
                    continue
                name = decode(bytes(ids[0]), counts) if ids else number
                if text is None or len(text) <= PASSAGE_BYTES:
                    yield name, decode(bytes(text or b""), counts), ()
                else:
                    passages = decoded(_slices(text), counts)
                    yield name, next(passages), passages


def _columns(
    batches: Iterator[tuple[int, pa.RecordBatch]], fields: list[str], uri: str
) -> Iterator[tuple[int, list[pa.Array]]]:
    for first, batch in batches:
        columns = [arrow.column_of(batch, name, uri) for name in fields]
        for name, column in zip(fields, columns, strict=True):
            _check_column(column, name, uri, text=name == fields[0])
        yield first, [_as_bytes(column) for column in columns]


def parquet_parts(file: SourceFile, part_bytes: int) -> list[tuple[int, int, int, int]]:
    """Return the list of `parquet.parts`. Raises UserError for a damaged file."""
    with open_bytes(file.uri, "") as stream:
        return list(damaged_named(parquet.parts(stream, part_bytes), file.uri))


def damaged_named(batches: Iterator, uri: str) -> Iterator:
    """Yield from `batches`, turning pyarrow's errors into one-line UserErrors that name the file."""
    try:
        yield from batches
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"not a whole table: {reason}", where=uri, remedy="copy or make it again") from error


def _rows(columns: list[pa.Array], first: int) -> Iterator[tuple]:
    """Yield (number, text, id) of every row, as bytes; long texts as views of the batch's memory."""
    text = columns[0]
    rows = max(1, len(text) * SLICE_BYTES // max(text.nbytes, 1))
    for start in range(0, len(text), rows):
        parts = [column.slice(start, rows) for column in columns]
        longest = pc.max(pc.binary_length(parts[0])).as_py() or 0
        values: Iterable = parts[0].to_pylist() if longest <= PASSAGE_BYTES else _memory(parts[0])
        others = [part.to_pylist() for part in parts[1:]]
        numbers = range(first + start, first + start + len(parts[0]))
        yield from zip(numbers, values, *others, strict=True)


def _memory(column: pa.Array) -> Iterator[memoryview | None]:
    """Yield views of the values in place: a pyarrow scalar would be a copy."""
    wide = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    valid = column.is_valid().to_pylist()
    for here, (start, stop) in zip(valid, pairwise(ends.tolist()), strict=True):
        yield memoryview(data)[start:stop] if here else None


def _slices(text: memoryview) -> Iterator[bytes]:
    return (bytes(text[at : at + PASSAGE_BYTES]) for at in range(0, len(text), PASSAGE_BYTES))


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
