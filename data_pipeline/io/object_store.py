"""Read and write whole objects of object stores through fsspec, and retry what fails for a moment.

One layer retries each request: the client of the store, where it does so itself, else `with_retries`.
An object appears under its name only when all of its bytes are there: these stores guarantee it, so only they are
written to. Credentials and endpoints come from where fsspec's packages look for them (AWS_ENDPOINT_URL, ...).
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from data_pipeline.errors import DamagedError, UserError

STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss")
"""Protocols that shards are written to."""
# fsspec also knows protocols that read other files, run code or follow references; nothing here needs them.
PROTOCOLS = (
    *("file", "local", "memory", "http", "https", "ftp", "sftp", "hf", "hdfs", "webhdfs"),
    *STORES,
)
"""Protocols that are read."""
RETRYING = {"file", "local", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Protocols whose clients retry by themselves, as their own settings say (AWS_MAX_ATTEMPTS, ...), or need not."""
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each retry of what fails with another protocol."""

_LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
_TRANSIENT = {"HTTPClientError", "ConnectionError", "ClientConnectionError", "ClientPayloadError"}
"""Class names of botocore and aiohttp, which need not be installed."""

_PROTOCOL = re.compile(r"([A-Za-z][\w+.-]*)://")
_CHAIN = re.compile(r"::|^pipe:", re.IGNORECASE)

Result = TypeVar("Result")


def protocol_of(path: str) -> str:
    """Return the protocol of a URI; empty: a local path. Every path and URI from outside is checked here. Raises
    UserError for a protocol that is not in PROTOCOLS, a chain (`a::b`) and a command (`pipe:`), before fsspec or
    anything else acts on it."""
    found = _PROTOCOL.match(path)
    if _CHAIN.search(path) or (found and found[1] not in PROTOCOLS):
        raise UserError(
            "this kind of URI is not read",
            where=path,
            expected=f"a local path, or one of {', '.join(PROTOCOLS)}",
        )
    return found[1] if found else ""


def filesystem(uri: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URI, and the path within it (absolute, for a local one). Raises
    UserError for an unsupported kind of URI."""
    if not protocol_of(uri):
        uri = os.path.abspath(os.path.expanduser(uri))
    import fsspec

    try:
        return fsspec.core.url_to_fs(uri)
    except Exception as error:  # an unknown protocol, a missing package, credentials that are none
        raise UserError(f"cannot be opened: {error or type(error).__name__}", where=uri) from error


def read_object(uri: str) -> bytes:
    """Read the whole object. Raises FileNotFoundError, or UserError if it cannot be read."""
    return _tried(uri, "read", lambda store, path: store.cat_file(path))


def read_object_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Read the bytes of each (uri, offset, size), all of one store, in concurrent requests. Raises UserError."""
    found: list[Any] = [None] * len(ranges)
    left = list(range(len(ranges)))
    store, _ = filesystem(ranges[0][0])

    def ask() -> None:
        wanted = [ranges[i] for i in left]
        paths = [store._strip_protocol(uri) for uri, _, _ in wanted]
        ends = [offset + size for _, offset, size in wanted]
        parts = store.cat_ranges(paths, [offset for _, offset, _ in wanted], ends, on_error="return")
        for i, part in zip(left, parts, strict=True):
            found[i] = part
        left[:] = [i for i in left if is_transient(found[i])]
        if left:
            raise found[left[0]]

    try:
        with_retries(store, ask)
    except OSError as error:
        raise _cannot(ranges[left[0]][0], "read", error) from error
    for (uri, _, _), part in zip(ranges, found, strict=True):
        if isinstance(part, BaseException):
            raise _cannot(uri, "read", part)
    return found


def write_object(uri: str, data: bytes) -> None:
    """Write a whole object. Raises UserError."""
    writable(uri)
    _tried(uri, "written", lambda store, path: store.pipe_file(path, data))


def upload(file: Path, uri: str) -> None:
    """Copy a local file to a whole object, and check its size there. Raises UserError."""
    writable(uri)

    def sent(store: Any, path: str) -> None:
        store.put_file(os.fspath(file), path)
        store.invalidate_cache()
        if (size := store.info(path)["size"]) != file.stat().st_size:
            raise OSError(f"{size} of {file.stat().st_size} bytes arrived")

    _tried(uri, "written", sent)


def download(uri: str, file: Path) -> None:
    """Copy an object to a new local file. Raises FileNotFoundError, or UserError."""
    _tried(uri, "read", lambda store, path: store.get_file(path, os.fspath(file)))


def object_names(folder: str) -> list[str]:
    """List the names in a folder; empty if it does not exist. Raises UserError."""

    def listed(store: Any, path: str) -> list[str]:
        store.invalidate_cache()
        return [name.rstrip("/").rpartition("/")[2] for name in store.ls(path, detail=False)]

    try:
        return _tried(folder, "read", listed)
    except FileNotFoundError:
        return []


def remove_object(uri: str) -> None:
    """Remove an object, if it exists. Raises UserError."""
    try:
        _tried(uri, "removed", lambda store, path: store.rm_file(path))
    except FileNotFoundError:
        return


def writable(uri: str) -> None:
    """Raise UserError unless the URI is one of an object store."""
    if uri.partition("://")[0] not in STORES:
        raise UserError(
            "this kind of URI is not written to",
            where=uri,
            expected=f"a folder, or one of {', '.join(STORES)}",
        )


def is_transient(error: object) -> bool:
    """Return whether a retry may help: the connection broke, or the server was busy."""
    if not isinstance(error, Exception) or isinstance(error, _LASTING):
        return False
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status >= 500 or status in (408, 429)
    return isinstance(error, OSError) or bool(_TRANSIENT & {c.__name__ for c in type(error).__mro__})


def with_retries(store: Any, ask: Callable[[], Result]) -> Result:
    """Return the result of `ask`, which asks this file system of fsspec. Unless its client retries by itself, `ask` is
    called again after each of DELAYS on transient errors. Raises OSError or UserError: the clients have their own
    errors."""
    protocols = {store.protocol} if isinstance(store.protocol, str) else {*store.protocol}
    delays = [] if protocols & RETRYING else [*DELAYS]
    while True:
        try:
            return ask()
        except UserError:
            raise
        except Exception as error:
            cause = _cause(error)
            if not delays or not is_transient(cause):
                if isinstance(cause, OSError):
                    raise cause from None
                raise OSError(" ".join(str(cause).split()) or type(cause).__name__) from cause
            time.sleep(delays.pop(0))


def _cause(error: Exception) -> Exception:
    """Return the underlying error: fsspec's web files raise "not found" for any answer of the server, and for none,
    when opened, and chain the actual error."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    answered = getattr(cause, "status", 404) not in (404, 410)
    return cause if answered or is_transient(cause) else error


def _tried(uri: str, what: str, action: Callable[[Any, str], Result]) -> Result:
    store, path = filesystem(uri)
    try:
        return with_retries(store, lambda: action(store, path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _cannot(uri, what, error) from error


def _cannot(uri: str, what: str, error: BaseException) -> UserError:
    kind = DamagedError if isinstance(error, FileNotFoundError) else UserError
    return kind(f"cannot be {what}: {error or type(error).__name__}", where=uri)
