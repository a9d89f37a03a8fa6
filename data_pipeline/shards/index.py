"""Write and load index.json: every shard of a folder with its counts and hashes, and how it was made.

index.json holds one entry per shard. The block table of a shard (offset, bytes, counts and checksum of each block)
is next to it in `<shard>.json` and is read when the shard is first needed, so that opening a hundred thousand shards
takes about two seconds. All of it is canonical JSON: the same data gives the same bytes. index.json is sealed: its
`sha256` is that of its other fields, so that no damage passes, whatever shards it then describes.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io.files import (
    SEAL,
    join,
    read_bytes,
    remove_partial_files,
    seal_holds,
    sealed_json,
    write_whole,
)
from data_pipeline.masking.budget import MaskBudget, rate_note
from data_pipeline.records import COLUMNS
from data_pipeline.shards.schema import (
    LARGEST_VOCABULARY,
    REMEDY,
    VOCABULARY_FIELDS,
    BlockTable,
    ShardEntry,
    VocabularyStamp,
    bad,
    checked,
    is_sha256,
    parsed,
    parsed_table,
)

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


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
