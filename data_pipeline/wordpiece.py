"""Pieces and the way text is normalised in, a Vocabulary out: BERT's WordPiece, and nothing else.

Whatever file it came from, a vocabulary has one canonical tokenizer.json, written here and not by the library, whose
bytes and hash are its identity. Text is normalised and parted into words exactly as BERT does it (`BertNormalizer`
with clean_text, `BertPreTokenizer`). Special tokens that stand in the text are text: a book that says "[MASK]" gets
no mask, as in google-research/bert.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.errors import UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
WORD_CHARACTERS = 100
"""A longer word is one [UNK], as in BERT."""


@dataclass(frozen=True)
class Normalization:
    """How text is changed before it is cut, beyond BERT's clean_text: the flags of the library's BertNormalizer."""

    lowercase: bool
    strip_accents: bool | None = None  # None: as lowercase says
    handle_chinese_chars: bool = True


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Pieces and their ids. Immutable; equal vocabularies have equal `sha256`."""

    tokens: list[str]  # id -> piece
    normalization: Normalization
    word_characters: int = WORD_CHARACTERS

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
        return self.ids[PAD]

    @property
    def unk(self) -> int:
        return self.ids[UNK]

    @property
    def cls(self) -> int:
        return self.ids[CLS]

    @property
    def sep(self) -> int:
        return self.ids[SEP]

    @property
    def mask(self) -> int:
        return self.ids[MASK]

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece goes on within a word."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens], np.bool_)

    @cached_property
    def json(self) -> str:
        """The canonical tokenizer.json, complete for the tokenizers and transformers libraries."""
        return json.dumps(_tokenizer_json(self), ensure_ascii=False, separators=(",", ":"))

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


def make_vocabulary(
    tokens: list[str], normalization: Normalization, where: str, word_characters: int = WORD_CHARACTERS
) -> Vocabulary:
    """A checked vocabulary of `tokens` in the order of their ids. Entries that no text can reach (empty ones, all but
    the last of equal ones, as in BERT's own loader, and those with a line break) keep their id under another name."""
    last = {token: i for i, token in enumerate(tokens)}
    missing = [token for token in SPECIAL_TOKENS if token not in last]
    if missing:
        raise UserError(
            f"the vocabulary lacks {', '.join(missing)}",
            where=where,
            expected=f"a WordPiece vocabulary with {' '.join(SPECIAL_TOKENS)}",
            remedy="check data.vocab",
        )
    reachable = [
        t if t and last[t] == i and not {"\n", "\r"} & set(t) else None for i, t in enumerate(tokens)
    ]
    named = [f"[unreachable {i}]" if token is None else token for i, token in enumerate(reachable)]
    return Vocabulary(named, normalization, word_characters)


def _tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = sorted((vocabulary.ids[token], token) for token in SPECIAL_TOKENS)

    def part(kind: str, name: str, segment: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": segment}}

    single = [part("SpecialToken", CLS, 0), part("Sequence", "A", 0), part("SpecialToken", SEP, 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in special],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": vocabulary.normalization.handle_chinese_chars,
            "strip_accents": vocabulary.normalization.strip_accents,
            "lowercase": vocabulary.normalization.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, part("Sequence", "B", 1), part("SpecialToken", SEP, 1)],
            "special_tokens": {t: {"id": t, "ids": [vocabulary.ids[t]], "tokens": [t]} for t in (CLS, SEP)},
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": vocabulary.word_characters,
            "vocab": vocabulary.ids,
        },
    }
