"""Say where torch.compile and Triton keep what they compile, where their own choice would be lost or raise.

torch's Inductor takes a folder of the user's name in the folder for temporary files, Triton one below HOME. In a
container both end with it, so that every start compiles anew; and torch 2.11's Inductor raises KeyError where the
container runs as a number that /etc/passwd lacks. So both get a folder beside numba's (NUMBA_CACHE_DIR, which the
images set), or one of the user's own. On any other machine their own choices stay.

Imports no torch: the environment has to be there before it, in every rank.
"""

import getpass
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from data_pipeline.io.caches import user_caches

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""The variables that name the caches, and the folder of each."""


def compile_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of CACHES to add to `environment`: none that it has, and none where their own choice
    will do. Creates nothing."""
    if not environment.get("NUMBA_CACHE_DIR") and _has_name():
        return {}
    folder = next((folder for folder in _places(environment) if _takes_files(folder)), None)
    if folder is None:
        return {}
    return {name: str(folder / own) for name, own in CACHES.items() if not environment.get(name)}


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the caches may be, the best first: as data_pipeline/compiled/jit.py has it, but for the modules'
    own folder, and with one that is sure to take files."""
    if named := environment.get("NUMBA_CACHE_DIR"):
        yield Path(named).absolute().parent
    yield from user_caches(environment)
    yield Path(tempfile.gettempdir()) / f"maskmill-{os.getuid()}"


def _takes_files(folder: Path) -> bool:
    """Return whether this process may write into the folder, which may have yet to be created. One of somebody else
    in the folder for temporary files would be code of theirs: it is refused."""
    if (
        folder.parent == Path(tempfile.gettempdir())
        and folder.exists()
        and folder.stat().st_uid != os.getuid()
    ):
        return False
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _has_name() -> bool:
    """Return whether this process's user has a name, as getpass finds it for Inductor."""
    try:
        return bool(getpass.getuser())
    except (KeyError, OSError):
        return False
