"""Append lines and replace small files of a run folder so that no reader sees half of one.

Without fsync, unlike data_pipeline/io/files.py: these writes happen every log step or more often. Losing them with the
machine is acceptable; blocking a step on the disk is not. All functions raise OSError if the folder is full or gone,
and UserError for a name that is a symbolic link.
"""

import errno
import os
from pathlib import Path

from data_pipeline.io.files import open_to_write, open_unlinked


def append(path: Path, lines: bytes) -> None:
    """Append whole lines, or nothing. A torn line left by a killed process is ended first, so that it does not merge
    with these."""
    with open(path, "ab+", buffering=0, opener=open_unlinked) as file:
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
    """Replace the content of the file with `text` atomically."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open_to_write(partial, "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
