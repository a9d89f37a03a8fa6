"""Write lines and small files of a run folder so that nobody reads half of one.

Without fsync, unlike data_pipeline/io/files.py: what is written here, every log step and more often, may be lost with
the machine, and must not make a step wait for the disk. All raise OSError where the folder is full or gone.
"""

import errno
import os
from pathlib import Path


def append(path: Path, lines: bytes) -> None:
    """Appends whole lines, or nothing of them. What a kill left of an earlier line is ended before: it takes none of
    these with it."""
    with path.open("ab+", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        if before:
            file.seek(before - 1)
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        written = 0
        try:
            written = file.write(lines) or 0
        finally:
            if written < len(lines):
                file.truncate(before)
        if written < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def replace(path: Path, text: str) -> None:
    """Puts `text` in place of what the file holds, at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
