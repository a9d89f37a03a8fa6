"""Train a vocabulary of the kind that the settings name on a sample of the sources, and protect it from overwriting.

The sample is spread over the whole text, since the first documents may all share an author or an initial letter.
Each source gives the same share of its text, adjusted by data.weights and data.smoothing (`repeats` in
data_pipeline/sources/listing.py), such that sample_mb is filled or every language gives all its text at least once.
Documents are taken in the order of a hash of their ids, repeatedly if the share exceeds the text: a small language
in a smoothed sample may be repeated. The text is read twice: once for the size of every document, once for the chosen
documents. If the sources exceed READ_FACTOR times the sample, only some parts of them are read, also chosen by a hash.

The same text gives the same vocabulary on any number of threads, which no library guarantees:

- the tokenizers library's WordPiece and BPE trainers number the single-character pieces in the order of a randomly
  seeded hash map, and break ties between merges by these numbers. So the alphabet is numbered here and passed in; the
  rest is a function of these numbers and the word counts.
- its unigram trainer sums floating-point numbers in the order of such a map, in one part per thread. SentencePiece's
  own trainer, used instead, sorts its words and sums in a given number of parts: always THREADS, on any number of
  cores.

Memory holds the sample once, as UTF-8, and 18 bytes per document read. Memory beyond the text, measured: for 200 MB of
English 0.2 GB as wordpiece or bpe, 0.6 as unigram. Scripts without spaces have words as long as sentences, and few of
them twice: 6.7 MB of Chinese and Japanese took 0.05 GB as wordpiece, 0.2 as unigram, 0.3 as bpe.

The time of all three trainers grows faster than a word's length: one word of 400 kB kept them busy for minutes. So
words of more than LONGEST_WORD characters are cut.

VOCABULARY_LOG, next to the vocabulary, records the sources and settings it was trained from: rerunning the same
command finds it finished, and any other command is refused.
"""

import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby, repeat
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_pipeline.errors import UserError, first_line
from data_pipeline.io.files import canonical_json
from data_pipeline.records import Document, ShowProgress
from data_pipeline.rng import VOCABULARY, first_words, text_key
from data_pipeline.settings import DataSettings, VocabularySettings, required, stated_languages
from data_pipeline.sources.cleaning import Counts, check_bad_records, utf8_size
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.listing import repeats, source_weights
from data_pipeline.sources.passed_over import lines
from data_pipeline.sources.read import discover, read
from data_pipeline.sources.snapshot import described_sources
from data_pipeline.vocabulary import byte_bpe, unigram, wordpiece
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary, save_vocabulary
from data_pipeline.vocabulary.fit import CHECKED_CHARACTERS, trained_fit

# Protect a trained vocabulary from being overwritten.

VOCABULARY_LOG = "vocabulary.log.json"
ONLY_EXTENDING = ("new_words", "min_gain")
EXTENDING = (*ONLY_EXTENDING, "min_frequency", "sample_mb")
"""Vocabulary settings of an extension, and those of them that nothing else uses."""
_BEFORE = {"vocabulary.specials": "", "vocabulary.strip_accents": None}
"""Settings that older logs lack, with what they were then."""
_TEXT_SETTINGS = ("text_field", "id_field", "documents", "languages", "weights", "smoothing", "seed")


def trained_before(
    settings: DataSettings, vocabulary: VocabularySettings, extends: str = ""
) -> Vocabulary | None:
    """Return the vocabulary in data.vocab if it was trained from this text with these settings, as an extension of the
    vocabulary with the SHA-256 `extends` if that is given; None if there is none, or not all of its files.
    Raises UserError for any other vocabulary, and if data.vocab is a file."""
    folder = Path(settings.vocab)
    if folder.exists() and not folder.is_dir():
        raise UserError("is no folder", where=folder, expected="a folder", remedy="check data.vocab")
    if not folder.is_dir() or not holds_vocabulary(folder):
        return None
    log = _logged(folder)
    there = load_vocabulary(folder) if log else None
    if there is None or log.get("sha256") != there.sha256:
        raise _held(folder, "a vocabulary that was not trained into it by `maskmill vocab`")
    wanted, had = _made_from(settings, vocabulary, extends), log.get("made_from")
    had = had if isinstance(had, dict) else {}
    differing = [
        f"{key}={value} (there: {had.get(key)})"
        for key, value in wanted.items()
        if key != "sources" and had.get(key, _BEFORE.get(key)) != value
    ]
    if had.get("sources") != wanted["sources"]:
        differing.append("its sources had other names, sizes or times")
    if differing:
        raise _held(folder, f"another vocabulary: {', '.join(differing)}")
    return there if all((folder / name).is_file() for name in there.files()) else None


def save_trained(
    trained: Vocabulary, settings: DataSettings, vocabulary: VocabularySettings, extends: str = ""
) -> None:
    """Write the vocabulary into data.vocab, behind a record of what it was trained from."""
    facts = {"made_from": _made_from(settings, vocabulary, extends), "sha256": trained.sha256}
    save_vocabulary(trained, settings.vocab, {VOCABULARY_LOG: canonical_json(facts, indent=1)})


def _made_from(settings: DataSettings, vocabulary: VocabularySettings, extends: str) -> dict[str, Any]:
    given = asdict(vocabulary)
    used = {*EXTENDING} if extends else given.keys() - {*ONLY_EXTENDING}
    values = {f"vocabulary.{key}": given[key] for key in given if key in used}
    values |= {"extends": extends} if extends else {}
    values |= {f"data.{key}": getattr(settings, key) for key in _TEXT_SETTINGS}
    return json.loads(canonical_json(values | {"sources": described_sources(settings)}))


def _logged(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / VOCABULARY_LOG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _held(folder: Path, what: str) -> UserError:
    return UserError(f"holds {what}", where=folder, remedy="choose another data.vocab, or remove it")


# Train a vocabulary of each kind on given documents.

ALPHABET_SHARE = 8
"""At most one in this many vocabulary entries is a single character; rarer characters become unknown."""
PIECE = 1 << 16
"""Approximate characters passed to a library at a time: it needs about a hundred bytes for each."""
THREADS = 4
"""Threads of SentencePiece's trainer; they affect its result."""
LONGEST_WORD = 1000
"""Maximum characters between white space that a library is given as one: four times the longest of Chinese and Japanese
encyclopedias."""
MOST_32_BIT = 1 << 29
"""Maximum characters of distinct words for which SentencePiece's trainer can count in 32 bits."""

_SPACE = re.compile(r"[ \t\n\r]")
_SPACES = (b" ", b"\n", b"\t", b"\r")
_RESERVED = "\0\u2585"  # reserved by SentencePiece's trainer


def train_vocabulary(
    documents: Iterable[Document],
    settings: VocabularySettings,
    warn: Callable[[str], None] = lambda _: None,
) -> Vocabulary:
    """Train a vocabulary of the kind `settings.kind` on the documents' words; `warn` is called where some are too long
    to learn from as they are.

    wordpiece: the special tokens ([PAD] is 0), the alphabet (the most frequent characters), then the merges.
    bpe: RoBERTa's first four special tokens, the 256 bytes, the merges, <mask>.
    unigram: the special tokens (<pad> is 0; `settings.specials` can choose XLM-R's or XLNet's), then pieces by
    descending probability, including the alphabet.

    Has fewer than `settings.size` entries if the text has no more pairs that are frequent enough. Raises UserError if
    there is no text, no entry left besides the special tokens and bytes, or a library gives up."""
    train, least = _KINDS[settings.kind]
    if settings.size < least:
        raise UserError(
            f"{settings.size} entries are too few", where="vocabulary.size", expected=f"at least {least}"
        )
    long: list[int] = []
    texts = [_cut_words(document.text.encode("utf-8", "replace"), long) for document in documents]
    if long:
        several = len(long) > 1
        warn(
            f"warning: {len(long):,} word{'s' * several} of more than {LONGEST_WORD:,} characters, the longest of "
            f"{max(long):,}, {'were' if several else 'was'} cut: base64, sequences of letters, or text without spaces"
        )
    return train(texts, settings)


def _cut_words(text: bytes, long: list[int]) -> bytes:
    """Return the text with a line feed after every LONGEST_WORD characters of a word that has more; the lengths of such
    words are added to `long`."""
    kept, copied, at = [], 0, 0
    while len(text) - at > LONGEST_WORD:
        last = next(
            (end for space in _SPACES if (end := text.rfind(space, at, at + LONGEST_WORD + 1)) >= 0), -1
        )
        if last >= 0:  # what is before it is short enough
            at = last + 1
            continue
        ends = (text.find(space, at + LONGEST_WORD) for space in _SPACES)
        stop = min((end for end in ends if end >= 0), default=len(text))
        word = text[at:stop].decode()
        if len(word) > LONGEST_WORD:
            long.append(len(word))
            cuts = (word[i : i + LONGEST_WORD] for i in range(0, len(word), LONGEST_WORD))
            kept += [text[copied:at], "\n".join(cuts).encode()]
            copied = stop
        at = stop
    return b"".join([*kept, text[copied:]]) if kept else text


@contextmanager
def _library(name: str) -> Iterator[None]:
    """Turn what a library raises into a UserError."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of Rust's libraries: no Exception
        if not (isinstance(error, Exception) or panic):
            raise
        raise UserError(
            f"{name} cannot learn a vocabulary from this text: {first_line(error)}",
            where="data.sources",
            remedy="choose another vocabulary.kind, vocabulary.size or vocabulary.sample_mb",
        ) from None


def lower_cases(settings: VocabularySettings) -> bool:
    """Return `settings.lowercase`, or the kind's default: BERT and ALBERT lower-case, RoBERTa does not."""
    return settings.kind != "bpe" if settings.lowercase is None else settings.lowercase


def strips_accents(settings: VocabularySettings) -> bool:
    """Return `settings.strip_accents`; without it, what `lower_cases` says, as BERT's and ALBERT's models do."""
    return lower_cases(settings) if settings.strip_accents is None else settings.strip_accents


def _wordpiece(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    lowercase, strips = lower_cases(settings), strips_accents(settings)
    # None, as BERT's tokenizer.json has it, where both are the same
    normalization = wordpiece.Normalization(lowercase, None if strips == lowercase else strips)
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strips)
    words = pre_tokenizers.BertPreTokenizer()
    # BERT's normaliser changes each character independently, so normalising each distinct one is enough.
    raw: Counter[str] = Counter()
    for piece in _pieces(texts):
        raw.update(piece)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for c in normalizer.normalize_str(character):
            counts[c] += count
    alphabet = _alphabet(counts, settings)
    joined = (words.pre_tokenize_str(normalizer.normalize_str("a" + c))[0][0] for c in alphabet)
    # Punctuation and Chinese characters never continue a word, so they get no continuation piece.
    inner = [wordpiece.CONTINUATION + word[1:] for word in joined if len(word) > 1]
    tokenizer = Tokenizer(models.WordPiece(unk_token=wordpiece.SPECIAL_TOKENS.unk))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.min_frequency,
        # The trainer's word for "numbered first, in this order".
        special_tokens=[*wordpiece.SPECIAL_TOKENS, *alphabet, *inner],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=wordpiece.CONTINUATION,
        show_progress=False,
    )
    with _library("the tokenizers library"):
        tokenizer.train_from_iterator(_pieces(texts), trainer)
    ids = tokenizer.get_vocab()
    return wordpiece.make_vocabulary(sorted(ids, key=ids.__getitem__), normalization, "data.sources")


def _bpe(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    if not any(not piece.isspace() for piece in _pieces(texts)):
        raise _nothing()
    first = [*byte_bpe.FIRST_TOKENS, *byte_bpe.ALPHABET]
    mask = byte_bpe.SPECIAL_TOKENS.mask
    form = byte_bpe.form_of(lower_cases(settings), strips_accents(settings))
    empty = byte_bpe.make_vocabulary([*first, mask], [], form, "data.sources")
    tokenizer = Tokenizer.from_str(empty.json)
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size - 1,
        min_frequency=settings.min_frequency,
        special_tokens=first,  # the trainer's word for "numbered first, in this order"
        show_progress=False,
    )
    with _library("the tokenizers library"):
        tokenizer.train_from_iterator(_pieces(texts), trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [(a, b) for a, b in model["merges"]]
    return byte_bpe.make_vocabulary([*tokens, mask], merges, form, "data.sources")


def _unigram(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    layout = unigram.LAYOUTS[settings.specials]
    specials, first, last = layout
    normalizer = unigram.trained_normalizer(lower_cases(settings), strips_accents(settings))
    reserved = [*first, *last]
    empty = unigram.Unigram(reserved, specials, [0.0] * len(reserved), normalizer, layout.controls)
    words: Counter[str] = Counter()
    for piece in _pieces(texts):
        words.update(empty.tokenizer.normalizer.normalize_str(piece).split(" "))
    del words[""]
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for c in word:
            characters[c] += count
    alphabet = set(_alphabet(characters, settings)) - set(_RESERVED)
    counts = _counted(words, alphabet)
    del words
    found = io.BytesIO()
    with _library("SentencePiece"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(counts.items())),
            model_writer=found,
            model_type="unigram",
            vocab_size=settings.size - len(reserved) + 1,  # its own <unk>
            hard_vocab_limit=False,
            input_format="tsv",
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            character_coverage=1.0,
            max_sentence_length=1 << 30,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            num_threads=THREADS,
            train_extremely_large_corpus=sum(map(len, counts)) > MOST_32_BIT,
            minloglevel=2,
        )
    model = sentencepiece.SentencePieceProcessor(model_proto=found.getvalue())
    # Scores are float32: their shortest digits, for a short tokenizer.json.
    learnt = {model.id_to_piece(i): float(str(np.float32(model.get_score(i)))) for i in range(1, len(model))}
    scores = {
        **dict.fromkeys(first, 0.0),
        **{piece: score for piece, score in learnt.items() if piece not in reserved},
        **dict.fromkeys(last, 0.0),
    }
    return unigram.Unigram(list(scores), specials, list(scores.values()), normalizer, layout.controls)


def _counted(words: Counter[str], alphabet: set[str]) -> Counter[str]:
    """Return the words, each with a leading space, and their counts. Characters outside the alphabet split a word, so
    that no learnt piece contains them."""
    counts: Counter[str] = Counter()
    beyond = re.compile(f"[^{re.escape(''.join(sorted(alphabet)))}]")
    for word, count in words.items():
        first, *rest = beyond.split(word)
        counts[" " + first] += count
        for part in rest:
            counts[part] += count
    del counts[""]
    return counts


def _alphabet(counts: Counter[str], settings: VocabularySettings) -> list[str]:
    """Return the most frequent characters, sorted. Raises UserError if there are none."""
    frequent = [(-n, c) for c, n in counts.items() if n >= settings.min_frequency and not c.isspace()]
    if not frequent:
        raise _nothing()
    return sorted(c for _, c in sorted(frequent)[: settings.size // ALPHABET_SHARE])


def _pieces(texts: list[bytes]) -> Iterator[str]:
    """Cut the texts at white space into pieces of about PIECE characters, so that no word spans two pieces."""
    for text in map(bytes.decode, texts):
        start = 0
        while found := _SPACE.search(text, start + PIECE):
            yield text[start : found.start()]
            start = found.start()
        yield text[start:]


def _nothing() -> UserError:
    return UserError(
        "there is no text to learn a vocabulary from", where="data.sources", remedy="name more text"
    )


_KINDS = {
    "wordpiece": (_wordpiece, 2 * ALPHABET_SHARE),
    "bpe": (_bpe, len(byte_bpe.FIRST_TOKENS) + len(byte_bpe.ALPHABET) + 2),
    "unigram": (_unigram, 2 * ALPHABET_SHARE),
}


# Sample the sources, and train a vocabulary on the sample.

READ_FACTOR = 20
"""Maximum bytes read from disk per byte of the sample."""


def learn_vocabulary(
    settings: DataSettings,
    vocabulary: VocabularySettings,
    stage: ShowProgress,
    warn: Callable[[str], None] = lambda _: None,
) -> tuple[Vocabulary, bool]:
    """Train a vocabulary on a sample of the sources and write it into the folder data.vocab; return it, and False if
    it already existed. `warn` is called with what speaks against the vocabulary or the text.

    Raises UserError, before reading, if the folder holds another vocabulary."""
    required(settings.vocab, "data.vocab", "a folder for the vocabulary")
    vocabulary = with_accents_of(settings, vocabulary)
    if there := trained_before(settings, vocabulary):
        return there, False
    head: list[str] = []
    with stage("learning a vocabulary from documents", 0) as advance:
        documents = sample(settings, vocabulary.sample_mb * 1_000_000, advance, warn)
        result = train_vocabulary(_noting(documents, head), vocabulary, warn)
    save_trained(result, settings, vocabulary)
    for warning in trained_fit(result, "\n".join(head), vocabulary.size):
        warn(warning)
    return result, True


def with_accents_of(settings: DataSettings, vocabulary: VocabularySettings) -> VocabularySettings:
    """Return the vocabulary's settings with strip_accents=False where they do not say and a language other than English
    is stated: in most others marks tell words apart."""
    if vocabulary.strip_accents is None and any(
        language.partition("-")[0] not in ("en", "eng") for language in stated_languages(settings)
    ):
        return replace(vocabulary, strip_accents=False)
    return vocabulary


def _noting(documents: Iterable[Document], head: list[str]) -> Iterator[Document]:
    """Pass the documents through and add the text of the first ones to `head`."""
    left = CHECKED_CHARACTERS
    for document in documents:
        if left > 0:
            head.append(document.text[:left])
            left -= len(head[-1])
        yield document


def sample(
    settings: DataSettings,
    size: int,
    advance: Callable[[int], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Document]:
    """Yield about `size` bytes of UTF-8 in whole documents, in the order of the sources; a document taken twice is
    yielded twice. `advance(1)` is called once per document, when it is first read, and `warn` with a line about the
    records that data.bad_records=skip leaves out. Raises UserError for more of them than data.bad_records_limit."""
    chosen, fractions = _within_reach(discover(settings), settings.seed, READ_FACTOR * size)
    counts = Counts()
    copies = iter(_copies(chosen, fractions, settings, size, advance, counts).tolist())
    check_bad_records(counts.as_dict(), counts.first_bad, settings)
    for line in lines({"bad_records": {"files": counts.bad_records, "first": counts.first_bad}}):
        warn(line)
    for part in chosen:
        for document, times in zip(read(part, settings, Counts()), copies, strict=False):
            if times:
                yield from repeat(document._replace(text=document.text[:size]), times)


def _within_reach(
    parts: Iterable[SourceFile], seed: int, most: int
) -> tuple[list[SourceFile], dict[int, float]]:
    """Choose parts with about `most` bytes on disk at most, and return the fraction of each source that they are. Of
    files split by records, every n-th record is chosen; of other parts, every n-th part."""
    listed = list(parts)
    shared = {part.uri for part in listed if part.stripes > 1}
    # Read by one process, such a file needs to be decompressed only once.
    whole = [replace(part, stripes=1) for part in listed if part.stripe == 0]
    every = -(-sum(part.size for part in whole) // most) or 1
    chosen: list[SourceFile] = []
    fractions: dict[int, float] = {}
    for source, of_source in groupby(whole, key=lambda part: part.source):
        own = list(of_source)
        keys = first_words(seed % 2**64, _keys(f"{u.name}:{u.start}" for u in own), VOCABULARY)
        others = [i for i in np.argsort(keys, kind="stable").tolist() if own[i].uri not in shared]
        taken = set(others[: -(-len(others) // every)])
        read_bytes = 0.0
        for i, part in enumerate(own):
            if part.uri in shared:
                chosen.append(replace(part, stripe=int(keys[i]) % every, stripes=every))
                read_bytes += part.size / every
            elif i in taken:
                chosen.append(part)
                read_bytes += part.size
        fractions[source] = read_bytes / total if (total := sum(u.size for u in own)) else 1.0
    return chosen, fractions


def _copies(
    parts: list[SourceFile],
    fractions: dict[int, float],
    settings: DataSettings,
    size: int,
    advance: Callable[[int], None],
    counts: Counts,
) -> NDArray[np.int64]:
    """Compute how often each document of the parts is taken, in their order; update `counts` with what is read."""
    ids, lengths, sources = array("Q"), array("q"), array("H")
    for part in parts:
        for document in read(part, settings, counts):
            ids.append(text_key(document.id))
            lengths.append(utf8_size(document.text))
            sources.append(part.source)
            advance(1)
    keys, sizes, owners = np.array(ids, np.uint64), np.array(lengths, np.int64), np.array(sources, np.int64)
    read_bytes = np.bincount(owners, sizes, minlength=max(fractions, default=-1) + 1)
    text = read_bytes / [fractions.get(source, 1.0) for source in range(len(read_bytes))]
    rates = repeats(text, settings)[: len(text)]
    copies = np.zeros(len(keys), np.int64)
    if not (given := rates * text > 0.0).any():
        return copies
    slowest = float((rates / source_weights(settings)[: len(text)])[given].min())
    times = min(size / float((rates * text).sum()), 1.0 / slowest)
    ranks = first_words(settings.seed % 2**64, keys, VOCABULARY)
    for source in np.flatnonzero(given):
        own = np.flatnonzero(owners == source)
        own = own[np.argsort(ranks[own], kind="stable")]
        wanted = round(times * rates[source] * text[source])
        whole, rest = divmod(wanted, int(read_bytes[source]))
        before = np.cumsum(sizes[own]) - sizes[own]
        copies[own] = whole + (before < rest)
    return copies


def _keys(names: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([text_key(name) for name in names], np.uint64)
