"""Read the records of a part of a source file: (record, text, more) with the text as it is in the file.

A part may be a range of a larger file: every part finds the records that are its own without reading the others.
A record too long to be held comes in passages: the first is `text`, the others are read from `more`, before the
next record is asked for. Each format has a module, which only those import who read it: pyarrow takes its time.
"""

from collections.abc import Iterator

from data_pipeline.settings import DataSettings
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import Record, SourceFile


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """The records of one part: id field or number (the line on which it begins, or its row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format in ("parquet", "arrow"):
        from data_pipeline.sources.formats.tables import table_records

        return table_records(file, settings, counts)
    if file.format == "wikipedia":
        from data_pipeline.sources.formats.wikipedia import pages

        return pages(file, counts)
    if file.format == "jsonl":
        from data_pipeline.sources.formats.json_lines import json_records

        return json_records(file, settings, counts)
    if file.format == "wikiextractor":
        from data_pipeline.sources.formats.wikiextractor import extracted_pages

        return extracted_pages(file, counts)
    from data_pipeline.sources.formats.plain_text import texts

    return texts(file, settings, counts)
