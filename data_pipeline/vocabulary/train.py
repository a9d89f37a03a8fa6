"""Train a vocabulary of the kind that the settings name; the text of its documents is held once, as UTF-8.

A trained vocabulary is the same for the same text on any number of threads, which no library promises:

- the tokenizers library's trainer of WordPiece and BPE numbers the single-character pieces in the order of a randomly
  seeded hash map, and breaks ties between merges by these numbers. So the alphabet is numbered here and handed to it;
  everything that follows is a function of these numbers and the word counts.
- its trainer of unigrams adds up floating-point numbers in the order of such a map, and in as many parts as there are
  threads. SentencePiece's own, used instead, sorts its words and adds up in as many parts as it is told: always
  THREADS, however many cores there are.

Memory beyond the text, measured: for 200 MB of English 0.2 GB as wordpiece or bpe, 0.6 as unigram. Scripts without
spaces have words as long as sentences, and few of them twice: 6.7 MB of Chinese and Japanese took 0.05 GB as
wordpiece, 0.2 as unigram, 0.3 as bpe.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary import byte_bpe, unigram, wordpiece
from data_pipeline.vocabulary.base import Vocabulary

ALPHABET_SHARE = 8
"""Single characters are at most one in so many entries of the vocabulary; rarer ones become unknown."""
PIECE = 1 << 16
"""Characters handed to a library at a time, about: it needs some hundred bytes for each."""
THREADS = 4
"""Of SentencePiece's trainer; part of what decides its result."""
MOST_32_BIT = 1 << 29
"""Characters of distinct words beyond which SentencePiece's trainer has to count in 64 bits."""

_SPACE = re.compile(r"[ \t\n\r]")
_RESERVED = "\0\u2585"  # what SentencePiece's trainer keeps for itself


def train_vocabulary(documents: Iterable[Document], settings: VocabularySettings) -> Vocabulary:
    """A vocabulary of the documents' words, of the kind `settings.kind`.

    wordpiece: the special tokens ([PAD] is 0), the alphabet (the most frequent characters), then the merges.
    bpe: RoBERTa's first four special tokens, the 256 bytes, the merges, <mask>.
    unigram: the special tokens (<pad> is 0; with `settings.specials` as XLM-R has them), then pieces from the likeliest
    to the least likely one, among them the alphabet.

    Fewer than `settings.size` entries if the text has no more pairs that are frequent enough. Raises UserError if
    there is no text, or no entry left beside the special tokens and bytes."""
    train, least = _KINDS[settings.kind]
    if settings.size < least:
        raise UserError(
            f"{settings.size} entries are too few", where="vocabulary.size", expected=f"at least {least}"
        )
    return train([document.text.encode("utf-8", "replace") for document in documents], settings)


def lower_cases(settings: VocabularySettings) -> bool:
    """`settings.lowercase`, or what the kind is used to: BERT and ALBERT lower-case, RoBERTa does not."""
    return settings.kind != "bpe" if settings.lowercase is None else settings.lowercase


def _wordpiece(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    normalizer = normalizers.BertNormalizer(lowercase=lower_cases(settings))
    words = pre_tokenizers.BertPreTokenizer()
    # BERT's normaliser changes each character by itself, so it is enough to normalise every distinct one.
    raw: Counter[str] = Counter()
    for piece in _pieces(texts):
        raw.update(piece)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for c in normalizer.normalize_str(character):
            counts[c] += count
    alphabet = _alphabet(counts, settings)
    joined = (words.pre_tokenize_str(normalizer.normalize_str("a" + c))[0][0] for c in alphabet)
    # Punctuation and Chinese characters never continue a word: no piece for that.
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
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    ids = tokenizer.get_vocab()
    return wordpiece.make_vocabulary(
        sorted(ids, key=ids.__getitem__), wordpiece.Normalization(lower_cases(settings)), "data.sources"
    )


def _bpe(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    if not any(not piece.isspace() for piece in _pieces(texts)):
        raise _nothing()
    first = [*byte_bpe.FIRST_TOKENS, *byte_bpe.ALPHABET]
    mask = byte_bpe.SPECIAL_TOKENS.mask
    empty = byte_bpe.make_vocabulary([*first, mask], [], lower_cases(settings), "data.sources")
    tokenizer = Tokenizer.from_str(empty.json)
    tokenizer.train_from_iterator(
        _pieces(texts),
        trainers.BpeTrainer(
            vocab_size=settings.size - 1,
            min_frequency=settings.min_frequency,
            special_tokens=first,  # the trainer's word for "numbered first, in this order"
            show_progress=False,
        ),
    )
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [(a, b) for a, b in model["merges"]]
    return byte_bpe.make_vocabulary([*tokens, mask], merges, lower_cases(settings), "data.sources")


def _unigram(texts: list[bytes], settings: VocabularySettings) -> Vocabulary:
    specials, first, last = unigram.LAYOUTS[settings.specials]
    reserved, normalizer = [*first, *last], unigram.trained_normalizer(lower_cases(settings))
    empty = unigram.Unigram(reserved, specials, [0.0] * len(reserved), normalizer)
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
    return unigram.Unigram(list(scores), specials, list(scores.values()), normalizer)


def _counted(words: Counter[str], alphabet: set[str]) -> Counter[str]:
    """The words, a space in front, with their counts. Characters beyond the alphabet part a word: pieces of the rest
    are learnt, and none that holds them."""
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
    """The most frequent characters, sorted. Raises UserError where there is none."""
    frequent = [(-n, c) for c, n in counts.items() if n >= settings.min_frequency and not c.isspace()]
    if not frequent:
        raise _nothing()
    return sorted(c for _, c in sorted(frequent)[: settings.size // ALPHABET_SHARE])


def _pieces(texts: list[bytes]) -> Iterator[str]:
    """The texts cut at white space into pieces of about PIECE characters, none of which a word spans."""
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
