"""Open a path or URI as decompressed bytes: local files and object stores, plain, gzip, bzip2, xz or Zstandard.

A stream that ends before its compressed data does is an error that names the file, never a short text.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import zstandard
from fsspec.implementations.local import LocalFileSystem

from data_pipeline.errors import UserError
from data_pipeline.io.object_store import filesystem, with_retries

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}
BUFFER = 1 << 20
LARGEST_WINDOW = 1 << 29
"""Maximum Zstandard window, and maximum memory for xz: decompressing takes as much as the file asks for, and a
worker has 1 GiB. `zstd --ultra -22` asks for 2**27; `--long=30` and 31 are refused."""

_MAGIC = {  # a Zstandard file may begin with a skippable frame, as pzstd's do
    re.compile(rb"\x1f\x8b"): "gzip",
    re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"): "zstd",
    re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"): "bzip2",
    re.compile(rb"\xfd7zXZ\x00"): "xz",
}
_MAGIC_BYTES = 10
_INPUT = 1 << 12  # a block of 128 KiB may take 4 bytes: 4 KiB of input never makes more than 128 MiB
_OUTPUT = 1 << 20


def is_local(fs: Any) -> bool:
    """Return whether `fs` is this machine's own file system, where reading at any offset is cheap."""
    return isinstance(fs, LocalFileSystem)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Convert errors while `where` is read into one line that names it."""
    try:
        yield
    except EOFError as error:
        raise UserError(
            "the compressed file is cut off", where=where, remedy="copy or make it again"
        ) from error
    except MemoryError as error:
        raise UserError("asks for more memory than there is", where=where) from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, lzma.LZMAError) as error:
        if "memory" in str(error).lower():
            raise UserError(
                "decompressing takes too much memory",
                where=where,
                expected=f"a window of at most {LARGEST_WINDOW >> 20} MiB",
                remedy="recompress it, for instance with zstd --long=27",
            ) from error
        raise UserError(
            f"the compressed file is damaged: {error}", where=where, remedy="copy or make it again"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UserError(f"cannot be read: {reason}", where=where, remedy="check data.sources") from error


@contextmanager
def open_as_it_is(uri: str) -> Iterator[io.BufferedReader]:
    """Open the raw bytes of `uri`; transient read errors of a remote one are retried. Raises OSError;
    FileNotFoundError if there is none."""
    fs, path = filesystem(uri)
    with _opened(fs, path) as opened, io.BufferedReader(opened, BUFFER) as raw:
        yield raw


@contextmanager
def open_bytes(uri: str, compression: str, start: int = 0, stop: int = -1) -> Iterator[io.BufferedReader]:
    """Open `uri` decompressed (`compression`: "" or a value of COMPRESSIONS), as a buffered stream. Seekable if the
    file is and there is nothing to decompress. `start` and `stop`: of a compressed file, the range of bytes, made of
    whole frames, to read."""
    with open_as_it_is(uri) as raw:
        if start:
            raw.seek(start)
        head = raw.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
        found = next((kind for magic, kind in _MAGIC.items() if magic.match(head)), "")
        if head and found != compression:
            kinds = f"is {found or 'not compressed'} where its name says {compression or 'plain'}"
            raise UserError(f"the file {kinds}", where=uri, remedy="give it the right suffix")
        if compression and not head:
            raise EOFError
        if compression == "gzip":
            with gzip.GzipFile(fileobj=raw) as stream:
                yield io.BufferedReader(stream, BUFFER)
        elif compression:
            most = stop - start if stop >= 0 else -1
            yield io.BufferedReader(_Frames(raw, _FRAMES[compression], most), BUFFER)
        else:
            yield raw


def _opened(fs: Any, path: str) -> Any:
    return fs.open(path, "rb") if is_local(fs) else _Remote(fs, path)


class _Remote(io.RawIOBase):
    """A file of an object store or a web server. A failed read is retried from its position."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._open = lambda: fs.open(path, "rb")
        self._open_stream = lambda: fs.open(path, "rb", block_size=0)
        self._file = with_retries(fs, self._open)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = with_retries(self._fs, lambda: self._there().seek(offset, whence))
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = with_retries(self._fs, lambda: self._read(len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._there().read(size))
        except Exception as error:
            self._file = None  # part of a response may have been read
            if isinstance(error, ValueError) and "range requests" in str(error):
                self._open = self._open_stream  # fsspec's http: the server does not support range requests
                return self._read(size)
            raise

    def _there(self) -> Any:
        """Return the file, reopened if it has failed."""
        if self._file is None:
            self._file = self._reopened()
        return self._file

    def _reopened(self) -> Any:
        file = self._open()
        if self._open is not self._open_stream:
            file.seek(self._at)
            return file
        left = self._at  # what was read is read again
        while left and (data := file.read(min(left, BUFFER))):
            left -= len(data)
        return file

    def close(self) -> None:
        if not self.closed and self._file is not None:
            self._file.close()
        super().close()


class _Zstandard:
    """A Zstandard frame with the methods of the standard library's decompressors."""

    needs_input = True

    def __init__(self) -> None:
        self._frame: Any = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj()

    def decompress(self, data: bytes, _most: int) -> bytes:
        return self._frame.decompress(data) if data else b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data


_FRAMES: dict[str, Callable[[], Any]] = {
    "zstd": _Zstandard,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST_WINDOW),
}


class _Frames(io.RawIOBase):
    """The frames (streams) of a compressed file, in sequence. The libraries' own readers treat a truncated file, or
    one whose later frames are damaged, as ended; this one raises EOFError or the library's error."""

    def __init__(self, raw: BinaryIO, new_frame: Callable[[], Any], most: int) -> None:
        self._raw, self._new_frame = raw, new_frame
        self._left = most  # compressed bytes still to read; -1: all
        self._frame: Any = None
        self._data = b""  # compressed, not yet passed to a frame
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._data and (self._frame is None or self._frame.needs_input):
                self._data = self._raw.read(_INPUT if self._left < 0 else min(self._left, _INPUT))
                self._left -= len(self._data) if self._left > 0 else 0
                if not self._data:
                    if self._frame is not None:
                        raise EOFError
                    return 0
            self._ready = memoryview(self._decompress())
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self) -> bytes:
        if self._frame is None:
            self._data = self._data.lstrip(b"\0")  # padding between the streams of xz, or at a tape's end
            if not self._data:
                return b""
            self._frame = self._new_frame()
        try:
            found = self._frame.decompress(self._data, _OUTPUT)
        except (OSError, ValueError) as error:  # bz2's for damaged data
            raise zlib.error(str(error)) from error
        self._data = b""
        if self._frame.eof:
            self._data, self._frame = self._frame.unused_data, None
        return found
