"""Write and load index.json and the block tables of shards, and map example numbers to rows of blocks.

index.json lists every shard of a folder with its counts and hashes, one entry per shard, and says how the folder was
made. The block table of a shard (offset, bytes, counts and checksum of each block) is next to it in `<shard>.json` and
is read when the shard is first needed, so that opening a hundred thousand shards takes about two seconds. All of it is
canonical JSON: the same data gives the same bytes. index.json is sealed: its `sha256` is that of its other fields, so
that no damage passes, whatever shards it then describes.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io.files import (
    SEAL,
    canonical_json,
    join,
    read_bytes,
    remove_partial_files,
    seal_holds,
    sealed_json,
    write_whole,
)
from data_pipeline.masking.budget import MaskBudget, rate_note
from data_pipeline.records import COLUMNS

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


# Map the example numbers of a split to rows of blocks of shards: integers only, no file is opened. Order
# (data_pipeline/loader/order.py) defines the numbering.


class Run(NamedTuple):
    """Rows first..first+rows-1 of a block of a shard."""

    shard: int
    block: int
    first: int
    rows: int


class Layout:
    """Maps example numbers of a split to rows of blocks. `sequential`: numbered as in a sequential order."""

    def __init__(self, shard_examples: NDArray[np.int64], block: int, sequential: bool = False) -> None:
        self.block, self.sequential = block, sequential
        self._ends = np.cumsum(shard_examples)
        self._full = shard_examples // block  # full blocks of each shard
        self._full_ends = np.cumsum(self._full)
        self._rest_ends = np.cumsum(shard_examples % block)
        self._in_full = int(self._full_ends[-1]) * block if len(shard_examples) else 0

    def runs(self, first: int, count: int) -> Iterator[Run]:
        """Yield the rows that hold examples first..first+count-1, in order."""
        while count:
            run = self._run(first, count)
            yield run
            first, count = first + run.rows, count - run.rows

    def _run(self, first: int, count: int) -> Run:
        if self.sequential:
            return self._in_place(first, count)
        return self._in_full_block(first, count) if first < self._in_full else self._in_rest(first, count)

    def _in_place(self, first: int, count: int) -> Run:
        shard = int(np.searchsorted(self._ends, first, "right"))
        block, row = divmod(first - (int(self._ends[shard - 1]) if shard else 0), self.block)
        return Run(shard, block, row, min(count, self.block - row, int(self._ends[shard]) - first))

    def _in_full_block(self, first: int, count: int) -> Run:
        block, row = divmod(first, self.block)
        shard = int(np.searchsorted(self._full_ends, block, "right"))
        before = int(self._full_ends[shard - 1]) if shard else 0
        return Run(shard, block - before, row, min(count, self.block - row))

    def _in_rest(self, first: int, count: int) -> Run:
        number = first - self._in_full
        shard = int(np.searchsorted(self._rest_ends, number, "right"))
        row = number - (int(self._rest_ends[shard - 1]) if shard else 0)
        left = int(self._rest_ends[shard]) - number
        return Run(shard, int(self._full[shard]), row, min(count, left))


# Convert entries of index.json and block tables between canonical JSON and checked records.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.tar")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")
REMEDY = "prepare the shards again, or copy the folder again if it was copied"


MAX_TOKENS = 2**16 - 1
"""Maximum tokens of an example: positions are stored in 16 bits."""
LARGEST_VOCABULARY = 2**24
"""Maximum entries; a reader may hold a count of each."""


class ShardEntry(NamedTuple):
    """The entry of one shard in index.json."""

    file: str
    """Name of the tar in the folder."""
    examples: int
    tokens: int
    masked: int
    """Masked positions."""
    max_tokens: int
    """Tokens of its longest example."""
    max_masked: int
    """Maximum masked positions in one example."""
    bytes: int
    sha256: str
    blocks: int
    block_table_sha256: str
    """Of the file with the block table."""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as index.json stores it."""
        return self._asdict()

    @classmethod
    def from_dict(cls, value: object, where: object) -> Self:
        """Parse the entry that the JSON `value` describes. Raises UserError if it is not a valid entry."""
        fields = checked(value, _ENTRY, where)
        if not _NAME.fullmatch(fields["file"]) or fields["file"] in ("index.tar", "tokenizer.tar"):
            raise bad(f"shard name {fields['file']!r}", where, "a plain file name that ends in .tar")
        for name in ("sha256", "block_table_sha256"):
            if not is_sha256(fields[name]):
                raise bad(f"{name} of {fields['file']}", where, "64 hexadecimal digits")
        if not fields["max_masked"] <= fields["max_tokens"] <= MAX_TOKENS:
            sizes = f"{fields['max_tokens']} tokens and {fields['max_masked']} masked positions"
            raise bad(f"{sizes} at most in {fields['file']}", where, f"no more than {MAX_TOKENS} tokens")
        return cls(**fields)

    @property
    def table_file(self) -> str:
        """Name of the file with the block table."""
        return self.file.removesuffix(".tar") + ".json"


_ENTRY: dict[str, type] = {
    name: str if kind is str else int for name, kind in ShardEntry.__annotations__.items()
}
BLOCK_FIELDS: dict[str, type] = {
    "offset": int,
    "bytes": int,
    "examples": int,
    "tokens": int,
    "masked": int,
    "checksum": str,
}
VOCABULARY_FIELDS: dict[str, type] = {
    "sha256": str,
    "size": int,
    **dict.fromkeys(("cls", "sep", "mask", "pad", "unk"), int),
}


class BlockTable(NamedTuple):
    """Where the blocks of a shard are; one entry per block."""

    checksums: list[str]  # XXH3 of the block's bytes, 64 bits, in hexadecimal
    offsets: NDArray[np.int64]  # of its first tar header
    sizes: NDArray[np.int64]  # bytes, headers included
    examples: NDArray[np.int64]
    tokens: NDArray[np.int64]
    masked: NDArray[np.int64]  # masked positions


class VocabularyStamp(NamedTuple):
    """Which vocabulary the ids belong to, and its special ids."""

    sha256: str
    size: int
    cls: int
    sep: int
    mask: int
    pad: int
    unk: int

    @classmethod
    def of(cls, vocabulary: "Vocabulary") -> Self:
        """Describe this vocabulary."""
        ids = (int(getattr(vocabulary, role)) for role in ("cls", "sep", "mask", "pad", "unk"))
        return cls(vocabulary.sha256, vocabulary.size, *ids)

    @classmethod
    def of_size(cls, size: int) -> Self:
        """Describe a vocabulary of which only the number of entries is known: for shapes alone."""
        return cls("", size, cls=-1, sep=-1, mask=-1, pad=-1, unk=-1)


def block_table_json(table: BlockTable) -> bytes:
    """Encode a block table as the file that `parsed_table` reads."""
    rows = zip(*(column.tolist() for column in table[1:]), table.checksums, strict=True)
    return canonical_json({"blocks": [dict(zip(BLOCK_FIELDS, row, strict=True)) for row in rows]})


def parsed_table(data: bytes, shard: ShardEntry, block_examples: int, where: str) -> BlockTable:
    """Parse the block table in `data`. Raises UserError if it is invalid or contradicts the shard's entry."""
    blocks = checked(parsed(data, where), {"blocks": list}, where)["blocks"]
    rows = [checked(block, BLOCK_FIELDS, where) for block in blocks]
    columns = [np.array([row[name] for row in rows], np.int64) for name in list(BLOCK_FIELDS)[:-1]]
    table = BlockTable([row["checksum"] for row in rows], *columns)
    expected = np.minimum(shard.examples - np.arange(len(rows)) * block_examples, block_examples)
    sums = (int(table.tokens.sum()), int(table.masked.sum()))
    if (
        len(rows) != shard.blocks
        or not np.array_equal(table.examples, expected)
        or sums != (shard.tokens, shard.masked)
    ):
        raise bad("the counts of the blocks contradict index.json", where, "equal sums")
    ends = table.offsets + table.sizes
    if (ends[:-1] != table.offsets[1:]).any() or (ends > shard.bytes).any() or (ends < table.offsets).any():
        raise bad("the blocks do not lie one behind the other", where, f"offsets within {shard.file}")
    if not all(_CHECKSUM.fullmatch(checksum) for checksum in table.checksums):
        raise bad("a block's checksum", where, "16 hexadecimal digits")
    return table


def parsed(data: bytes, where: str) -> object:
    """Parse the JSON value in `data`, or raise UserError."""
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise bad(f"no JSON ({error})", where, "a file that maskmill wrote") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def is_sha256(text: str) -> bool:
    """Return whether `text` is 64 hexadecimal digits."""
    return _SHA256.fullmatch(text) is not None


def checked(value: object, fields: Mapping[str, type], where: object) -> dict[str, Any]:
    """Return `value` if it is an object with exactly these fields, of these types, numbers from 0 to 2**62."""
    if not isinstance(value, dict) or value.keys() != fields.keys():
        found = ", ".join(sorted(map(str, value)))[:200] if isinstance(value, dict) else type(value).__name__
        raise bad(f"found {found or 'nothing'}", where, f"the fields {', '.join(sorted(fields))}")
    for name, kind in fields.items():
        if type(value[name]) is not kind or (kind is int and not 0 <= value[name] <= 2**62):
            raise bad(f"{name} is {str(value[name])[:80]!r}", where, _KINDS[kind])
    return value


_KINDS = {int: "a whole number from 0 on", str: "text", list: "a list", dict: "an object"}


def bad(what: str, where: object, expected: str) -> UserError:
    """Return the error for a file that is not as maskmill writes it."""
    return UserError(what, where=where, expected=expected, remedy=REMEDY)


# Open a folder of shards, and write its index.json.

FORMAT = 4
"""Format version of shards and index; other versions are refused."""
INDEX, TOKENIZER = "index.json", "tokenizer.json"
TRAIN, HELD_OUT = "train", "held_out"
SPLITS = (TRAIN, HELD_OUT)


@dataclass(frozen=True, eq=False)
class Split:
    """The shards of one part of the corpus, in order."""

    name: str
    shards: Sequence[ShardEntry]

    @cached_property
    def shard_examples(self) -> NDArray[np.int64]:
        """Examples of each shard."""
        return np.array([shard.examples for shard in self.shards], np.int64)

    @cached_property
    def examples(self) -> int:
        return sum(shard.examples for shard in self.shards)

    @cached_property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @cached_property
    def masked(self) -> int:
        """Masked positions."""
        return sum(shard.masked for shard in self.shards)

    @cached_property
    def max_tokens(self) -> int:
        """Tokens of the longest example; 0 without examples."""
        return max((shard.max_tokens for shard in self.shards), default=0)

    @cached_property
    def max_masked(self) -> int:
        """Maximum masked positions in one example; 0 without examples."""
        return max((shard.max_masked for shard in self.shards), default=0)


@dataclass(frozen=True, eq=False)
class Index:
    """An opened folder of shards."""

    folder: str
    block_examples: int
    settings: Mapping[str, Any]
    """The settings that affect the bytes."""
    vocabulary: VocabularyStamp
    columns: Mapping[str, int]
    """The columns beyond the required ones, each with the number of its values."""
    statistics: Mapping[str, Any]
    splits: Mapping[str, Split]
    identity: str
    """SHA-256 of index.json's bytes: two folders of equal identity hold the same data."""
    is_sealed: bool = True
    """Whether index.json has a SHA-256 of its own content, which held; False: written before it had one."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Index":
        """Open a local folder or an fsspec URI. Raises UserError if it holds no shards or an invalid index."""
        folder = os.fspath(folder)
        where = join(folder, INDEX)
        try:
            data = read_bytes(where)
        except FileNotFoundError:
            raise UserError(
                "a folder without shards",
                where=folder,
                expected=f"{INDEX} in it",
                remedy="run `maskmill prepare`",
            ) from None
        value = parsed(data, where)
        is_sealed = _is_sealed(
            value, where
        )  # first: a flipped bit in the version is damage, not another version
        if isinstance(value, dict) and "format" in value and value["format"] != FORMAT:
            raise UserError(
                f"format {str(value['format'])[:80]}",
                where=where,
                expected=f"format {FORMAT}",
                remedy="prepare the shards again with this version, or read them with the version that made them",
            )
        fields = checked(value, _INDEX | ({SEAL: str} if is_sealed else {}), where)
        if fields["block_examples"] < 1:
            raise bad("block_examples is 0", where, "at least 1")
        stamp = VocabularyStamp(**checked(fields["vocabulary"], VOCABULARY_FIELDS, where))
        fits = stamp.size <= LARGEST_VOCABULARY and all(i < stamp.size for i in stamp[2:])
        if not is_sha256(stamp.sha256) or not fits:
            most = f"at most {LARGEST_VOCABULARY:,} entries"
            raise bad("the vocabulary's entry", where, f"a SHA-256, {most}, and special ids among them")
        splits = checked(fields["splits"], dict.fromkeys(SPLITS, list), where)
        return cls(
            folder=folder,
            block_examples=fields["block_examples"],
            settings=fields["settings"],
            vocabulary=stamp,
            columns=_columns(fields["columns"], where),
            statistics=fields["statistics"],
            splits=_splits(splits, fields["block_examples"], where),
            identity=hashlib.sha256(data).hexdigest(),
            is_sealed=is_sealed,
        )

    @property
    def train(self) -> Split:
        return self.splits[TRAIN]

    @property
    def held_out(self) -> Split:
        return self.splits[HELD_OUT]

    @property
    def length_variance(self) -> float | None:
        """The variance of the training examples' lengths, in tokens squared, as if each were at the middle of its bin
        of the histogram of lengths; None without one. Their mean is known exactly, from the counts."""
        counts = np.asarray(self.statistics.get(TRAIN, {}).get("length_histogram", ()), np.float64)
        if not counts.sum():
            return None
        middles = (np.arange(len(counts)) + 0.5) * (self.settings["sequence_length"] / len(counts))
        return float(np.cov(middles, fweights=counts.astype(np.int64), bias=True))

    def path(self, file: str) -> str:
        """Return the path or URI of a file of the folder."""
        return join(self.folder, file)

    def tokenizer_json(self) -> bytes:
        """Read tokenizer.json. Raises UserError if it is missing or is not the vocabulary that made the shards."""
        where = self.path(TOKENIZER)
        try:
            data = read_bytes(where)
        except FileNotFoundError:
            raise UserError(
                "missing", where=where, expected="the vocabulary of the shards", remedy=REMEDY
            ) from None
        if hashlib.sha256(data).hexdigest() != self.vocabulary.sha256:
            raise UserError("bytes changed since index.json was written", where=where, remedy=REMEDY)
        return data

    def block_table(self, shard: ShardEntry) -> BlockTable:
        """Read the block table of a shard. Raises DamagedError if it is missing or changed, UserError if it
        contradicts the index."""
        where = self.path(shard.table_file)
        try:
            data = read_bytes(where)
        except FileNotFoundError:
            raise DamagedError(
                "missing", where=where, expected=f"the block table of {shard.file}", remedy=REMEDY
            ) from None
        if hashlib.sha256(data).hexdigest() != shard.block_table_sha256:
            raise DamagedError("bytes changed since index.json was written", where=where, remedy=REMEDY)
        return parsed_table(data, shard, self.block_examples, where)


_INDEX: dict[str, type] = {
    "format": int,
    "block_examples": int,
    "settings": dict,
    "vocabulary": dict,
    "columns": dict,
    "statistics": dict,
    "splits": dict,
}


def write_index(
    folder: str | os.PathLike[str],
    *,
    splits: Mapping[str, Sequence[ShardEntry]],
    settings: Mapping[str, Any],
    block_examples: int,
    vocabulary: "Vocabulary",
    statistics: Mapping[str, Any],
    columns: Mapping[str, int] = MappingProxyType({}),
) -> Index:
    """Write tokenizer.json and, last, index.json into the folder that already holds the shards; return the index as
    `Index.load` reads it. `columns`: as in Index. Files left by killed writers are removed."""
    stamp = VocabularyStamp.of(vocabulary)
    listed = {name: [shard.as_dict() for shard in splits.get(name, ())] for name in SPLITS}
    document = {
        "format": FORMAT,
        "block_examples": block_examples,
        "settings": dict(settings),
        "vocabulary": stamp._asdict(),
        "columns": dict(columns),
        "statistics": dict(statistics),
        "splits": listed,
    }
    where = join(folder, INDEX)
    _columns(columns, where)
    _splits(listed, block_examples, where)  # nothing is written that could not be read back
    write_whole(join(folder, TOKENIZER), vocabulary.json.encode("utf-8"))
    write_whole(where, sealed_json(document))
    remove_partial_files(folder)
    return Index.load(folder)


def _is_sealed(value: object, where: str) -> bool:
    """Return whether the parsed index.json is sealed. Raises DamagedError if its seal does not hold."""
    holds = seal_holds(value) if isinstance(value, dict) else None
    if holds is False:
        raise DamagedError(
            "changed since it was written: its sha256 does not hold", where=where, remedy=REMEDY
        )
    return holds is True


def _columns(listed: Mapping[str, Any], where: str) -> Mapping[str, int]:
    """Return the further columns that index.json lists, checked."""
    known = [name for name, column in COLUMNS.items() if not column.required]
    for name, values in listed.items():
        if name not in known or type(values) is not int or values < 1:
            raise bad(
                f"column {name!r} of {values} values", where, f"numbers of values of {', '.join(known)}"
            )
    return listed


def _splits(listed: Mapping[str, list[Any]], block_examples: int, where: str) -> dict[str, Split]:
    """Return the splits that index.json lists, checked."""
    splits = {
        name: Split(name, tuple(ShardEntry.from_dict(entry, where) for entry in entries))
        for name, entries in listed.items()
    }
    shards = [shard for split in splits.values() for shard in split.shards]
    if len({shard.file for shard in shards}) < len(shards):
        raise bad("a shard is listed twice", where, "every shard once")
    for shard in shards:
        if not shard.examples or shard.blocks != -(-shard.examples // block_examples):
            raise bad(
                f"{shard.file} has {shard.examples} examples in {shard.blocks} blocks",
                where,
                f"{block_examples} in every block but the last",
            )
    return splits


def measured_note(index: "Index") -> str:
    """Describe the effect of the cap on the training examples of these shards; empty if it had none."""
    budget, split = MaskBudget.stored(index.settings), index.train
    if budget is None or not budget.binds(split.max_tokens):
        return ""
    return (
        f"data.max_predictions={budget.cap} caps what is predicted: {split.masked / max(split.tokens, 1):.1%} of the "
        f"tokens in {index.folder}, {rate_note(budget.rate)}"
    )
