"""An Arrow file in, its rows out in batches: the stream format, in which Hugging Face `datasets` saves, and the
file format. And what such a saved folder says about its files.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from typing import Any

import pyarrow as pa

from data_pipeline.errors import UserError
from data_pipeline.formats import SourceFile

DESCRIPTIONS = ("state.json", "dataset_info.json", "dataset_dict.json")
"""Files of a saved data set that describe it, and are no text."""
_FILE_MAGIC = b"ARROW1"


def batches(
    file: SourceFile, stream: BufferedReader, fields: list[str], stack: ExitStack
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The columns `fields` of the unit's batches: rows of the file before a batch, and the batch. Of a file that
    units share, each takes its batches. Memory: a batch; `datasets` writes a thousand rows in one."""
    if stream.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC):
        if file.compression:
            raise UserError(
                "Arrow's file format is read from its end", where=file.uri, remedy="decompress the file"
            )
        reader: Any = pa.ipc.open_file(stream)
        found: Iterator[pa.RecordBatch] = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = pa.ipc.open_stream(stream)
        found = iter(reader)
    first = 0
    for number, batch in enumerate(found):
        if file.owns(number):
            yield first, batch
        first += len(batch)
