"""Read the rows of an Arrow file in batches: the stream format, used by Hugging Face `datasets`, or the file format."""

from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader

import pyarrow as pa
import pyarrow.compute as pc

from data_pipeline.errors import UserError, listed
from data_pipeline.sources.source_file import SourceFile

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def batches(
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
