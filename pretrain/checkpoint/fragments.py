"""Copy pieces of named tensors on any device to host memory, and write them as a safetensors file.

The file is written here, not by the safetensors package, to stream it: no second copy in memory, the SHA-256 is of
the intended bytes, and a full disk is an OSError. The package reads it.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from data_pipeline.io.files import open_to_write
from pretrain.optim.flat_layout import Fragment

DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Safetensors names of the element types, widest first."""
WRITE_BYTES = 1 << 22
"""Bytes hashed and written at a time, few enough to be in cache for the write."""


def parsed_key(key: str) -> tuple[str, str, int]:
    """Parse a fragment's name in a file into (kind, name, start). Raises ValueError."""
    kind, _, rest = key.partition("/")
    name, _, start = rest.rpartition("@")
    return kind, name, int(start)


class HostCopies:
    """Copies in host memory that training need not wait for: page-locked for a GPU, and reused at each save."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self, fragments: Iterable[Fragment]) -> list[Fragment]:
        """Return the fragments with copied values, valid until the next call."""
        taken, on_gpu = [], False
        for fragment in fragments:
            values = fragment.values.detach()
            buffer = self._buffers.get(fragment.key)
            if buffer is None or (buffer.shape, buffer.dtype) != (values.shape, values.dtype):
                buffer = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
                self._buffers[fragment.key] = buffer
            buffer.copy_(values, non_blocking=True)
            on_gpu |= values.is_cuda
            taken.append(replace(fragment, values=buffer))
        if on_gpu:
            torch.cuda.synchronize()
        return taken


def write_fragments(path: Path, fragments: Iterable[Fragment]) -> dict[str, str | int]:
    """Write a new safetensors file and sync it to disk; return its name, `bytes` and `sha256`."""
    widest_first = sorted(fragments, key=lambda fragment: -fragment.values.element_size())
    digest, size = hashlib.sha256(), 0
    with open_to_write(path, "xb") as file:
        for part in _parts(widest_first):
            digest.update(part)
            file.write(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return {"file": path.name, "bytes": size, "sha256": digest.hexdigest()}


def named_pieces(path: Path) -> Iterator[tuple[str, str, int, int, str]]:
    """List (kind, name, start, length, name in the file) of each fragment of a file. Raises OSError,
    SafetensorError, or ValueError if it holds anything else."""
    with safe_open(path, framework="pt") as tensors:
        for key in tensors.keys():  # noqa: SIM118 (not a dictionary)
            piece = tensors.get_slice(key)
            if len(piece.get_shape()) != 1 or piece.get_dtype() not in DTYPES.values():
                raise ValueError(f"{key} is no row of numbers")
            yield *parsed_key(key), piece.get_shape()[0], key


def _parts(fragments: Sequence[Fragment]) -> Iterator[bytes | memoryview]:
    """Yield the file's parts: header length, header, elements (https://github.com/huggingface/safetensors, Format)."""
    header, at = {}, 0
    for fragment in fragments:
        size = fragment.values.nbytes
        shape = list(fragment.values.shape)
        header[fragment.key] = {
            "dtype": DTYPES[fragment.values.dtype],
            "shape": shape,
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for fragment in fragments:
        values = fragment.values.detach().cpu().contiguous().view(torch.uint8).numpy()
        yield from (values[start : start + WRITE_BYTES].data for start in range(0, len(values), WRITE_BYTES))
