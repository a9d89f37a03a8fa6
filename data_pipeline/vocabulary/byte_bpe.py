"""Build a byte-level BPE vocabulary like RoBERTa's or ModernBERT's from pieces, merges and a form of normalisation.

The kind is that of GPT-2 (Radford et al. 2019). Text is cut into words in three steps: lower-casing and accent
stripping, or NFC, if set; every run of Unicode white space becomes one space, and a sentence always starts with one;
GPT-2's pattern then cuts, and a space stays with what follows it. So a piece is marked Ġ if and only if it begins a
word, at any position: the concatenated ids of sentences equal those of the running text with a space between
sentences. RoBERTa's own tokenizer and ModernBERT's differ at the start of text (no space) and in runs of white space
(pieces of their own).
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.base import (
    LOWERCASE,
    REMEDY,
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
from data_pipeline.vocabulary.wordpiece import SPECIAL_TOKENS as BERT_SPECIAL_TOKENS

SPECIAL_TOKENS = Specials(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
"""In RoBERTa's order; <mask> is its last entry."""
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
"""A printable character for each of the 256 bytes, in GPT-2's order."""
NEVER_IN_UTF8 = {*"ÀÁõö÷øùúûüýþÿ"}
"""Those of them that no text has: 0xC0, 0xC1 and 0xF5 to 0xFF. GPT-NeoX's vocabulary, which is ModernBERT's, lacks
them."""
PLACEHOLDERS = {"|||IP_ADDRESS|||", "|||EMAIL_ADDRESS|||", "|||PHONE_NUMBER|||"}
"""ModernBERT's entries for what was taken out of its corpus (Dolma). As special tokens are, they are text here."""
WORD = "Ġ"
KIND = "RoBERTa's or ModernBERT's byte-level BPE"

Form = Literal["", "lowercase", "lowercase_accents", "strip_accents", "nfc"]
"""Normalisation before white space: none, lower case without accents, lower case with them, the case as it is without
them, or Unicode's composed form."""

_FORMS: dict[Form, list[dict[str, Any]]] = {
    "": [],
    "lowercase": bare("NFD", "NFC"),
    "lowercase_accents": [LOWERCASE],
    "strip_accents": bare("NFD", "NFC", lowercase=False),
    "nfc": [{"type": "NFC"}],
}
_ONE_SPACE = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]
# The library's Metaspace puts a space before a text's first word but, unlike ByteLevel, not after a <mask> in it.
_SPACE_BEFORE = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@dataclass(frozen=True, eq=False)
class ByteBPE(Vocabulary):
    """A byte-level BPE vocabulary, as in RoBERTa or ModernBERT; no text is unknown to it."""

    kind: ClassVar[str] = "bpe"
    merges: list[tuple[str, str]]
    form: Form = ""

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word, that is, does not start with Ġ."""
        special = {*self.specials}
        return np.array([not t.startswith(WORD) and t not in special for t in self.tokens], np.bool_)

    @property
    def strips_accents(self) -> bool:
        """As the normalisation says."""
        return {"type": "StripAccents"} in _FORMS[self.form]

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
            "normalizer": _normalizer(self.form),
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


def _normalizer(form: Form) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [*_FORMS[form], *_ONE_SPACE]}


def _form(parts: list[dict[str, Any]]) -> Form | None:
    """Return the form that a normaliser of these parts gives, whether or not it joins white space; None for others."""
    without_spaces = [part for part in parts if part not in _ONE_SPACE]
    return next((form for form, known in _FORMS.items() if known == without_spaces), None)


def form_of(lowercase: bool, strip_accents: bool) -> Form:
    """Return the form that lower-cases, or strips accents, or both, or neither."""
    if strip_accents:
        return "lowercase" if lowercase else "strip_accents"
    return "lowercase_accents" if lowercase else ""


def make_vocabulary(tokens: list[str], merges: list[tuple[str, str]], form: Form, where: str) -> ByteBPE:
    """Make a checked vocabulary of `tokens` in the order of their ids; "" marks an id that no text can produce. The
    special tokens are named as BERT's if it has all of those, as ModernBERT's does, else as RoBERTa's."""
    known = set(tokens)
    specials = BERT_SPECIAL_TOKENS if known.issuperset(BERT_SPECIAL_TOKENS) else SPECIAL_TOKENS
    require_specials(tokens, specials, "byte-level BPE", where)
    if missing := len(set(ALPHABET) - NEVER_IN_UTF8 - known):
        raise UserError(
            f"the vocabulary lacks {missing} of the 243 bytes of UTF-8 text", where=where, expected=KIND
        )
    for a, b in merges:
        if not {a, b, a + b} <= known:
            raise UserError(f"a merge of pieces that it lacks: {a!r} and {b!r}", where=where, expected=KIND)
    named = [token or unreachable(i) for i, token in enumerate(tokens)]
    return ByteBPE(named, specials, merges, form)


def from_tokenizer_json(found: dict[str, Any], where: str) -> ByteBPE:
    """Load the vocabulary of a tokenizer.json with a BPE model. Raises UserError unless it is of RoBERTa's kind or of
    ModernBERT's, which has its special tokens, runs of spaces and placeholders beside the model: they are entries
    here, which no text gives."""
    model = part_of(found, "model")
    normalizer = named_parts(found.get("normalizer"), "normalizers")
    form = _form(normalizer)
    cuts = [
        part for part in named_parts(found.get("pre_tokenizer"), "pretokenizers") if part != _SPACE_BEFORE
    ]
    ids: dict[str, Any] = dict(part_of(model, "vocab"))
    foreign = []
    for token in found.get("added_tokens") or []:
        content, number = str(token.get("content")), token.get("id")
        if not (token.get("special") or content.isspace() or content in PLACEHOLDERS):
            foreign += [content] if ids.get(content) != number else []
        elif ids.setdefault(content, number) != number:
            foreign.append(content)
    parts = {
        "normalizer": (types(p for p in normalizer if p not in _ONE_SPACE) if form is None else "", ""),
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
    return make_vocabulary(numbered(ids, where), _merges(model.get("merges"), where), form or "", where)


def from_vocab_and_merges(ids: dict[str, Any], merges: str, where: str) -> ByteBPE:
    """Load the vocabulary of RoBERTa's two files: the parsed vocab.json, and the text of merges.txt."""
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    return make_vocabulary(numbered(ids, where), _merges(lines, where), "", where)


def _merges(listed: object, where: str) -> list[tuple[str, str]]:
    """Return merges as pairs, from pairs or from lines of two pieces separated by a space."""
    lines = listed if isinstance(listed, list) else []
    pairs = [line.rstrip("\r").split(" ") if isinstance(line, str) else line for line in lines]
    for number, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p for p in pair)):
            raise UserError(f"merge {number} is {str(pair)[:80]}", where=where, expected=KIND, remedy=REMEDY)
    return [(a, b) for a, b in pairs]
