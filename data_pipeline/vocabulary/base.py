"""Define the base class of vocabularies: pieces with ids, five of them special, and one canonical tokenizer.json.

The tokenizer.json is always written here, not by the library, for every source format; its bytes and their hash are
the vocabulary's identity. Two rules hold for each kind (wordpiece.py, byte_bpe.py, unigram.py):

- special tokens in the text are text: a book that contains "[MASK]" gets no mask;
- where words begin follows from the ids alone (`continuation`), so whole-word masking needs no text.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.errors import UserError

LOWERCASE = {"type": "Lowercase"}
"""The part of a normaliser that lower-cases alone."""
REMEDY = "choose another vocabulary in data.vocab"


class Specials(NamedTuple):
    """The special tokens by their role."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


class Cuts(NamedTuple):
    """Where text can be cut without changing ids, besides white space, and what precedes a word when it is encoded."""

    punctuation: bool = False  # each punctuation character is a word by itself
    chinese: bool = False  # so is each Chinese character
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
    def cuts(self) -> Cuts:
        """Where a word ends besides white space; used to cache the ids of words."""
        return Cuts()

    @property
    def longest_word(self) -> int:
        """Maximum characters of a word that is cut into pieces, a longer one being unknown; 0: there is none."""
        return 0

    @property
    @abstractmethod
    def strips_accents(self) -> bool:
        """Whether accents and other marks are removed from text before it is cut."""

    @abstractmethod
    def whole_word(self, pre_token: str) -> str:
        """Return the piece that would hold the word at the start of `pre_token`, a piece of text as the model sees it,
        as a whole; "" if it starts with none, or with one that no text could reach as one piece."""

    @abstractmethod
    def extended(self, words: list[str]) -> Self:
        """Return this vocabulary with the pieces `words` (each of `whole_word`, and not among the entries) appended,
        each the only piece of its word. Every old id is unchanged. Other pieces may be added between them."""

    def padded(self, size: int) -> Self:
        """Return this vocabulary with entries that no text gives, up to `size`: a model may have rows for them, which
        make its table a multiple of 8 or 64."""
        return replace(self, tokens=[*self.tokens, *map(unreachable, range(self.size, size))])

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """Return the content of the canonical tokenizer.json."""

    def files(self) -> dict[str, str]:
        """Return the text of the vocabulary's files by name: tokenizer.json, and those that older programs read."""
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
        """The library's tokenizer, set to treat special tokens in the text as text."""
        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def added_tokens(self, *more: str) -> list[dict[str, Any]]:
        """List the special tokens and `more` in the form of a tokenizer.json."""
        flags = {
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
        }  # fmt: skip
        listed = sorted((self.ids[token], token) for token in {*self.specials, *more})
        return [{"id": i, "content": token, **flags} for i, token in listed]

    def sequence_template(self) -> dict[str, Any]:
        """Return the post-processor that frames text as in shards: cls A sep, or cls A sep B sep in two segments."""
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


def bare(decomposed: str, composed: str, *, lowercase: bool = True) -> list[dict[str, Any]]:
    """Return the parts of a normaliser that strips accents and perhaps lower-cases, between two Unicode normalisation
    forms. The second recomposes Hangul."""
    # If a mark at the start of a text were removed, the library would not recognise the start.
    at_first = {"type": "Replace", "pattern": {"Regex": r"^\p{M}+"}, "content": " "}
    return [
        {"type": decomposed},
        at_first,
        {"type": "StripAccents"},
        *([LOWERCASE] if lowercase else []),
        {"type": composed},
    ]


def json_text(definition: dict[str, Any]) -> str:
    """Format a tokenizer.json."""
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"))


def numbered(ids: dict[str, Any], where: object) -> list[str]:
    """Return the pieces of a JSON object piece -> id in the order of their ids; "" for an id without a piece. Raises
    UserError unless the ids are distinct integers from 0 on; gaps are allowed, up to twice the number of pieces."""
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
    """Raise UserError for the first part of a tokenizer.json, name -> (value, expected), with an unexpected value."""
    for part, (value, expected) in parts.items():
        if value != expected:
            raise UserError(
                f"{part}: {value!r}",
                where=where,
                expected=f"{kind}, with {expected or 'none'} there",
                remedy=REMEDY,
            )


def named_parts(value: object, key: str) -> list[dict[str, Any]]:
    """Return the parts, in order, of a normalizer or pre-tokenizer of a tokenizer.json; a Sequence is flattened, with
    its parts under `key`, to any depth."""
    if not isinstance(value, dict):
        return []
    if value.get("type") != "Sequence":
        return [value]
    listed = value.get(key)
    return [
        part for inner in (listed if isinstance(listed, list) else []) for part in named_parts(inner, key)
    ]


def types(parts: Iterable[dict[str, Any]]) -> str:
    """Return the types of `parts` as one string."""
    return ", ".join(str(part.get("type")) for part in parts)


def part_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object under `name`; {} if there is none."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def require_specials(tokens: list[str], specials: Specials, kind: str, where: object) -> None:
    """Raise UserError unless all special tokens are among `tokens`."""
    missing = sorted(set(specials) - set(tokens), key=specials.index)
    if missing:
        raise UserError(
            f"the vocabulary lacks {', '.join(missing)}",
            where=where,
            expected=f"a {kind} vocabulary with {' '.join(specials)}",
            remedy="check data.vocab",
        )


def unreachable(i: int) -> str:
    """Return the name of an id that no text can produce."""
    return f"[unreachable {i}]"
