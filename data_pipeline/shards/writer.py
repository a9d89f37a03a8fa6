"""Write Examples to WebDataset tars, and read them back, checking each block at every read.

A shard is a plain tar that stock `webdataset.WebDataset(url).decode()` reads: one sample per block of many examples,
keys 000000, 000001, ..., one .npy per column (data_pipeline/shards/block.py). The only import of webdataset: writing
and reading do not need it, and importing it imports torch, which costs a worker two seconds and 180 MB.
`stock_samples` reads a shard through webdataset itself.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io.decompress import open_as_it_is
from data_pipeline.io.files import is_uri, read_ranges, whole_file, write_whole
from data_pipeline.records import Examples
from data_pipeline.sequences.registry import label_names
from data_pipeline.shards.block import TAR_END, BlockError, check_examples, decode_block, encode_block
from data_pipeline.shards.index import TOKENIZER, Index, Split
from data_pipeline.shards.schema import MAX_TOKENS, BlockTable, ShardEntry, block_table_json

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
