"""Read the rows of an Arrow file in batches: the stream format, used by Hugging Face `datasets`, or the file format."""

from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader

import pyarrow as pa

from data_pipeline.errors import UserError
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
