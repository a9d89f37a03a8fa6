"""Choose folders for the user's caches, which nobody else may write to: of counts, and of compiled code.

Caches of compiled code hold pickles and libraries, which are executed as they are loaded: whoever may write into one,
or put another folder in its place, runs code as this user. `not_private` is the one rule for numba's, Inductor's and
Triton's.
"""

import getpass
import grp
import hashlib
import os
import pwd
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Say where caches of this user may lie, and name the source code that decides what is in them.


def user_caches(environment: Mapping[str, str]) -> list[Path]:
    """List the folders in which `environment` lets Maskmill keep caches for its user, the best first: below
    XDG_CACHE_HOME, below HOME. Empty where it names neither. Creates nothing."""
    cache, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    named = [Path(cache)] if cache else []
    return [folder / "maskmill" for folder in (*named, *([Path(home) / ".cache"] if home else []))]


class Chosen(NamedTuple):
    """A folder for compiled code, and why a better one is not taken; empty if there is no better one."""

    folder: Path
    why: str


def choose_cache(places: Iterable[Path]) -> Chosen | None:
    """Return the first of these folders that takes files and that nobody else may write to; None if there is none. Each
    may have yet to be created. Creates nothing."""
    why = ""
    for folder in places:
        if not _takes_files(folder):
            continue
        reason = not_private(folder)
        if not reason:
            return Chosen(folder, why)
        why = why or f"not in {folder}: {reason}"
    return None


def own_temporary_folder() -> Path:
    """Return the folder for this user's caches where there is no other; it may have yet to be created, and may turn
    out to be somebody else's."""
    return Path(tempfile.gettempdir()) / f"maskmill-{os.getuid()}"


def make_private(folder: Path) -> None:
    """Create the folder, if it is missing, for this user alone. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def not_private(folder: Path) -> str:
    """Return why others could put files into `folder`, which may have yet to be created; empty if they cannot.

    It, and what lies directly in it, has to be this user's, and writable for nobody else. The folders above have to be
    this user's or root's; others may write to them only if they cannot rename what is in them, as in /tmp."""
    try:
        real = Path(os.path.realpath(folder))
        for place in (real, *real.parents):
            with suppress(FileNotFoundError, NotADirectoryError):
                reason = _loose(place, place.lstat(), is_above=place != real)
                if reason:
                    return reason
        inside = list(real.iterdir()) if real.is_dir() else []
        return next(filter(None, (_loose(place, place.lstat(), is_above=False) for place in inside)), "")
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"


def _loose(place: Path, found: os.stat_result, *, is_above: bool) -> str:
    """Return why others may change `place`; empty if they may not."""
    if found.st_uid != os.getuid() and not (is_above and found.st_uid == 0):
        return f"{place} belongs to {_user_name(found.st_uid)}"
    others = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
    )
    if stat.S_ISLNK(found.st_mode) or not others or (is_above and found.st_mode & stat.S_ISVTX):
        return ""
    return f"others may write to {place}"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _is_own_group(number: int) -> bool:
    """Return whether the group has no member but this user, as where each user has a group of the same name."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_named_alike = group.gr_name == user.pw_name and user.pw_gid == number
    return is_named_alike and set(group.gr_mem) <= {user.pw_name}


def _takes_files(folder: Path) -> bool:
    """Return whether this process may write into the folder, which may have yet to be created."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def package_folder(module: str) -> Path:
    """Return the folder of the package that the imported module of this name belongs to, at any depth."""
    return Path(str(sys.modules[module.partition(".")[0]].__file__)).parent


def hash_sources(package: Path) -> str:
    """Hash every source file of the folder `package`, subfolders included, as 16 hexadecimal digits.

    All files, because any of them may matter: what was compiled or counted keeps constants of modules that it names
    nowhere. Reading some hundred files takes a few milliseconds."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


# Choose the folders of compiled code where the libraries' own choice would be lost or raise. torch's Inductor takes a
# folder of the user's name in the folder for temporary files, Triton one below HOME. In a container both end with it,
# so that every start compiles anew; and torch 2.11's Inductor raises KeyError where the container runs as a number that
# /etc/passwd lacks. So both get a folder beside numba's (NUMBA_CACHE_DIR, which the images set), or one of the user's
# own. On any other machine their own choices stay, unless others may write there.


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
    """Yield where the caches may be, the best first: as data_pipeline/jit.py has it, but for the modules' own
    folder."""
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
