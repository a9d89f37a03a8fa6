"""Write Examples to WebDataset tars, and read them back, checking each block at every read.

A shard is a plain tar that stock `webdataset.WebDataset(url).decode()` reads: one sample per block of many examples,
keys 000000, 000001, ..., one .npy per column. Block 7 of a shard holds `000007.tokens.npy`, `000007.offsets.npy` and
so on in the order of COLUMNS. Blocks are written by hand, 512 bytes of ustar header and 128 of .npy header for each
column, so that no library release changes a byte. They are read strictly: no pickle, and every size and offset is
checked.

`stock_samples` reads a shard through webdataset itself. It alone imports webdataset: writing and reading do not need
it, and importing it imports torch, which costs a worker two seconds and 180 MB.
"""

import hashlib
import os
import re
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io.decompress import open_as_it_is
from data_pipeline.io.files import is_uri, read_ranges, whole_file, write_whole
from data_pipeline.jit import jit
from data_pipeline.records import COLUMNS, NO_LABEL, OFFSETS, REQUIRED, Examples
from data_pipeline.sequences.registry import label_names
from data_pipeline.settings import SEQUENTIAL, DataSettings
from data_pipeline.shards.index import (
    MAX_TOKENS,
    TOKENIZER,
    BlockTable,
    Index,
    ShardEntry,
    Split,
    block_table_json,
)

# Encode examples as the bytes of one block, and decode them with every value checked before use.

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


# Order the examples of a shard: in document order, shuffled, or in blocks of near-equal lengths.


def arrangement(lengths: NDArray[np.int64], settings: DataSettings, number: int) -> NDArray[np.int64]:
    """Return the examples (numbered in document order) in the order of shard number `number`.

    `data.order=sequential` keeps document order; otherwise they are shuffled, then `binned` if `data.bin_width` is
    set."""
    if settings.order == SEQUENTIAL:
        return np.arange(len(lengths))
    shuffled = rng.permutation(settings.seed, number, rng.SHUFFLE, len(lengths))
    if not settings.bin_width:
        return shuffled
    bins = (lengths - 1) // settings.bin_width
    places = binned(bins[shuffled], settings.block_examples, settings.seed, number)
    return shuffled[places]


def binned(bins: NDArray[np.int64], block: int, seed: int, number: int) -> NDArray[np.int64]:
    """Rearrange places 0..n-1 so that blocks of `block` hold one bin each.

    Each bin is cut into as many full blocks as it has examples for. The leftovers, less than a block per bin, are
    put in bin order and cut into blocks too, which hold neighbouring bins. The full blocks are shuffled; a short one
    stays last."""
    by_bin = np.argsort(bins, kind="stable")
    ends = np.cumsum(np.bincount(bins))
    rank = np.arange(len(bins)) - np.repeat(ends - np.bincount(bins), np.bincount(bins))
    whole = np.bincount(bins) // block * block
    left_over = rank >= np.repeat(whole, np.bincount(bins))
    order = np.concatenate([by_bin[~left_over], by_bin[left_over]])
    full = len(order) // block
    shuffled = rng.permutation(seed, number, rng.BIN_ORDER, full)
    return np.concatenate(
        [order[: full * block].reshape(full, block)[shuffled].ravel(), order[full * block :]]
    )


# Write, read and verify shards.

_REMEDY = "copy or prepare the shards again; `maskmill inspect` checks all of them"
_TABLES = 4096  # block tables that a reader keeps: some 20 MB at 60 blocks per shard


def write_shard(path: str | os.PathLike[str], blocks: Iterable[Examples]) -> ShardEntry:
    """Write the blocks as a tar with its block table next to it; the tar appears only when both are complete.

    Every block must hold as many examples as the first, the last may hold fewer; none is empty. Raises ValueError
    for other blocks, for inconsistent examples, and if there is no block."""
    path = Path(path)
    rows: list[tuple[int, int, int, int, int]] = []
    checksums: list[str] = []
    max_tokens = max_masked = size = 0
    digest = hashlib.sha256()
    with whole_file(path) as file:
        for number, block in enumerate(blocks):
            if not len(block) or (rows and (len(block) > rows[0][2] or rows[-1][2] < rows[0][2])):
                raise ValueError(f"block {number} has {len(block)} examples after {[row[2] for row in rows]}")
            check_examples(block, np.iinfo(block.tokens.dtype).max + 1, MAX_TOKENS)
            data = encode_block(number, block)
            rows.append((size, len(data), len(block), len(block.tokens), len(block.masked_ids)))
            checksums.append(_checksum(data))
            max_tokens = max(max_tokens, int(block.lengths.max()))
            max_masked = max(max_masked, int(np.diff(block.masked_offsets).max()))
            size += len(data)
            digest.update(data)
            file.write(data)
        if not rows:
            raise ValueError(f"{path}: a shard needs an example")
        digest.update(TAR_END)
        file.write(TAR_END)
        table = BlockTable(checksums, *np.array(rows, np.int64).T.copy())
        table_data = block_table_json(table)
        write_whole(path.with_suffix(".json"), table_data)
    return ShardEntry(
        file=path.name,
        examples=int(table.examples.sum()),
        tokens=int(table.tokens.sum()),
        masked=int(table.masked.sum()),
        max_tokens=max_tokens,
        max_masked=max_masked,
        bytes=size + len(TAR_END),
        sha256=digest.hexdigest(),
        blocks=len(rows),
        block_table_sha256=hashlib.sha256(table_data).hexdigest(),
    )


class BlockReader:
    """Reads blocks of one split by (shard number, block number); keeps block tables, never examples.

    With `skip_damaged`, a missing or changed block is returned as the same number of examples without tokens, and
    reported by `found`."""

    def __init__(self, index: Index, split: Split, skip_damaged: bool = False) -> None:
        self.index, self.split, self._skip = index, split, skip_damaged
        self._labels = len(label_names(index.settings.get("sequences")))
        self._told: dict[tuple[int, int], str] = {}
        self._untold: list[str] = []
        self._tables: OrderedDict[int, BlockTable] = OrderedDict()
        self._paths = [index.path(shard.file) for shard in split.shards]

    def read(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Examples]:
        """Yield the blocks, in order. Raises UserError that names shard and block if bytes changed, are missing, or
        are not examples of this index's vocabulary."""
        done = 0
        try:
            for examples in self._read(wanted):
                yield examples
                done += 1
        except DamagedError:
            if not self._skip:
                raise
            for shard, block in wanted[done:]:  # one by one: concurrent requests do not say which one failed
                try:
                    yield from self._read([(shard, block)])
                except DamagedError as error:
                    yield self._without(shard, block, error)

    def found(self) -> list[str]:
        """Return a line about each block that was skipped since the last call; each is reported once."""
        lines, self._untold = self._untold, []
        return lines

    def _without(self, shard: int, block: int, error: DamagedError) -> Examples:
        entry, full = self.split.shards[shard], self.index.block_examples
        count = min(full, entry.examples - block * full)
        if (shard, block) not in self._told:
            line = f"{self.index.path(entry.file)}, block {block}: its {count} examples are left out: {error}"
            self._told[shard, block] = line
            self._untold.append(line)
        return Examples.blank(count, self.index.columns)

    def _read(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Examples]:
        places = []
        for shard, block in wanted:
            table = self._table(shard)
            places.append((self._paths[shard], int(table.offsets[block]), int(table.sizes[block])))
        for (shard, block), data in zip(wanted, read_ranges(places), strict=True):
            yield self._checked(shard, block, data)

    def all_blocks(self) -> Iterator[Examples]:
        """Yield every block of the split, in order."""
        for shard, entry in enumerate(self.split.shards):
            for block in range(entry.blocks):
                yield from self.read([(shard, block)])

    def _table(self, shard: int) -> BlockTable:
        table = self._tables.pop(shard, None) or self.index.block_table(self.split.shards[shard])
        self._tables[shard] = table
        if len(self._tables) > _TABLES:
            self._tables.popitem(last=False)
        return table

    def _checked(self, shard: int, block: int, data: NDArray[np.uint8]) -> Examples:
        table, entry = self._table(shard), self.split.shards[shard]
        where = f"{self._paths[shard]}, block {block}"
        if len(data) != table.sizes[block]:
            raise DamagedError(
                f"the file ends {table.sizes[block] - len(data)} bytes too early", where=where, remedy=_REMEDY
            )
        if _checksum(data.data) != table.checksums[block]:
            raise DamagedError("bytes changed since the shard was written", where=where, remedy=_REMEDY)
        try:
            examples = decode_block(block, data, self.index.columns)
            check_examples(
                examples, self.index.vocabulary.size, entry.max_tokens, self._labels, self.index.columns
            )
        except BlockError as error:
            raise DamagedError(
                f"not a block of examples: {error}", where=where, remedy="prepare the shards again"
            ) from None
        counts = (len(examples), len(examples.tokens), len(examples.masked_ids))
        if counts != (table.examples[block], table.tokens[block], table.masked[block]):
            raise DamagedError(
                f"holds {counts} examples, tokens and masked positions, unlike its block table",
                where=where,
                remedy="prepare the shards again",
            )
        return examples


def stock_samples(path: str) -> Iterator[dict[str, Any]]:
    """Yield a shard's samples as `webdataset.WebDataset(path, shardshuffle=False).decode()` does: {"__key__": "000000",
    "tokens.npy": array, ...}. `path` is local or an fsspec URI; `pipe:` is refused with a UserError.

    From then on, webdataset runs with `enforce_security` in this process: it opens no pipes, unpickles nothing and
    rewrites no URL. It would not open local files either, so it is passed an open one."""
    is_uri(path)
    import fsspec
    import webdataset

    webdataset.utils.enforce_security = True
    from webdataset.autodecode import Decoder
    from webdataset.tariterators import group_by_keys, tar_file_expander

    decode = Decoder([])
    with fsspec.open(path, "rb") as stream:
        yield from map(decode, group_by_keys(tar_file_expander([{"url": path, "stream": stream}])))


def verify_full(index: Index, advance: Callable[[int], None] = lambda shards: None) -> None:
    """Check every byte: tokenizer.json, whole shards and block tables by SHA-256, then each block. Calls
    `advance(1)` after each shard. Raises UserError at the first that changed."""
    for line in problems(index, advance):
        raise line


def problems(index: Index, advance: Callable[[int], None] = lambda shards: None) -> Iterator[UserError]:
    """Yield one error for each file of the folder that is missing, changed or wrong; none if all is well."""
    if error := tokenizer_problem(index):
        yield error
    for split in index.splits.values():
        reader = BlockReader(index, split)
        for number in range(len(split.shards)):
            try:
                for _ in verified_blocks(reader, number):
                    pass
            except UserError as error:
                yield error
            advance(1)


def tokenizer_problem(index: Index) -> UserError | None:
    """Return what is wrong with the folder's tokenizer.json, if anything."""
    where = index.path(TOKENIZER)
    try:
        if _sha256(where)[0] == index.vocabulary.sha256:
            return None
    except UserError as error:
        return error
    return UserError("missing or changed", where=where, remedy=_REMEDY)


def verified_blocks(reader: BlockReader, number: int) -> Iterator[Examples]:
    """Yield the blocks of shard `number` of the reader's split, after checking the whole file's hash. Raises
    UserError if the shard, its block table or a block is not what was written, and after the last block if
    index.json disagrees about the longest and the most masked example."""
    shard = reader.split.shards[number]
    where = reader.index.path(shard.file)
    if _sha256(where) != (shard.sha256, shard.bytes):
        raise UserError("missing or changed", where=where, remedy=_REMEDY)
    max_tokens = max_masked = 0
    for block in range(shard.blocks):
        examples = next(reader.read([(number, block)]))
        max_tokens = max(max_tokens, int(examples.lengths.max()))
        max_masked = max(max_masked, int(np.diff(examples.masked_offsets).max()))
        yield examples
    if (max_tokens, max_masked) != (shard.max_tokens, shard.max_masked):
        raise UserError(
            f"index.json says max_tokens {shard.max_tokens} and max_masked {shard.max_masked}, "
            f"the examples have {max_tokens} and {max_masked}",
            where=where,
            remedy="prepare the shards again",
        )


def _sha256(path: str) -> tuple[str, int]:
    """Return the SHA-256 and size of the file's bytes; an empty hash if there is no file. Raises UserError if it
    exists but cannot be read."""
    try:
        with open_as_it_is(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except FileNotFoundError:
        return "", 0
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=path) from error


def _checksum(data: bytes | memoryview) -> str:
    """Compute the checksum that detects damage; the SHA-256 of the whole shard covers more. BLAKE2b would take a
    fifth of writing and half of reading a shard."""
    return xxhash.xxh3_64_hexdigest(data)
