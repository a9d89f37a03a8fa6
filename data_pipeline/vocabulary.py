"""Documents, a tokenizer.json or a vocab.txt in, a Vocabulary (wordpiece.py) out: trained, loaded, saved.

A trained vocabulary is the same for the same text on any number of threads. Left to itself the library's trainer
numbers the single-character pieces in the order of a randomly seeded hash map, and breaks ties between merges by
these numbers: two runs differ. So the alphabet is counted and numbered here, and handed to the trainer; everything
that follows in it is a function of these numbers and the word counts.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.wordpiece import (
    CONTINUATION,
    SPECIAL_TOKENS,
    UNK,
    WORD_CHARACTERS,
    Normalization,
    Vocabulary,
    make_vocabulary,
)

__all__ = ["Vocabulary", "load_vocabulary", "save_vocabulary", "train_vocabulary"]

ALPHABET_SHARE = 8
"""Single characters are at most one in so many entries of the vocabulary; rarer ones become [UNK]."""
PIECE = 1 << 16
"""Characters handed to the library at a time, about: it needs some hundred bytes for each."""


def train_vocabulary(documents: Iterable[Document], settings: VocabularySettings) -> Vocabulary:
    """BERT's vocabulary of the documents' words: the special tokens ([PAD] is 0), the alphabet, then the merges.

    Fewer than `settings.size` entries if the text has no more pairs that are frequent enough. Raises UserError if
    there is no text, or no room for more than the special tokens."""
    if settings.size < 2 * ALPHABET_SHARE:
        raise UserError(
            f"{settings.size} entries are too few",
            where="vocabulary.size",
            expected=f"at least {2 * ALPHABET_SHARE}",
        )
    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    # Twice through the text, once for the alphabet: kept in memory, as settings.sample_mb bounds it.
    texts = [document.text for document in documents]
    alphabet = _alphabet(texts, normalizer, settings)
    if not alphabet:
        raise UserError(
            "there is no text to learn a vocabulary from", where="data.sources", remedy="name more text"
        )
    joined = (words.pre_tokenize_str(normalizer.normalize_str("a" + c))[0][0] for c in alphabet)
    # Punctuation and Chinese characters never go on within a word: no piece for that.
    inner = [CONTINUATION + word[1:] for word in joined if len(word) > 1]
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.min_frequency,
        # The trainer's word for "numbered first, in this order".
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in _pieces(text)), trainer)
    ids = tokenizer.get_vocab()
    return make_vocabulary(
        sorted(ids, key=ids.__getitem__), Normalization(settings.lowercase), "data.sources"
    )


def _alphabet(
    texts: list[str], normalizer: normalizers.Normalizer, settings: VocabularySettings
) -> list[str]:
    """The most frequent characters of the normalised text, sorted. BERT's normaliser changes each character by
    itself, so it is enough to normalise every distinct one."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for c in normalizer.normalize_str(character):
            counts[c] += count
    frequent = [(-n, c) for c, n in counts.items() if n >= settings.min_frequency and not c.isspace()]
    return sorted(c for _, c in sorted(frequent)[: settings.size // ALPHABET_SHARE])


def _pieces(text: str) -> Iterator[str]:
    """`text` cut at spaces into pieces of about PIECE characters, none of which a word spans."""
    start = 0
    while (space := text.find(" ", start + PIECE)) >= 0:
        yield text[start:space]
        start = space
    yield text[start:]


def load_vocabulary(path: str | Path, lowercase: bool | None = None) -> Vocabulary:
    """The vocabulary in `path`: a tokenizer.json, a vocab.txt, or a folder that holds one (the former first).

    A vocab.txt does not say whether text is lower-cased. In this order decide: `lowercase`; a tokenizer_config.json
    beside it; whether no piece of it has an upper-case letter. Raises UserError for anything that is no BERT
    WordPiece vocabulary."""
    if not str(path):
        raise UserError(
            "no vocabulary is named", where="data.vocab", remedy="name one, or run maskmill vocab"
        )
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).is_file()]
        if not found:
            raise UserError(
                "no vocabulary in this folder",
                where=path,
                expected="a tokenizer.json or vocab.txt",
                remedy="run maskmill vocab first",
            )
        path = found[0]
    text = _read(path)
    if path.suffix == ".json":
        return _from_tokenizer_json(_json(text, path), path, lowercase)
    tokens = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return make_vocabulary(tokens, _normalization_beside(path, tokens, lowercase), str(path))


def save_vocabulary(vocabulary: Vocabulary, folder: str | Path) -> None:
    """Writes tokenizer.json and vocab.txt into `folder`; each appears whole or not at all."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("vocab.txt", "\n".join(vocabulary.tokens) + "\n"),
            ("tokenizer.json", vocabulary.json),
        ):
            partial = folder / f"{name}.partial"
            partial.write_bytes(text.encode())
            os.replace(partial, folder / name)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=folder, remedy="check data.vocab"
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("the vocabulary is not UTF-8 text", where=path, remedy="check data.vocab") from error
    except OSError as error:
        raise UserError(
            f"the vocabulary cannot be read: {error.strerror}",
            where=path,
            expected="a tokenizer.json, a vocab.txt, or a folder that holds one",
            remedy="check data.vocab, or run maskmill vocab first",
        ) from error


def _json(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", where=path, remedy="check data.vocab") from error
    if not isinstance(found, dict):
        raise UserError(
            "not a tokenizer.json", where=path, expected="a JSON object", remedy="check data.vocab"
        )
    return found


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _normalization_beside(path: Path, tokens: list[str], lowercase: bool | None) -> Normalization:
    config_path = path.with_name("tokenizer_config.json")
    config = _json(_read(config_path), config_path) if config_path.is_file() else {}
    if lowercase is None:
        bare = [token for token in tokens if not token.startswith(("[", "<"))]
        lowercase = bool(config.get("do_lower_case", all(token == token.lower() for token in bare)))
    return Normalization(lowercase, config.get("strip_accents"), config.get("tokenize_chinese_chars", True))


def _from_tokenizer_json(found: dict[str, Any], path: Path, lowercase: bool | None) -> Vocabulary:
    model, normalizer, words = (_object(found, name) for name in ("model", "normalizer", "pre_tokenizer"))
    parts = {
        "model": (model.get("type"), "WordPiece"),
        "normalizer": (normalizer.get("type"), "BertNormalizer"),
        "normalizer.clean_text": (normalizer.get("clean_text"), True),
        "pre_tokenizer": (words.get("type"), "BertPreTokenizer"),
        "model.unk_token": (model.get("unk_token"), UNK),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), CONTINUATION),
    }
    ids: dict[str, int] = _object(model, "vocab")
    added = [token for token in found.get("added_tokens") or [] if isinstance(token, dict)]
    foreign = [str(t.get("content")) for t in added if ids.get(str(t.get("content"))) != t.get("id")]
    parts["added tokens that the model lacks"] = (", ".join(foreign), "")
    for part, (value, expected) in parts.items():
        if value != expected:
            raise UserError(
                f"{part}: {value!r}",
                where=path,
                expected=f"BERT's WordPiece, with {expected or 'none'} there",
                remedy="choose another vocabulary in data.vocab",
            )
    numbers = set(ids.values())
    if (
        not ids
        or len(numbers) < len(ids)
        or not all(isinstance(i, int) and 0 <= i < 2 * len(ids) for i in numbers)
    ):
        raise UserError(
            "model.vocab does not number its pieces from 0", where=path, remedy="check data.vocab"
        )
    tokens = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        tokens[i] = token
    lowercase = bool(normalizer.get("lowercase")) if lowercase is None else lowercase
    normalization = Normalization(
        lowercase, normalizer.get("strip_accents"), normalizer.get("handle_chinese_chars", True)
    )
    longest = model.get("max_input_chars_per_word", WORD_CHARACTERS)
    return make_vocabulary(tokens, normalization, str(path), longest)
