"""Encode examples as the bytes of one block, and decode them with every value checked before use.

A block is tar members that are plain .npy columns: block 7 of a shard holds `000007.tokens.npy`,
`000007.offsets.npy` and so on in the order of COLUMNS. Written by hand, 512 bytes of ustar header and 128 of .npy
header, so that no library release changes a byte. Read strictly: no pickle, and every size and offset is checked.
"""

import re
import tarfile
from collections.abc import Container, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import jit
from data_pipeline.records import COLUMNS, NO_LABEL, OFFSETS, REQUIRED, Examples

TAR_BLOCK = 512
TAR_END = bytes(2 * TAR_BLOCK)
"""Two zero blocks end a tar."""

_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    rb"\{ *'descr': *'([<|][iu][124])', *'fortran_order': *False, *'shape': *\((\d{1,10}),\),? *\} *\n"
)


class BlockError(ValueError):
    """Raised when the bytes of a block are not examples; the reader adds which block it was."""


def encode_block(number: int, examples: Examples) -> bytes:
    """Encode block `number` as tar members. Raises ValueError if a column does not fit its type on disk."""
    return b"".join(
        _member(f"{number:06d}.{name}.npy", _npy(_narrow(name, column)))
        for name, column in examples.columns.items()
    )


def decode_block(number: int, data: NDArray[np.uint8], further: Container[str] = ()) -> Examples:
    """Decode the examples in `data`, with the required columns and the `further` ones, as views if the types allow.
    Raises BlockError for bytes not in encode_block's format; call `check_examples` before indexing with the values."""
    view, place = data.data, 0
    columns: dict[str, NDArray] = {}
    for name, known in COLUMNS.items():
        if not (known.required or name in further):
            continue
        size = _member_size(bytes(view[place : place + TAR_BLOCK]), f"{number:06d}.{name}.npy")
        place += TAR_BLOCK
        if size > len(view) - place:
            raise BlockError(f"column {name} ends beyond the block")
        column = _npy_column(view[place : place + size], name, known.types)
        columns[name] = column.astype(np.int64) if name in OFFSETS else column
        place += _padded(size)
    if place != len(view):
        raise BlockError(f"the block is {place - len(view)} bytes too short")
    return Examples(**columns)


def check_examples(
    examples: Examples,
    vocabulary_size: int,
    longest: int,
    labels: int = 2,
    further: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Raise BlockError unless all columns are consistent: every offset, position and id is within what it points
    into, every label is -1 or below `labels`, every value of a further column is below its count in `further`, and
    no example is empty or longer than `longest` tokens."""
    rows, columns = len(examples.labels), examples.columns
    first: dict[str, str] = {}  # among the columns that are cut by the same offsets
    for name, column in columns.items():
        if COLUMNS[name].rows:
            other = first.setdefault(COLUMNS[name].rows, name)
            if len(column) != len(columns[other]):
                raise BlockError(f"{name} and {other} differ in length")
            continue
        expected = rows + 1 if name in OFFSETS else rows
        if len(column) != expected:
            raise BlockError(f"column {name} has {len(column)} entries, not {expected}")
    for name, values in further.items():
        if len(columns[name]) and not 0 <= columns[name].min() <= columns[name].max() < values:
            raise BlockError(f"column {name} has a value beyond {values - 1}")
    if examples.tokens.dtype != examples.masked_ids.dtype:
        raise BlockError("tokens and masked_ids differ in type")
    fault = _FAULTS[_first_fault(*map(columns.get, REQUIRED), vocabulary_size, longest, labels)]
    if fault:
        raise BlockError(fault)


_FAULTS = (
    "",
    "offsets do not run from 0 to the number of tokens",
    "an example is empty or longer than the index says",
    "masked_offsets do not run from 0 to the number of masked positions",
    "a first segment is longer than its example",
    "a label is none of its pair task's",
    "masked positions are not ascending within their example",
    "a token id is beyond the vocabulary",
)


@jit
def _first_fault(
    tokens, offsets, first_lengths, labels, masked_positions, masked_ids, masked_offsets, size, longest, kinds
):
    """Return the number in _FAULTS of the first fault, 0 for none."""
    rows = len(labels)
    if offsets[0] != 0 or offsets[rows] != len(tokens):
        return 1
    if masked_offsets[0] != 0 or masked_offsets[rows] != len(masked_positions):
        return 3
    for i in range(rows):
        length = offsets[i + 1] - offsets[i]
        if length < 1 or length > longest:
            return 2
        # checked before use: if the ends are right and no offset decreases, every offset is in range
        if masked_offsets[i + 1] < masked_offsets[i] or masked_offsets[i + 1] > len(masked_positions):
            return 3
        if first_lengths[i] > length:
            return 4
        if labels[i] < NO_LABEL or labels[i] >= kinds:
            return 5
        last = np.int64(-1)
        for m in range(masked_offsets[i], masked_offsets[i + 1]):
            position = np.int64(masked_positions[m])
            if position <= last or position >= length:
                return 6
            last = position
    for i in range(len(tokens)):
        if tokens[i] >= size:
            return 7
    for i in range(len(masked_ids)):
        if masked_ids[i] >= size:
            return 7
    return 0


def _narrow(name: str, column: NDArray) -> NDArray:
    types = COLUMNS[name].types
    if column.dtype.str in types:
        return np.ascontiguousarray(column)
    narrow = column.astype(types[-1])
    if not np.array_equal(narrow, column):
        raise ValueError(f"column {name} ({column.dtype}) does not fit {types[-1]}")
    return narrow


def _npy(column: NDArray) -> bytes:
    header = f"{{'descr': '{column.dtype.str}', 'fortran_order': False, 'shape': ({len(column)},), }}"
    padded = header.ljust(117).encode("ascii") + b"\n"  # 128 bytes with magic and length: data stays aligned
    return _NPY_MAGIC + len(padded).to_bytes(2, "little") + padded + column.tobytes()


def _npy_column(data: memoryview, name: str, types: tuple[str, ...]) -> NDArray:
    head = bytes(data[:256])
    start = 10 + int.from_bytes(head[8:10], "little")
    match = _NPY_HEADER.fullmatch(head, 10, start) if head[:8] == _NPY_MAGIC and start <= len(head) else None
    if match is None:
        raise BlockError(f"column {name} is no plain one-dimensional .npy array")
    kind, count = match[1].decode("ascii"), int(match[2])
    if kind not in types:
        raise BlockError(f"column {name} has type {kind}, not {' or '.join(types)}")
    if len(data) - start != count * int(kind[-1]):
        raise BlockError(f"column {name} does not hold the {count} entries that it states")
    column = np.frombuffer(data, kind, count, start)
    return column if column.flags.aligned else column.copy()  # other writers may pad headers differently


def _member(name: str, data: bytes) -> bytes:
    return b"".join((_header(name.encode("ascii"), len(data)), data, bytes(-len(data) % TAR_BLOCK)))


def _header(name: bytes, size: int) -> bytes:
    """Build the ustar header that tarfile writes, in a tenth of its time; each block has at least seven."""
    header = bytearray(_HEADER)
    header[: len(name)] = name
    header[124:135] = b"%011o" % size
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _nameless_header() -> bytes:
    info = tarfile.TarInfo("")  # times, owners and names are zero or empty unless set
    info.mode = 0o644
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
    header[148:156] = b" " * 8  # the checksum counts its own field as spaces
    return bytes(header)


_HEADER = _nameless_header()


def _member_size(header: bytes, name: str) -> int:
    found = header[:100].rstrip(b"\0").decode("ascii", "replace")
    if header[257:262] != b"ustar" or header[156:157] not in (b"0", b"\0") or found != name:
        raise BlockError(f"expected the member {name}, found {found[:40]!r}")
    digits = header[124:136].strip(b" \0")
    if not re.fullmatch(rb"[0-7]{1,11}", digits):
        raise BlockError(f"the size of {name} is no octal number")
    return int(digits, 8)


def _padded(size: int) -> int:
    return -(-size // TAR_BLOCK) * TAR_BLOCK
