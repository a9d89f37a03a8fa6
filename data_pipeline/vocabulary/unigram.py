"""Build a SentencePiece unigram vocabulary, as in ALBERT and XLNet, from pieces, their scores and a normaliser.

(Kudo 2018; its marks and its escape of spaces: Kudo and Richardson 2018.) After the vocabulary's own normaliser, every
run of white space (Unicode's, and the mark ▁ itself) becomes one space, and a sentence always starts with one; text is
cut at spaces, and ▁ represents the space. So a piece is marked ▁ if and only if it begins a word, at any position: the
concatenated ids of sentences equal those of the running text with a space between sentences. In scripts without
spaces between words (Chinese, Japanese, Thai), a word is the text between two spaces. A character that no piece holds
is <unk> and never begins a word: ▁ is a separate piece.
"""

import base64
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from data_pipeline.errors import UserError
from data_pipeline.vocabulary import byte_bpe
from data_pipeline.vocabulary.base import (
    LOWERCASE,
    REMEDY,
    Specials,
    Vocabulary,
    bare,
    json_text,
    named_parts,
    part_of,
    refuse_others,
    types,
)

# Compute the score of the best way to cut a word into pieces (Kudo 2018, section 3.2).

UNKNOWN_PENALTY = 10.0
"""An unknown character's score is so much below the least score of all pieces, as in SentencePiece."""


def best_score(word: str, scores: Mapping[str, float], unknown: float) -> float:
    """Return the greatest sum of scores over all ways to cut `word` into pieces (Viterbi). A character that is no piece
    by itself may also be cut off with the score `unknown`."""
    best = [0.0]
    for end in range(1, len(word) + 1):
        cut = [best[start] + scores[word[start:end]] for start in range(end) if word[start:end] in scores]
        if word[end - 1] not in scores:
            cut.append(best[end - 1] + unknown)
        best.append(max(cut))
    return best[-1]


# Build vocabularies, and load them from a tokenizer.json.

SPECIAL_TOKENS = Specials(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")


class Layout(NamedTuple):
    """Names of the special tokens, and their positions in a trained vocabulary."""

    specials: Specials
    first: tuple[str, ...]
    """Entries from 0 on, in this order."""
    last: tuple[str, ...] = ()

    @property
    def controls(self) -> tuple[str, ...]:
        """Return the entries that are no special tokens of ours, which no text can produce either."""
        return tuple(token for token in (*self.first, *self.last) if token not in self.specials)


XLNET_TOKENS = Specials(pad="<pad>", unk="<unk>", cls="<cls>", sep="<sep>", mask="<mask>")
LAYOUTS = {
    "": Layout(SPECIAL_TOKENS, first=SPECIAL_TOKENS),
    "roberta": Layout(byte_bpe.SPECIAL_TOKENS, byte_bpe.FIRST_TOKENS, (byte_bpe.SPECIAL_TOKENS.mask,)),
    "xlnet": Layout(
        XLNET_TOKENS, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    ),
}
"""By the value of vocabulary.specials: ALBERT's, XLM-R's, which equal RoBERTa's, and XLNet's."""
WORD = "▁"
MARGIN, DIGITS = 0.01, 4
"""By how much a new word's score is above that of its best old pieces, and the digits that it is rounded to. Small, but
more than the rounding of sums in float32, in which SentencePiece keeps scores: another cut of a text wins only if it
was within this of the best before."""
KIND = "ALBERT's, XLNet's or T5's unigram"

_NAMES = {  # names of the specials in other vocabularies; the first one present is used
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


def trained_normalizer(lowercase: bool, strip_accents: bool) -> list[dict[str, Any]]:
    """Return the normaliser of vocabularies trained here: NFKC, in lower case and without accents if asked for, as in
    ALBERT."""
    if strip_accents:
        return bare("NFKD", "NFKC", lowercase=lowercase)
    return [{"type": "NFKC"}, *([LOWERCASE] if lowercase else [])]


@dataclass(frozen=True, eq=False)
class Unigram(Vocabulary):
    """A unigram vocabulary, as in ALBERT and XLNet."""

    kind: ClassVar[str] = "unigram"
    scores: list[float]  # log probability of each piece
    normalizer: list[dict[str, Any]]  # parts in the form of tokenizer.json, without those for white space
    controls: tuple[str, ...] = ()  # further tokens that no text can produce

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word, that is, does not start with ▁."""
        special = {*self.specials, *self.controls} - {self.specials.unk}
        return np.array([not t.startswith(WORD) and t not in special for t in self.tokens], np.bool_)

    @property
    def strips_accents(self) -> bool:
        """As the normaliser says."""
        return {"type": "StripAccents"} in self.normalizer

    def whole_word(self, pre_token: str) -> str:
        """Return ▁ and the letters, marks and digits behind it: punctuation behind a word is not a part of it. "" for a
        word behind punctuation: a piece without ▁ would be found inside of other words."""
        if not pre_token.startswith(WORD):
            return ""
        letters = "".join(takewhile(_in_word, pre_token[1:]))
        return WORD + letters if letters else ""

    def padded(self, size: int) -> Self:
        """Return this vocabulary with entries that no text gives, since a space is in each, up to `size`."""
        longer = super().padded(size)
        return replace(longer, scores=[*self.scores, *[min(self.scores)] * (longer.size - self.size)])

    def extended(self, words: list[str]) -> Self:
        """Return this vocabulary with `words` appended. The score of each is MARGIN above that of the best way to cut
        it, so that it is the best way, and what can be cut only as before, or better otherwise, is."""
        scores = dict(zip(self.tokens, self.scores, strict=True))
        unknown = min(self.scores) - UNKNOWN_PENALTY
        for word in sorted(
            words, key=lambda word: (len(word), word)
        ):  # a long one may be cut into short ones
            scores[word] = round(best_score(word, scores, unknown) + MARGIN, DIGITS)
        appended = [*self.tokens, *words]
        return replace(self, tokens=appended, scores=[scores[token] for token in appended])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The library's tokenizer, set to treat special tokens in the text as text. The model would find them in the
        text like any other piece, so here they start with a space, which no word contains."""
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
        """Return the content of the canonical tokenizer.json."""
        spaces = {"type": "Metaspace", "replacement": WORD, "prepend_scheme": "first", "split": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added_tokens(*self.controls),
            "normalizer": {"type": "Sequence", "normalizers": [*self.normalizer, *_ONE_SPACE]},
            "pre_tokenizer": spaces,  # first, not always: a [MASK] in the text does not start a new word
            "post_processor": self.sequence_template(),
            "decoder": {**spaces, "prepend_scheme": "always"},
            "model": {
                "type": "Unigram",
                "unk_id": self.unk,
                "byte_fallback": False,
                "vocab": [list(entry) for entry in zip(self.tokens, self.scores, strict=True)],
            },
        }


def _in_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def from_tokenizer_json(found: dict[str, Any], where: str) -> Unigram:
    """Load the vocabulary of a tokenizer.json with a unigram model. Missing special tokens (T5 has no [CLS] and no
    [MASK]) are added at the end. Raises UserError for any other structure."""
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
    """Find the special tokens among the pieces; append missing ones to `pieces` and `scores`."""
    names = {role: next((name for name in known if name in pieces), "") for role, known in _NAMES.items()}
    for role, name in names.items():
        if not name:
            names[role] = getattr(SPECIAL_TOKENS, role)
            pieces.append(names[role])
            scores.append(0.0)
    return Specials(unk=unk, **names)


def _entries(listed: object, where: str) -> tuple[list[str], list[float]]:
    """Return the pieces and scores of model.vocab."""
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
    """Return the special tokens that the file lists outside its model; append those that follow the model's pieces to
    `pieces` and `scores`."""
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
    """Return the parts of a normaliser without those for white space. Raises UserError for a part that could join or
    change what white space separates: words could not be cached."""
    kept = []
    for part in named_parts(found, "normalizers"):
        kind, pattern = part.get("type"), part_of(part, "pattern")
        if kind == "Strip" or (kind == "Replace" and _is_space(pattern)):
            continue
        text = pattern.get("String")
        plain = kind == "Replace" and isinstance(text, str) and not any(c.isspace() for c in text)
        known = kind in _BY_CHARACTER or part in trained_normalizer(True, True)
        if not (known or plain or (kind == "Precompiled" and _keeps_spaces(part))):
            raise UserError(f"normalizer: {str(part)[:80]}", where=where, expected=KIND, remedy=REMEDY)
        kept.append(part)
    return kept


def _is_space(pattern: dict[str, Any]) -> bool:
    """Return whether a pattern matches only white space or its mark."""
    return pattern in ({"Regex": " {2,}"}, {"Regex": r"\s+"}, {"String": WORD})


def _keeps_spaces(part: dict[str, Any]) -> bool:
    """Return whether SentencePiece's replacement table leaves spaces unchanged. The library looks up grapheme clusters,
    which may be a space with combining marks or invisible characters."""
    try:
        table = normalizers.Precompiled(base64.b64decode(part.get("precompiled_charsmap") or ""))
    except Exception:  # the library raises nothing more specific
        return False
    joined = (
        chr(c)
        for c in range(0x300, 0x1F400)
        if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me", "Cf", "Sk")
    )
    return all(
        table.normalize_str(f"x {c} ") == f"x {table.normalize_str(c)} " for c in joined if not c.isspace()
    )
