"""Build a WordPiece vocabulary like BERT's from pieces and normalisation flags.

Text is normalised and split into words exactly as BERT does it (`BertNormalizer` with clean_text,
`BertPreTokenizer`); a piece that continues a word begins with ##. An [UNK] replaces a whole word.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.vocabulary.base import (
    Cuts,
    Specials,
    Vocabulary,
    json_text,
    numbered,
    part_of,
    refuse_others,
    require_specials,
    unreachable,
)

SPECIAL_TOKENS = Specials(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
CONTINUATION = "##"
WORD_CHARACTERS = 100
"""Maximum characters of a word; a longer one is one [UNK], as in BERT."""


@dataclass(frozen=True)
class Normalization:
    """Normalisation before text is cut, beyond BERT's clean_text: the flags of the library's BertNormalizer."""

    lowercase: bool
    strip_accents: bool | None = None  # None: as lowercase says
    handle_chinese_chars: bool = True


@dataclass(frozen=True, eq=False)
class WordPiece(Vocabulary):
    """A WordPiece vocabulary, as in BERT."""

    kind: ClassVar[str] = "wordpiece"
    normalization: Normalization
    word_characters: int = WORD_CHARACTERS

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """(size,): whether each piece continues a word."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens], np.bool_)

    @property
    def cuts(self) -> Cuts:
        """Punctuation, and Chinese where the normaliser separates it."""
        return Cuts(punctuation=True, chinese=self.normalization.handle_chinese_chars, before="")

    @property
    def longest_word(self) -> int:
        """As `word_characters` says."""
        return self.word_characters

    @property
    def strips_accents(self) -> bool:
        """As the normalisation says; lower-casing does, unless that says otherwise."""
        stated = self.normalization.strip_accents
        return self.normalization.lowercase if stated is None else stated

    def whole_word(self, pre_token: str) -> str:
        """Return the pre-token itself, which is a word."""
        return pre_token if len(pre_token) <= self.word_characters else ""

    def extended(self, words: list[str]) -> Self:
        """Return this vocabulary with `words` appended. A longer word that starts with one of them, and with no longer
        entry, is cut behind it from now on: the longest entry is taken first."""
        return replace(self, tokens=[*self.tokens, *words])

    def files(self) -> dict[str, str]:
        """Return the text of tokenizer.json and of BERT's vocab.txt. Where accents are not as the case says, also that
        of a tokenizer_config.json, since vocab.txt does not tell."""
        files = {"vocab.txt": "\n".join(self.tokens) + "\n", **super().files()}
        if self.normalization.strip_accents is not None:
            flags = {
                "do_lower_case": self.normalization.lowercase,
                "strip_accents": self.normalization.strip_accents,
                "tokenize_chinese_chars": self.normalization.handle_chinese_chars,
            }
            files["tokenizer_config.json"] = json_text(flags) + "\n"
        return files

    def definition(self) -> dict[str, Any]:
        """Return the content of the canonical tokenizer.json."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added_tokens(),
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": self.normalization.handle_chinese_chars,
                "strip_accents": self.normalization.strip_accents,
                "lowercase": self.normalization.lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": self.sequence_template(),
            "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": self.specials.unk,
                "continuing_subword_prefix": CONTINUATION,
                "max_input_chars_per_word": self.word_characters,
                "vocab": self.ids,
            },
        }


def make_vocabulary(
    tokens: list[str], normalization: Normalization, where: str, word_characters: int = WORD_CHARACTERS
) -> WordPiece:
    """Make a checked vocabulary of `tokens` in the order of their ids. Entries that no text can produce (empty, with a
    line break, or equal to a later one, as in BERT's own loader) keep their id under another name."""
    require_specials(tokens, SPECIAL_TOKENS, "WordPiece", where)
    last = {token: i for i, token in enumerate(tokens)}
    reachable = [
        t if t and last[t] == i and not {"\n", "\r"} & set(t) else None for i, t in enumerate(tokens)
    ]
    named = [unreachable(i) if token is None else token for i, token in enumerate(reachable)]
    return WordPiece(named, SPECIAL_TOKENS, normalization, word_characters)


def from_tokenizer_json(found: dict[str, Any], where: str, lowercase: bool | None = None) -> WordPiece:
    """Load the vocabulary of a tokenizer.json with a WordPiece model; `lowercase` overrides the file's flag. Raises
    UserError unless it is of BERT's kind."""
    model, normalizer, words = (part_of(found, name) for name in ("model", "normalizer", "pre_tokenizer"))
    ids: dict[str, int] = part_of(model, "vocab")
    added = [token for token in found.get("added_tokens") or [] if isinstance(token, dict)]
    foreign = [str(t.get("content")) for t in added if ids.get(str(t.get("content"))) != t.get("id")]
    parts = {
        "normalizer": (normalizer.get("type"), "BertNormalizer"),
        "normalizer.clean_text": (normalizer.get("clean_text"), True),
        "pre_tokenizer": (words.get("type"), "BertPreTokenizer"),
        "model.unk_token": (model.get("unk_token"), SPECIAL_TOKENS.unk),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), CONTINUATION),
        "added tokens that the model lacks": (", ".join(foreign), ""),
    }
    refuse_others(parts, "BERT's WordPiece", where)
    lowercase = bool(normalizer.get("lowercase")) if lowercase is None else lowercase
    normalization = Normalization(
        lowercase, normalizer.get("strip_accents"), normalizer.get("handle_chinese_chars", True)
    )
    longest = model.get("max_input_chars_per_word", WORD_CHARACTERS)
    return make_vocabulary(numbered(ids, where), normalization, where, longest)
