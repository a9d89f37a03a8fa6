"""Load a Vocabulary (base.py) from a tokenizer.json, a vocab.txt or vocab.json with merges.txt, and save it."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import write_whole, writing
from data_pipeline.io.model_folder import check_hashes
from data_pipeline.vocabulary import byte_bpe, unigram, wordpiece
from data_pipeline.vocabulary.base import REMEDY, Vocabulary, part_of
from data_pipeline.vocabulary.wordpiece import Normalization

FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
MOST_BYTES = 1 << 28
"""Maximum bytes of a vocabulary's file: fifteen times those of the largest in use, of 250,000 entries."""
_EXPECTED = "a tokenizer.json, a vocab.txt, a vocab.json with its merges.txt, or a folder that holds one"


def load_vocabulary(path: str | Path, lowercase: bool | None = None) -> Vocabulary:
    """Load the vocabulary in `path`: a tokenizer.json, BERT's vocab.txt, RoBERTa's vocab.json (with merges.txt next to
    it), or a folder that holds one (the first of these).

    A vocab.txt does not record whether text is lower-cased. That is decided, in this order, by `lowercase` (WordPiece
    only), by a tokenizer_config.json next to it, and by whether no piece has an upper-case letter. In the folder of a
    model with more rows than the vocabulary has entries, the others are entries that no text gives. Raises UserError
    for anything but these three kinds: BERT's WordPiece, byte-level BPE as RoBERTa's and ModernBERT's, unigram as
    ALBERT's or XLNet's; and where a tokenizer_config.json states another normalisation than the tokenizer.json beside
    it."""
    if not str(path):
        raise UserError(
            "no vocabulary is named", where="data.vocab", remedy="name one, or run maskmill vocab"
        )
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in FILES if (path / name).is_file()]
        if not found:
            raise UserError(
                "no vocabulary in this folder",
                where=path,
                expected=" or ".join(FILES),
                remedy="run maskmill vocab first",
            )
        check_hashes(path, weights=False)
        vocabulary, rows = load_vocabulary(found[0], lowercase), _rows(path)
        if isinstance(vocabulary, wordpiece.WordPiece) and found[0].suffix == ".json" and lowercase is None:
            _refuse_other_flags(vocabulary.normalization, path / "tokenizer_config.json")
        return vocabulary.padded(rows) if vocabulary.size < rows < 2 * vocabulary.size else vocabulary
    text = _read(path)
    if path.name == "vocab.json":
        merges = _read(path.with_name("merges.txt")).replace("\r\n", "\n")
        return byte_bpe.from_vocab_and_merges(_json(text, path), merges, str(path))
    if path.suffix == ".json":
        return parse_tokenizer_json(text, str(path), lowercase)
    tokens = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return wordpiece.make_vocabulary(tokens, _normalization_beside(path, tokens, lowercase), str(path))


def parse_tokenizer_json(text: str, where: str, lowercase: bool | None = None) -> Vocabulary:
    """Parse the text of a tokenizer.json into a vocabulary; `lowercase` and errors as in `load_vocabulary`."""
    found = _json(text, where)
    kind = part_of(found, "model").get("type")
    if kind == "WordPiece":
        return wordpiece.from_tokenizer_json(found, where, lowercase)
    if kind == "BPE":
        return byte_bpe.from_tokenizer_json(found, where)
    if kind == "Unigram":
        return unigram.from_tokenizer_json(found, where)
    raise UserError(f"model: {kind!r}", where=where, expected="WordPiece, BPE or Unigram", remedy=REMEDY)


def save_vocabulary(
    vocabulary: Vocabulary, folder: str | Path, log: Mapping[str, bytes] | None = None
) -> None:
    """Write tokenizer.json and the files that older programs read into `folder`, each atomically; before them `log`,
    name -> content, since what is there when the process is killed should be known as begun here."""
    folder, files = Path(folder), {name: text.encode() for name, text in vocabulary.files().items()}
    main = {"tokenizer.json": files["tokenizer.json"]}  # which the others follow: they alone may say less
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in {**(log or {}), **main, **files}.items():
                write_whole(folder / name, content)
    except FileExistsError:
        raise UserError("is a file", where=folder, expected="a folder", remedy="check data.vocab") from None


def holds_vocabulary(folder: Path) -> bool:
    """Return whether `load_vocabulary` would find a file in this folder."""
    return any((folder / name).is_file() for name in FILES)


def _rows(folder: Path) -> int:
    """Return the vocab_size in the folder's config.json; 0 if there is none."""
    path = folder / "config.json"
    size = _json(_read(path), path).get("vocab_size") if path.is_file() else 0
    return size if isinstance(size, int) else 0


def _read(path: Path) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a device gives bytes for ever, a pipe perhaps none
            raise UserError("is no file", where=path, expected=_EXPECTED, remedy="check data.vocab")
        if found.st_size > MOST_BYTES:
            raise UserError(
                f"has {found.st_size:,} bytes", where=path, expected=f"at most {MOST_BYTES:,}", remedy=REMEDY
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("the vocabulary is not UTF-8 text", where=path, remedy="check data.vocab") from error
    except OSError as error:
        raise UserError(
            f"the vocabulary cannot be read: {error.strerror}",
            where=path,
            expected=_EXPECTED,
            remedy="check data.vocab, or run maskmill vocab first",
        ) from error


def _json(text: str, where: str | Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", where=where, remedy="check data.vocab") from error
    if not isinstance(found, dict):
        raise UserError(
            "not a tokenizer.json", where=where, expected="a JSON object", remedy="check data.vocab"
        )
    return found


def _refuse_other_flags(ours: Normalization, path: Path) -> None:
    """Raise UserError for a flag of a tokenizer_config.json that contradicts the tokenizer.json beside it: BERT's own
    classes of transformers then follow the former, others the latter, so which ids a model was trained on is unknown.
    """
    config = _json(_read(path), path) if path.is_file() else {}
    if config.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return  # which have no such flags
    found = {
        "do_lower_case": ours.lowercase,
        "strip_accents": ours.lowercase if ours.strip_accents is None else ours.strip_accents,
        "tokenize_chinese_chars": ours.handle_chinese_chars,
    }
    for name, value in found.items():
        if (stated := config.get(name)) is not None and stated != value:
            raise UserError(
                f"{name} is {json.dumps(stated)}, in tokenizer.json it is {json.dumps(value)}",
                where=path,
                expected="one normalisation",
                remedy="correct the file that is wrong: transformers follows this one",
            )


def _normalization_beside(path: Path, tokens: list[str], lowercase: bool | None) -> Normalization:
    config_path = path.with_name("tokenizer_config.json")
    config = _json(_read(config_path), config_path) if config_path.is_file() else {}
    if lowercase is None:
        bare = [token for token in tokens if not token.startswith(("[", "<"))]
        lowercase = bool(config.get("do_lower_case", all(token == token.lower() for token in bare)))
    return Normalization(lowercase, config.get("strip_accents"), config.get("tokenize_chinese_chars", True))
