"""Tell the time by the clock that dates the files of a folder, which need not be this machine's."""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path


def time_in(folder: Path) -> float:
    """Return what time it is by the clock that dates the files of `folder`, in seconds since 1970: the date of a file
    that is created there and removed. On a network folder that is its server's clock, however far this machine's is
    from it. Where the folder takes no files: this machine's."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".time-", dir=folder)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):  # the folder is gone
            os.unlink(name)
