"""Train a vocabulary of the kind that the settings name; the text is held in memory once, as UTF-8.

The same text gives the same vocabulary on any number of threads, which no library guarantees:

- the tokenizers library's WordPiece and BPE trainers number the single-character pieces in the order of a randomly
  seeded hash map, and break ties between merges by these numbers. So the alphabet is numbered here and passed in; the
  rest is a function of these numbers and the word counts.
- its unigram trainer sums floating-point numbers in the order of such a map, in one part per thread. SentencePiece's
  own trainer, used instead, sorts its words and sums in a given number of parts: always THREADS, on any number of
  cores.

Memory beyond the text, measured: for 200 MB of English 0.2 GB as wordpiece or bpe, 0.6 as unigram. Scripts without
spaces have words as long as sentences, and few of them twice: 6.7 MB of Chinese and Japanese took 0.05 GB as
wordpiece, 0.2 as unigram, 0.3 as bpe.

The time of all three trainers grows faster than a word's length: one word of 400 kB kept them busy for minutes. So
words of more than LONGEST_WORD characters are cut.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_pipeline.errors import UserError, first_line
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary import byte_bpe, unigram, wordpiece
from data_pipeline.vocabulary.base import Vocabulary

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
