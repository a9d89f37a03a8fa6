"""Say where torch.compile and Triton keep what they compile, where their own choice would be lost or raise.

torch's Inductor takes a folder of the user's name in the folder for temporary files, Triton one below HOME. In a
container both end with it, so that every start compiles anew; and torch 2.11's Inductor raises KeyError where the
container runs as a number that /etc/passwd lacks. So both get a folder beside numba's (NUMBA_CACHE_DIR, which the
images set), or one of the user's own. On any other machine their own choices stay, unless others may write there:
what is compiled is executed (data_pipeline/io/files.py).

Imports no torch: the environment has to be there before it, in every rank.
"""

import getpass
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from data_pipeline.io.files import choose_cache, not_private, own_temporary_folder, user_caches

CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""The variables that name the caches, and the folder of each."""


def compile_caches(
    environment: Mapping[str, str], say: Callable[[str], None] | None = None
) -> dict[str, str]:
    """Return the variables of CACHES to add to `environment`, or to change in it: none where its own choice, or the
    library's, will do. A choice into which others may write is changed, with a line to `say`. Creates nothing."""
    found: dict[str, str] = {}
    lines: list[str] = []

    def choose(name: str, theirs: Path | None, places: Iterable[Path]) -> None:
        reason = not_private(theirs) if theirs else ""
        if theirs and not reason:
            return
        chosen = choose_cache(places)
        if chosen is not None:
            found[name] = str(chosen.folder)
            why = f"not in {theirs}: {reason}" if reason else chosen.why
            lines.extend([f"compiled code is kept in {chosen.folder}, {why}"] if why else [])

    if numba := environment.get("NUMBA_CACHE_DIR"):
        elsewhere = {key: value for key, value in environment.items() if key != "NUMBA_CACHE_DIR"}
        choose("NUMBA_CACHE_DIR", Path(numba), (folder / "numba" for folder in _places(elsewhere)))
    for name, own in CACHES.items():
        places = _places({**environment, **found})
        choose(name, _own_choice(name, environment), (folder / own for folder in places))
    if lines and say:
        say(lines[0])  # the others have the same reason
    return found


def _own_choice(name: str, environment: Mapping[str, str]) -> Path | None:
    """Return the folder that the environment names, or that the library takes where it is not lost with a container
    and its user has a name; else None."""
    if environment.get(name):
        return Path(environment[name])
    if environment.get("NUMBA_CACHE_DIR") or not _has_name():
        return None
    if name == "TORCHINDUCTOR_CACHE_DIR":
        return Path(tempfile.gettempdir()) / f"torchinductor_{re.sub(_NO_PATH, '_', getpass.getuser())}"
    return Path(environment.get("HOME") or os.path.expanduser("~")) / ".triton" / "cache"


_NO_PATH = r'[\\/:*?"<>|]'
"""What Inductor replaces in a user's name."""


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the caches may be, the best first: as data_pipeline/jit.py has it, but for the modules'
    own folder."""
    if named := environment.get("NUMBA_CACHE_DIR"):
        yield Path(named).absolute().parent
    yield from user_caches(environment)
    yield own_temporary_folder()


def _has_name() -> bool:
    """Return whether this process's user has a name, as getpass finds it for Inductor."""
    try:
        return bool(getpass.getuser())
    except (KeyError, OSError):
        return False
