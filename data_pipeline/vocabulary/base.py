"""Define what every kind of vocabulary has: pieces with ids, five of them special, and one canonical tokenizer.json.

Whatever file a vocabulary came from, its tokenizer.json is written here and not by the library; its bytes and their
hash are the vocabulary's identity. Two things hold for each kind (wordpiece.py, byte_bpe.py, unigram.py):

- special tokens that stand in the text are text: a book that says "[MASK]" gets no mask;
- where words begin follows from ids alone: `continuation`. So whoever masks whole words needs no text.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.errors import UserError

REMEDY = "choose another vocabulary in data.vocab"


class Specials(NamedTuple):
    """The special tokens by their role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


class Cuts(NamedTuple):
    """Where text can be cut without a change of ids, beside at white space, and what a word is encoded behind."""

    punctuation: bool = False  # its characters are words by themselves wherever they stand
    chinese: bool = False  # so are Chinese ones
    before: str = " "


@dataclass(frozen=True, eq=False)
class Vocabulary(ABC):
    """Pieces and their ids. Immutable; equal vocabularies have equal `sha256`."""

    kind: ClassVar[str]
    """As in vocabulary.kind."""
    tokens: list[str]  # id -> piece
    specials: Specials

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.tokens)

    @property
    def dtype(self) -> np.dtype:
        """The narrowest type that holds every id: uint16 or uint32."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Piece -> id."""
        return {token: i for i, token in enumerate(self.tokens)}

    @property
    def pad(self) -> int:
        return self.ids[self.specials.pad]

    @property
    def unk(self) -> int:
        return self.ids[self.specials.unk]

    @property
    def cls(self) -> int:
        return self.ids[self.specials.cls]

    @property
    def sep(self) -> int:
        return self.ids[self.specials.sep]

    @property
    def mask(self) -> int:
        return self.ids[self.specials.mask]

    @property
    @abstractmethod
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word."""

    @property
    @abstractmethod
    def cuts(self) -> Cuts:
        """Where a word ends besides at white space, for whoever remembers the ids of words."""

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """What the canonical tokenizer.json says."""

    def files(self) -> dict[str, str]:
        """The files that hold the vocabulary, by name: tokenizer.json, and what older programs read."""
        return {"tokenizer.json": self.json}

    @cached_property
    def json(self) -> str:
        """The canonical tokenizer.json, complete for the tokenizers and transformers libraries."""
        return json_text(self.definition())

    @cached_property
    def sha256(self) -> str:
        """Hash of `json`: the vocabulary's identity."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The library's tokenizer, which takes special tokens in the text for text."""
        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def added_tokens(self, *more: str) -> list[dict[str, Any]]:
        """The special tokens, and `more`, as a tokenizer.json lists them."""
        flags = {
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
        }  # fmt: skip
        listed = sorted((self.ids[token], token) for token in {*self.specials, *more})
        return [{"id": i, "content": token, **flags} for i, token in listed]

    def sequence_template(self) -> dict[str, Any]:
        """The post-processor that frames text as the shards do: cls A sep, or cls A sep B sep in two segments."""
        _, _, cls, sep, _ = self.specials

        def part(kind: str, name: str, segment: int) -> dict[str, Any]:
            return {kind: {"id": name, "type_id": segment}}

        single = [part("SpecialToken", cls, 0), part("Sequence", "A", 0), part("SpecialToken", sep, 0)]
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, part("Sequence", "B", 1), part("SpecialToken", sep, 1)],
            "special_tokens": {t: {"id": t, "ids": [self.ids[t]], "tokens": [t]} for t in (cls, sep)},
        }


def bare(decomposed: str, composed: str) -> list[dict[str, Any]]:
    """The parts of a normaliser that lower-cases and strips accents, between two of Unicode's forms. The second one
    puts Hangul's letters together again."""
    # A mark that vanished from a text's beginning would hide from the library that it is the beginning.
    at_first = {"type": "Replace", "pattern": {"Regex": r"^\p{M}+"}, "content": " "}
    return [
        {"type": decomposed},
        at_first,
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        {"type": composed},
    ]


def json_text(definition: dict[str, Any]) -> str:
    """The text of a tokenizer.json."""
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"))


def numbered(ids: dict[str, Any], where: object) -> list[str]:
    """The pieces of a JSON object piece -> id in the order of their ids; "" for an id without a piece. Raises
    UserError where the ids are no numbers from 0 on, each given once, with some gaps at most."""
    numbers = set(ids.values()) if all(isinstance(i, int) for i in ids.values()) else set()
    if not ids or len(numbers) < len(ids) or min(numbers) < 0 or max(numbers) >= 2 * len(ids):
        raise UserError(
            "model.vocab does not number its pieces from 0", where=where, remedy="check data.vocab"
        )
    tokens = [""] * (max(numbers) + 1)
    for token, i in ids.items():
        tokens[i] = token
    return tokens


def refuse_others(parts: dict[str, tuple[Any, Any]], kind: str, where: object) -> None:
    """Raises UserError for the first part of a tokenizer.json, name -> (value, expected), that is not as
    expected."""
    for part, (value, expected) in parts.items():
        if value != expected:
            raise UserError(
                f"{part}: {value!r}",
                where=where,
                expected=f"{kind}, with {expected or 'none'} there",
                remedy=REMEDY,
            )


def named_parts(value: object, key: str) -> list[dict[str, Any]]:
    """The parts, in order, of a normalizer or pre-tokenizer of a tokenizer.json: of a Sequence those that it lists
    under `key`, however deep."""
    if not isinstance(value, dict):
        return []
    if value.get("type") != "Sequence":
        return [value]
    listed = value.get(key)
    return [
        part for inner in (listed if isinstance(listed, list) else []) for part in named_parts(inner, key)
    ]


def types(parts: Iterable[dict[str, Any]]) -> str:
    """The types of `parts`, as one text."""
    return ", ".join(str(part.get("type")) for part in parts)


def part_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The object under `name`; an empty one where there is none."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def require_specials(tokens: list[str], specials: Specials, kind: str, where: object) -> None:
    """Raises UserError unless all special tokens are among `tokens`."""
    missing = sorted(set(specials) - set(tokens), key=specials.index)
    if missing:
        raise UserError(
            f"the vocabulary lacks {', '.join(missing)}",
            where=where,
            expected=f"a {kind} vocabulary with {' '.join(specials)}",
            remedy="check data.vocab",
        )


def unreachable(i: int) -> str:
    """Name of an id that no text can reach."""
    return f"[unreachable {i}]"
