"""Read the small files of a model folder, and compare all with the hashes that an export left there.

A folder may come from anywhere: its JSON is read with a limit on its size and depth, and only from files.
"""

import json
import re
import reprlib
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256

NOTE, CARD = "maskmill.json", "README.md"
"""In an export: what it is, with the hashes of its files; and its card, which people may edit."""
CHANGED = "is missing or its bytes changed since the export"
MAX_BYTES, MAX_DEPTH = 1 << 29, 100
"""Largest and deepest JSON file that is read: the largest published tokenizer.json has some 35 MB."""
SMALL = 1 << 20
"""Bytes from which on a hash is kept while the file has the same time and size."""


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`, at most MAX_BYTES long and MAX_DEPTH deep. Raises UserError for anything else."""
    expected = "a JSON object"
    try:
        if not path.is_file():  # a pipe or a device would be read for ever
            raise UserError(
                "is missing" if not path.exists() else "is no file", where=path, expected=expected
            )
        if (size := path.stat().st_size) > MAX_BYTES:
            raise UserError(
                f"has {size:,} bytes", where=path, expected=f"{expected} of at most {MAX_BYTES:,}"
            )
        found = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"cannot be read: {reason}", where=path, expected=expected) from error
    if not isinstance(found, dict):
        raise UserError(f"cannot be read: {reprlib.repr(found)}", where=path, expected=expected)
    if _depth(found) > MAX_DEPTH:
        raise UserError(f"is nested more than {MAX_DEPTH} deep", where=path, expected=expected)
    return found


def _depth(found: object) -> int:
    """Return how many tables and lists are inside one another, or MAX_DEPTH + 1 where there are more."""
    level: list[Any] = [found]
    depth = 0
    while level and depth <= MAX_DEPTH:
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [one for values in inner for one in values if isinstance(one, dict | list)]
        depth += 1
    return depth


def check_hashes(folder: Path, weights: bool = True) -> None:
    """Compare the files of an export with the hashes in its maskmill.json; the card may be edited. Nothing is checked
    where there is none. Without `weights`, only of the small files. Raises UserError for a file that differs."""
    note = folder / NOTE
    if not note.exists() and not note.is_symlink():
        return
    hashes = noted_hashes(read_json(note), note)
    wanted = {name: value for name, value in hashes.items() if weights or not name.endswith(".safetensors")}
    for name in changed(folder, wanted):
        if name != CARD:
            raise UserError(
                CHANGED,
                where=folder / name,
                remedy=f"export again, or remove {NOTE} if the change is your own",
            )


def noted_hashes(fields: Mapping[str, Any], where: Path) -> dict[str, str]:
    """Return the hashes by file in what was read of a maskmill.json. Raises UserError unless they are of files beside
    it."""
    hashes = fields.get("sha256")
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise UserError("malformed", where=where, expected="the SHA-256 of each file", remedy="export again")
    for name in hashes:
        if not is_plain(name):
            raise UserError(f"names {name!r}, which is no part of an export", where=where)
    return hashes


def is_plain(name: object) -> bool:
    """Return whether this is the name of a file, not the path of one in another folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)


def changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return the names of files that are missing or whose hash differs."""
    return [name for name, known in hashes.items() if hash_of(folder / name) != known]


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty where there is none."""
    if not path.is_file():
        return ""
    about = path.stat()
    if about.st_size < SMALL:  # two changes of a small file may have one time
        return file_sha256(path)
    return file_hash(path, about.st_size, about.st_mtime_ns)


@cache
def file_hash(path: Path, size: int, changed_at: int) -> str:
    """Return the SHA-256 of a file, computed once while it is unchanged."""
    return file_sha256(path)


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of the hashes of a folder's *.safetensors, in the order of their names; empty where it has
    none."""
    files = [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]
    return sha256("".join(map(hash_of, files)).encode()).hexdigest() if files else ""
