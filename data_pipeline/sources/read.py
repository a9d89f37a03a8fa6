"""Read the records of a part of a source file as (record, text, more), with the text unchanged.

A part may be a range of a larger file: each part finds its own records without reading the others. A record too long
for memory comes in passages: the first is `text`, the others are read from `more` before the next record is
requested. The module of each format is imported only when needed: pyarrow is slow to import.
"""

from collections.abc import Iterator

from data_pipeline.settings import DataSettings
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import Record, SourceFile


def records(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Read the records of one part: id field or number (first line or table row, from 1) and text.
    Raises UserError, with file and line, for a record that cannot be read."""
    if file.format in ("parquet", "arrow"):
        from data_pipeline.sources.formats.tables import table_records

        return table_records(file, settings, counts)
    if file.format == "wikipedia":
        from data_pipeline.sources.formats.wikipedia import pages

        return pages(file, settings, counts)
    if file.format == "jsonl":
        from data_pipeline.sources.formats.json_lines import json_records

        return json_records(file, settings, counts)
    if file.format == "wikiextractor":
        from data_pipeline.sources.formats.wikiextractor import extracted_pages

        return extracted_pages(file, counts)
    from data_pipeline.sources.formats.plain_text import texts

    return texts(file, settings, counts)
