"""Read bytes from paths and fsspec URIs, write files atomically, and encode canonical JSON.

Canonical JSON is one text for one value. A sealed file is a JSON object with the field `sha256`: the hash of the object
without it, as `canonical_json` encodes it. It shows damage, wherever that is. It is no signature: whoever changes a
file on purpose can seal it again.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io.object_store import (
    object_names,
    protocol_of,
    read_object,
    read_object_ranges,
    write_object,
)

if TYPE_CHECKING:  # what reads settings or a run's files need not wait for numpy
    import numpy as np
    from numpy.typing import NDArray


# Encode JSON canonically, and seal it.

SEAL = "sha256"
"""The field of a sealed object."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: object, indent: int | None = None) -> bytes:
    """Encode JSON with sorted keys and the shortest digits that round-trip each number."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return (text + "\n").encode("utf-8")


def sealed_json(values: Mapping[str, Any]) -> bytes:
    """Encode `values` as the text of a sealed file."""
    return canonical_json({**values, SEAL: _seal(values)}, indent=1)


def seal_holds(values: Mapping[str, Any]) -> bool | None:
    """Return whether the seal of a parsed object is that of its content; None if it has none, as one that was written
    before files were sealed."""
    if SEAL in values:
        try:
            return bool(values[SEAL] == _seal(values))
        except (ValueError, RecursionError):  # infinity, half a character, brackets too deep: never written
            return False
    # a seal whose name was changed is no missing one
    is_renamed = any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in values.values())
    return False if is_renamed else None


def _seal(values: Mapping[str, Any]) -> str:
    content = {name: value for name, value in values.items() if name != SEAL}
    return hashlib.sha256(canonical_json(content)).hexdigest()


# Read and write local files and objects of stores.

_PARTIAL = ".partial"
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EIO}  # EIO: the disk has lost it
_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOTDIR}


def is_uri(path: str) -> bool:
    """Return whether `path` is for fsspec. Raises UserError for an unsupported kind of URI (object_store.PROTOCOLS)."""
    return bool(protocol_of(path))


def join(folder: str | os.PathLike[str], file: str) -> str:
    """Return the path or URI of `file` in `folder`."""
    folder = os.fspath(folder)
    return f"{folder.rstrip('/')}/{file}" if is_uri(folder) else os.path.join(folder, file)


def special_file(path: str | os.PathLike[str]) -> str:
    """Return what a local path names if it is neither a file nor a folder, as "a device"; else ""."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "")


def read_bytes(path: str) -> bytes:
    """Read the whole file. Raises FileNotFoundError, or UserError if it exists but cannot be read, or never ends."""
    if not is_uri(path) and (kind := special_file(path)):
        raise UserError(f"is {kind}", where=path, expected="a file")
    try:
        return read_object(path) if is_uri(path) else Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=path) from None


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Compute the SHA-256 of a local file, as 64 hexadecimal digits. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def exists(path: str) -> bool:
    """Return whether the file exists."""
    if not is_uri(path):
        return Path(path).is_file()
    folder, _, name = path.rpartition("/")
    return name in object_names(folder)


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> Iterator["NDArray[np.uint8]"]:
    """Read the bytes of each (path, offset, size), in order; fewer if a file ends early. Local files one by one, remote
    ones (all of one store) in concurrent requests.

    Raises UserError; its subclass DamagedError if a file is missing. Local files are read, not mapped: a mapped file
    that shrinks kills the process, a read returns less."""
    if not ranges or not is_uri(ranges[0][0]):
        yield from (_read_local(*one) for one in ranges)
        return
    import numpy as np

    for part in read_object_ranges(ranges):
        yield np.frombuffer(bytearray(part), np.uint8)


def _read_local(path: str, offset: int, size: int) -> "NDArray[np.uint8]":
    import numpy as np

    try:
        file = os.open(path, os.O_RDONLY)
        try:
            # a size may be wrong: never read past the end of the file
            size = max(0, min(size, os.fstat(file).st_size - offset))
            data, filled = np.empty(size, np.uint8), 0
            while filled < size:
                count = os.preadv(file, [data[filled:].data], offset + filled)
                if not count:
                    break
                filled += count
        finally:
            os.close(file)
    except OSError as error:
        kind = DamagedError if error.errno in _GONE else UserError
        raise kind(f"cannot be read: {error.strerror or error}", where=path) from None
    return data[:filled]


@contextmanager
def writing(where: str | os.PathLike[str]) -> Iterator[None]:
    """Convert errors while `where` is written into one line that names it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _PLACE:
            raise
        raise UserError(
            f"cannot be written: {error.strerror}",
            where=where,
            remedy="free some space or choose another folder, then rerun the same command to resume",
        ) from error


def check_writable(folder: str) -> None:
    """Raise UserError where a local folder, or the nearest one above it that is there, may not be written: before hours
    of work, not after. Another process may still fill the disk."""
    if is_uri(folder):
        return
    here = Path(os.path.abspath(os.path.expanduser(folder)))
    there = next(path for path in (here, *here.parents) if path.exists())
    if not there.is_dir():
        raise UserError("cannot be written: Not a directory", where=there, expected="a folder to write into")
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise UserError(
            "cannot be written: Read-only file system", where=there, remedy="choose another folder"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError("may not be written by this user", where=there, remedy="choose another folder")


def open_to_write(path: str | os.PathLike[str], mode: str) -> Any:
    """Open a local file like `open`, but never through a symbolic link: whoever may write into a folder could make us
    overwrite any file of our user by one. Raises UserError for a link, OSError."""
    return open(path, mode, opener=open_unlinked, encoding=None if "b" in mode else "utf-8")


def open_unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """Open a local file like `os.open`, but never through a symbolic link. Raises UserError for a link, OSError."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise linked(path) from None


def check_is_new(folder: Path) -> None:
    """Raise UserError if `folder` is there with something in it, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            "exists already", where=folder, expected="a new folder", remedy="name another or remove it"
        )


def own_folder(path: Path, *, parents: bool = False) -> Path:
    """Return the folder, created if it is missing. Raises UserError if its name is a symbolic link, OSError."""
    if path.is_symlink():
        raise linked(path)
    path.mkdir(parents=parents, exist_ok=True)
    return path


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if one of these files or folders in `folder`, which may be missing, is a symbolic link."""
    for name in names:
        if (folder / name).is_symlink():
            raise linked(folder / name)


def linked(path: str | os.PathLike[str]) -> UserError:
    """Return the error for a symbolic link where a file or folder of ours has to be."""
    return UserError(
        "is a symbolic link, through which nothing is written",
        where=path,
        remedy="put in its place what it leads to, or remove it",
    )


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a local file that gets its name when the block ends without error, its bytes then synced to disk. If two
    processes write the same file, the later one replaces the earlier one's. Raises UserError if the disk is full or
    not writable."""
    final = Path(path)
    partial = partial_name(final)
    with writing(final):
        try:
            with open_to_write(partial, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync(final.parent)


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a local folder that gets its name when the block ends without error. If another process created the
    same one meanwhile, that one stays: someone may be reading it."""
    final = Path(path)
    with writing(final), temporary_folder(final) as partial:
        yield partial
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        try:
            partial.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        sync(final.parent)


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Create a local folder, named after `beside` and next to it, that is removed when the block ends."""
    partial = partial_name(beside)
    with writing(partial):
        partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def partial_name(final: Path) -> Path:
    """Return a name next to `final` that no other writer uses, on this machine or another that sees the folder."""
    return final.with_name(f".{final.name}.{secrets.token_hex(8)}{_PARTIAL}")


def write_whole(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write a local file through `whole_file`, or an object of a store."""
    if is_uri(os.fspath(path)):
        write_object(os.fspath(path), data if isinstance(data, bytes) else b"".join(data))
        return
    with whole_file(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def write_once(path: str | os.PathLike[str], data: bytes) -> bytes:
    """Write a local file unless it exists; return its contents, whichever of several writers was first."""
    final = Path(path)
    if not final.is_file():
        partial = partial_name(final)
        try:
            write_whole(partial, data)
            try:
                os.link(partial, final)  # fails if the file exists, on network folders as well
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                os.replace(partial, final)
        finally:
            partial.unlink(missing_ok=True)
    return final.read_bytes()


def remove_partial_files(folder: str | os.PathLike[str]) -> None:
    """Remove what killed writers left in a local folder; object stores keep no partial objects."""
    if is_uri(os.fspath(folder)):
        return
    for path in Path(folder).glob(f".*{_PARTIAL}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file's bytes, or the names in a folder, to disk so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
