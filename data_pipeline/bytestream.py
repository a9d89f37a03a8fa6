"""A path or URI in, its decompressed bytes out: local files and object stores, plain, gzip or Zstandard.

A stream that ends before its compressed data does is an error that names the file, never a short text.
"""

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import fsspec
import zstandard
from fsspec.implementations.local import LocalFileSystem

from data_pipeline.errors import UserError

# fsspec also knows protocols that read other files, run code or follow references; text needs none of them.
PROTOCOLS = (
    *("file", "local", "memory", "http", "https", "ftp", "sftp", "hf", "hdfs", "webhdfs"),
    *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss"),
)
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
BUFFER = 1 << 20
LARGEST_WINDOW = 1 << 31
"""Longest Zstandard window accepted (`zstd --long=31`); decompressing takes as much memory as its file asks for."""

_PROTOCOL = re.compile(r"([A-Za-z][\w+.-]*)://")
_MAGIC = {  # a Zstandard file may begin with a skippable frame, as pzstd's do
    re.compile(rb"\x1f\x8b"): "gzip",
    re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"): "zstd",
}
_ZSTD_INPUT = 1 << 14  # a block of 128 KiB may take 4 bytes: 16 KiB of input never makes more than 512 MiB


def filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec file system of `uri` and the path within it (absolute, for a local one)."""
    protocol = _PROTOCOL.match(uri)
    # A chain (`a::b`) or a command (`pipe:`) has to be refused before fsspec, or anyone else, acts on it.
    if "::" in uri or uri.startswith("pipe:") or (protocol and protocol[1] not in PROTOCOLS):
        raise UserError(
            "this kind of URI is not read",
            where=uri,
            expected=f"a local path, or one of {', '.join(PROTOCOLS)}",
            remedy="check data.sources",
        )
    if not protocol:
        uri = os.path.abspath(os.path.expanduser(uri))
    try:
        return fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"cannot be opened: {error}", where=uri, remedy="check data.sources") from error


def is_local(fs: Any) -> bool:
    """Whether `fs` is this machine's own file system, where reading at any offset is cheap."""
    return isinstance(fs, LocalFileSystem)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns what can go wrong while `where` is read into one line that names it."""
    try:
        yield
    except EOFError as error:
        raise UserError(
            "the compressed file is cut off", where=where, remedy="copy or make it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise UserError(
            f"the compressed file is damaged: {error}", where=where, remedy="copy or make it again"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UserError(f"cannot be read: {reason}", where=where, remedy="check data.sources") from error


@contextmanager
def open_bytes(uri: str, compression: str) -> Iterator[io.BufferedReader]:
    """The bytes of `uri`, decompressed (`compression`: "", "gzip" or "zstd"), as a buffered stream.
    Seekable if the file is and there is nothing to decompress."""
    fs, path = filesystem(uri)
    with fs.open(path, "rb") as opened, io.BufferedReader(opened, BUFFER) as raw:
        head = raw.peek(4)
        found = next((kind for magic, kind in _MAGIC.items() if magic.match(head)), "")
        if head and found != compression:
            kinds = f"is {found or 'not compressed'} where its name says {compression or 'plain'}"
            raise UserError(f"the file {kinds}", where=uri, remedy="give it the right suffix")
        if compression and not head:
            raise EOFError
        if compression == "gzip":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield io.BufferedReader(stream, BUFFER)
        elif compression == "zstd":
            yield io.BufferedReader(_ZstdStream(raw), BUFFER)
        else:
            yield raw


class _ZstdStream(io.RawIOBase):
    """The frames of a Zstandard file, one after another. zstandard's own reader takes a file that is cut off
    for one that ends; this one raises EOFError."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._raw.read(_ZSTD_INPUT)
            if not data:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._ready = memoryview(self._decompress(data))
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        parts = []
        while data:
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            parts.append(self._frame.decompress(data))
            if not self._frame.eof:
                break
            data = self._frame.unused_data
            self._frame = None
        return b"".join(parts)
