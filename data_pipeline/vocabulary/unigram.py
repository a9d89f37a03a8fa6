"""Build a unigram vocabulary, SentencePiece's as ALBERT and XLNet have it, from pieces, their scores and a normaliser.

(Kudo 2018; its marks and its escape of spaces: Kudo and Richardson 2018.) The normaliser is the vocabulary's own; after
it every run of white space (Unicode's, and the mark ▁ itself) becomes one space, and there is always one in front of
a sentence; text is cut at spaces, and ▁ stands for the space. So each word begins with a piece that is marked ▁ and
no other piece is, wherever the word stands: the ids of sentences one after another are those of the running text with
a space between them. Where nothing parts words by white space (Chinese, Japanese, Thai), a word is as long as what
stands between two spaces. A character that no piece holds is <unk>, never a word's beginning: ▁ is a piece of its own.
"""

import base64
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from data_pipeline.errors import UserError
from data_pipeline.vocabulary import byte_bpe
from data_pipeline.vocabulary.base import (
    REMEDY,
    Cuts,
    Specials,
    Vocabulary,
    bare,
    json_text,
    named_parts,
    part_of,
    refuse_others,
    types,
)

SPECIAL_TOKENS = Specials(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")


class Layout(NamedTuple):
    """Names of the special tokens, and where a trained vocabulary has them."""

    specials: Specials
    first: tuple[str, ...]
    """Entries from 0 on, in this order."""
    last: tuple[str, ...] = ()


LAYOUTS = {
    "": Layout(SPECIAL_TOKENS, first=SPECIAL_TOKENS),
    "roberta": Layout(byte_bpe.SPECIAL_TOKENS, byte_bpe.FIRST_TOKENS, (byte_bpe.SPECIAL_TOKENS.mask,)),
}
"""By the value of vocabulary.specials: ALBERT's, and XLM-R's, which are RoBERTa's."""
WORD = "▁"
KIND = "ALBERT's, XLNet's or T5's unigram"

_NAMES = {  # what the specials are called elsewhere; the first one found counts
    "pad": ("<pad>", "[PAD]"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_ONE_SPACE = [
    {"type": "Replace", "pattern": {"String": WORD}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]
_BY_CHARACTER = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt")


def trained_normalizer(lowercase: bool) -> list[dict[str, Any]]:
    """The normaliser of vocabularies that are trained here: NFKC; with `lowercase` without accents, as ALBERT's."""
    return bare("NFKD", "NFKC") if lowercase else [{"type": "NFKC"}]


@dataclass(frozen=True, eq=False)
class Unigram(Vocabulary):
    """ALBERT's and XLNet's kind of vocabulary."""

    kind: ClassVar[str] = "unigram"
    scores: list[float]  # logarithm of each piece's probability
    normalizer: list[dict[str, Any]]  # as tokenizer.json names its parts, white space apart
    controls: tuple[str, ...] = ()  # further tokens that no text reaches

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word: whether it has no ▁ in front."""
        special = {*self.specials, *self.controls} - {self.specials.unk}
        return np.array([not t.startswith(WORD) and t not in special for t in self.tokens], np.bool_)

    @property
    def cuts(self) -> Cuts:
        """White space only; a word always has a space before it."""
        return Cuts()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The library's tokenizer, which takes special tokens in the text for text. To the model they are pieces like
        others, which it would find in the text: here they have a space in front, which no word holds."""
        definition = self.definition()
        hidden = {*self.specials, *self.controls}
        definition["model"]["vocab"] = [
            [f" {piece}" if piece in hidden else piece, score]
            for piece, score in zip(self.tokens, self.scores, strict=True)
        ]
        definition["added_tokens"] = []
        definition["post_processor"] = None
        return Tokenizer.from_str(json_text(definition))

    def definition(self) -> dict[str, Any]:
        """What the canonical tokenizer.json says."""
        spaces = {"type": "Metaspace", "replacement": WORD, "prepend_scheme": "first", "split": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added_tokens(*self.controls),
            "normalizer": {"type": "Sequence", "normalizers": [*self.normalizer, *_ONE_SPACE]},
            "pre_tokenizer": spaces,  # first, not always: behind a [MASK] in the text no word begins by itself
            "post_processor": self.sequence_template(),
            "decoder": {**spaces, "prepend_scheme": "always"},
            "model": {
                "type": "Unigram",
                "unk_id": self.unk,
                "byte_fallback": False,
                "vocab": [list(entry) for entry in zip(self.tokens, self.scores, strict=True)],
            },
        }


def from_tokenizer_json(found: dict[str, Any], where: str) -> Unigram:
    """The vocabulary of a tokenizer.json with a unigram model. Special tokens that it lacks (T5 has no [CLS] and no
    [MASK]) are added at the end. Raises UserError for one of another structure."""
    model = part_of(found, "model")
    pieces, scores = _entries(model.get("vocab"), where)
    cuts = named_parts(found.get("pre_tokenizer"), "pretokenizers")
    cuts = [part for part in cuts if part.get("type") != "WhitespaceSplit"]
    spaces = cuts[0] if cuts else {}
    unk = model.get("unk_id")
    parts = {
        "model.unk_id": (isinstance(unk, int) and 0 <= unk < len(pieces), True),
        "model.byte_fallback": (model.get("byte_fallback", False), False),
        "pre_tokenizer": (types(cuts), "Metaspace"),
        "pre_tokenizer.replacement": (spaces.get("replacement"), WORD),
        "pre_tokenizer.prepend_scheme": (spaces.get("prepend_scheme", "always") in ("always", "first"), True),
        "pre_tokenizer.add_prefix_space": (spaces.get("add_prefix_space", True), True),
        "pre_tokenizer.split": (spaces.get("split", True), True),
        f"a piece {WORD}": (WORD in pieces, True),
    }
    refuse_others(parts, KIND, where)
    controls = _added(found.get("added_tokens"), pieces, scores, where)
    specials = _roles(pieces, scores, pieces[int(unk or 0)])
    if len(set(pieces)) < len(pieces):
        raise UserError("model.vocab lists a piece twice", where=where, expected=KIND, remedy=REMEDY)
    controls = tuple(sorted(set(controls) - set(specials)))
    return Unigram(pieces, specials, scores, _normalizer(found.get("normalizer"), where), controls)


def _roles(pieces: list[str], scores: list[float], unk: str) -> Specials:
    """The special tokens among the pieces; those that are missing are added to them."""
    names = {role: next((name for name in known if name in pieces), "") for role, known in _NAMES.items()}
    for role, name in names.items():
        if not name:
            names[role] = getattr(SPECIAL_TOKENS, role)
            pieces.append(names[role])
            scores.append(0.0)
    return Specials(unk=unk, **names)


def _entries(listed: object, where: str) -> tuple[list[str], list[float]]:
    """Pieces and scores of model.vocab."""
    entries = listed if isinstance(listed, list) else []
    for entry in entries:
        if not (
            isinstance(entry, list)
            and len(entry) == 2
            and isinstance(entry[0], str)
            and isinstance(entry[1], int | float)
        ):
            raise UserError(f"model.vocab holds {str(entry)[:80]}", where=where, expected="[piece, score]")
    return [piece for piece, _ in entries], [float(score) for _, score in entries]


def _added(listed: object, pieces: list[str], scores: list[float], where: str) -> tuple[str, ...]:
    """The special tokens that the file lists beside its model; those that follow the model's pieces are added to
    them."""
    added = [token for token in (listed if isinstance(listed, list) else []) if isinstance(token, dict)]
    numbers = {piece: i for i, piece in enumerate(pieces)}
    for token in sorted(added, key=lambda token: int(token.get("id", -1))):
        name = str(token.get("content"))
        if token.get("id") == len(pieces) and name not in numbers:
            pieces.append(name)
            scores.append(0.0)
        elif numbers.get(name) != token.get("id") or not token.get("special"):
            raise UserError(
                f"the added token {name!r}",
                where=where,
                expected=f"{KIND}, with special ones only",
                remedy=REMEDY,
            )
    return tuple(str(token["content"]) for token in added)


def _normalizer(found: object, where: str) -> list[dict[str, Any]]:
    """The parts of a normaliser, without those for white space. Raises UserError for a part that could join or change
    what white space parts: words could not be remembered."""
    kept = []
    for part in named_parts(found, "normalizers"):
        kind, pattern = part.get("type"), part_of(part, "pattern")
        if kind == "Strip" or (kind == "Replace" and _is_space(pattern)):
            continue
        text = pattern.get("String")
        plain = kind == "Replace" and isinstance(text, str) and not any(c.isspace() for c in text)
        known = kind in _BY_CHARACTER or part in trained_normalizer(True)
        if not (known or plain or (kind == "Precompiled" and _keeps_spaces(part))):
            raise UserError(f"normalizer: {str(part)[:80]}", where=where, expected=KIND, remedy=REMEDY)
        kept.append(part)
    return kept


def _is_space(pattern: dict[str, Any]) -> bool:
    """Whether a pattern matches white space, or its mark, alone."""
    return pattern in ({"Regex": " {2,}"}, {"Regex": r"\s+"}, {"String": WORD})


def _keeps_spaces(part: dict[str, Any]) -> bool:
    """Whether SentencePiece's table of replacements leaves a space alone. The library looks up what a reader takes for
    one character, and that may be a space with combining marks or invisible characters beside it."""
    try:
        table = normalizers.Precompiled(base64.b64decode(part.get("precompiled_charsmap") or ""))
    except Exception:  # the library raises nothing more special
        return False
    joined = (
        chr(c)
        for c in range(0x300, 0x1F400)
        if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me", "Cf", "Sk")
    )
    return all(
        table.normalize_str(f"x {c} ") == f"x {table.normalize_str(c)} " for c in joined if not c.isspace()
    )
