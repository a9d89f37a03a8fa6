"""Build a byte-level BPE vocabulary like RoBERTa's (Radford et al. 2019) from pieces, merges and a lower-casing flag.

Text is cut into words in three steps: lower-casing and accent stripping, if set; every run of Unicode white space
becomes one space, and a sentence always starts with one; GPT-2's pattern then cuts, and a space stays with what follows
it. So a piece is marked Ġ if and only if it begins a word, at any position: the concatenated ids of sentences equal
those of the running text with a space between sentences. RoBERTa's own tokenizer differs at the start of text (no
space) and in runs of white space (separate pieces).
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.base import (
    REMEDY,
    Cuts,
    Specials,
    Vocabulary,
    bare,
    named_parts,
    numbered,
    part_of,
    refuse_others,
    require_specials,
    types,
    unreachable,
)

SPECIAL_TOKENS = Specials(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
"""In RoBERTa's order; <mask> is its last entry."""
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
"""A printable character for each of the 256 bytes, in GPT-2's order."""
WORD = "Ġ"
KIND = "RoBERTa's byte-level BPE"

_ONE_SPACE = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]
# The library's Metaspace puts a space before a text's first word but, unlike ByteLevel, not after a <mask> in it.
_SPACE_BEFORE = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True, eq=False)
class ByteBPE(Vocabulary):
    """A byte-level BPE vocabulary, as in RoBERTa; no text is unknown to it."""

    kind: ClassVar[str] = "bpe"
    merges: list[tuple[str, str]]
    lowercase: bool

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word, that is, does not start with Ġ."""
        special = {*self.specials}
        return np.array([not t.startswith(WORD) and t not in special for t in self.tokens], np.bool_)

    @property
    def cuts(self) -> Cuts:
        """White space only; a word always has a space before it."""
        return Cuts()

    def whole_word(self, pre_token: str) -> str:
        """Return the pre-token if it begins a word, else "": the merges of a piece without Ġ would apply inside of
        other words."""
        return pre_token if pre_token.startswith(WORD) else ""

    def extended(self, words: list[str]) -> Self:
        """Return this vocabulary with `words` appended, and the merges that join the old pieces of each from the left.
        What these make on the way (the first two pieces, the first three, ...) become entries too, before the word.

        The new merges apply after all old ones, and each joins the first piece of a word with the second: they change a
        text without new words only where one of its words begins with the same two pieces as a new word, and there its
        first pieces become one. Their order is irrelevant, since there is only one first pair."""
        tokens, known, merges = [*self.tokens], {*self.tokens}, dict.fromkeys(self.merges)
        for word in words:
            left, *others = (token.value for token in self.tokenizer.model.tokenize(word))
            for right in others:
                merges.setdefault((left, right))
                left += right
                if left not in known:
                    tokens.append(left)
                    known.add(left)
        return replace(self, tokens=tokens, merges=list(merges))

    def files(self) -> dict[str, str]:
        """Return the text of tokenizer.json and of RoBERTa's vocab.json and merges.txt."""
        merges = "".join(f"{a} {b}\n" for a, b in self.merges)
        ids = json.dumps(self.ids, ensure_ascii=False)
        return {"vocab.json": ids + "\n", "merges.txt": "#version: 0.2\n" + merges, **super().files()}

    def definition(self) -> dict[str, Any]:
        """Return the content of the canonical tokenizer.json."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added_tokens(),
            "normalizer": _normalizer(self.lowercase),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_SPACE_BEFORE, _BYTES]},
            "post_processor": {"type": "Sequence", "processors": [_BYTES, self.sequence_template()]},
            "decoder": _BYTES,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": self.specials.unk,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.ids,
                "merges": [list(pair) for pair in self.merges],
            },
        }


def _normalizer(lowercase: bool) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [*(bare("NFD", "NFC") if lowercase else []), *_ONE_SPACE]}


def make_vocabulary(tokens: list[str], merges: list[tuple[str, str]], lowercase: bool, where: str) -> ByteBPE:
    """Make a checked vocabulary of `tokens` in the order of their ids; "" marks an id that no text can produce."""
    require_specials(tokens, SPECIAL_TOKENS, "byte-level BPE", where)
    known = set(tokens)
    if missing := len(set(ALPHABET) - known):
        raise UserError(f"the vocabulary lacks {missing} of the 256 bytes", where=where, expected=KIND)
    for a, b in merges:
        if not {a, b, a + b} <= known:
            raise UserError(f"a merge of pieces that it lacks: {a!r} and {b!r}", where=where, expected=KIND)
    named = [token or unreachable(i) for i, token in enumerate(tokens)]
    return ByteBPE(named, SPECIAL_TOKENS, merges, lowercase)


def from_tokenizer_json(found: dict[str, Any], where: str) -> ByteBPE:
    """Load the vocabulary of a tokenizer.json with a BPE model. Raises UserError unless it is of RoBERTa's kind."""
    model = part_of(found, "model")
    normalizer = named_parts(found.get("normalizer"), "normalizers")
    lowercase = normalizer == named_parts(_normalizer(True), "normalizers")
    cuts = [
        part for part in named_parts(found.get("pre_tokenizer"), "pretokenizers") if part != _SPACE_BEFORE
    ]
    ids: dict[str, int] = part_of(model, "vocab")
    added = [token for token in found.get("added_tokens") or [] if isinstance(token, dict)]
    foreign = [str(t.get("content")) for t in added if ids.get(str(t.get("content"))) != t.get("id")]
    parts = {
        "normalizer": ("" if lowercase else types(p for p in normalizer if p not in _ONE_SPACE), ""),
        "pre_tokenizer": (types(cuts), "ByteLevel"),
        "pre_tokenizer.use_regex": (cuts[0].get("use_regex", True) if cuts else None, True),
        "model.dropout": (model.get("dropout") or None, None),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix") or "", ""),
        "model.end_of_word_suffix": (model.get("end_of_word_suffix") or "", ""),
        "model.byte_fallback": (model.get("byte_fallback", False), False),
        "model.ignore_merges": (model.get("ignore_merges", False), False),
        "added tokens that the model lacks": (", ".join(foreign), ""),
    }
    refuse_others(parts, KIND, where)
    return make_vocabulary(numbered(ids, where), _merges(model.get("merges"), where), lowercase, where)


def from_vocab_and_merges(ids: dict[str, Any], merges: str, where: str) -> ByteBPE:
    """Load the vocabulary of RoBERTa's two files: the parsed vocab.json, and the text of merges.txt."""
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    return make_vocabulary(numbered(ids, where), _merges(lines, where), False, where)


def _merges(listed: object, where: str) -> list[tuple[str, str]]:
    """Return merges as pairs, from pairs or from lines of two pieces separated by a space."""
    lines = listed if isinstance(listed, list) else []
    pairs = [line.rstrip("\r").split(" ") if isinstance(line, str) else line for line in lines]
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p for p in pair)):
            raise UserError(f"merge {number} is {str(pair)[:80]}", where=where, expected=KIND, remedy=REMEDY)
    return [(a, b) for a, b in pairs]
