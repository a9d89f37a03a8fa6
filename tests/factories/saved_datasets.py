"""Folders as Hugging Face `datasets` leaves them, written with pyarrow."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

STATE = {
    "_fingerprint": "x",
    "_format_columns": None,
    "_format_kwargs": {},
    "_format_type": None,
    "_output_all_columns": False,
    "_split": "train",
}


def saved(folder: Path, rows: dict[str, list], files: int = 2, batch: int = 2, **state: Any) -> Path:
    """A folder as `datasets.Dataset.save_to_disk` leaves it."""
    folder.mkdir(parents=True)
    table = pa.table(rows)
    each = -(-len(table) // files)
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    for number, name in enumerate(names):
        write_stream(folder / name, table.slice(number * each, each), batch)
    listed = {"_data_files": [{"filename": name} for name in names], **STATE, **state}
    (folder / "state.json").write_text(json.dumps(listed, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string"}}}))
    return folder


def saved_dict(folder: Path, splits: dict[str, list[str]]) -> Path:
    """A folder as `datasets.DatasetDict.save_to_disk` leaves it, with the texts of each split."""
    for split, texts in splits.items():
        saved(folder / split, {"text": texts}, files=1)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def with_caches(folder: Path) -> Path:
    """What `.map()` and `.sort()` leave beside a saved data set: changed rows, and the numbers of rows."""
    write_stream(folder / "cache-1ae089d5583eea56.arrow", pa.table({"text": ["cached"]}))
    write_stream(folder / "cache-345c2397637937f3.arrow", pa.table({"indices": pa.array([0], pa.uint64())}))
    write_stream(folder / "indices-27cb8c05.arrow", pa.table({"indices": pa.array([0], pa.uint64())}))
    return folder


def write_stream(path: Path, table: pa.Table, batch: int = 1000) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
