"""Convert entries of index.json and block tables between canonical JSON and checked records."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary

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
