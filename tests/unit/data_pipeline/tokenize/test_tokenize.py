"""Token ids: equal to the tokenizers library's on every input, and to the reference programs' on the goldens."""

import json
import os
import unicodedata
from dataclasses import replace
from pathlib import Path
from string import ascii_letters, ascii_lowercase

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_pipeline.records import Sentences
from data_pipeline.rng import text_key
from data_pipeline.sources.cleaning import Counts
from data_pipeline.tokenize import tokenize as tokenizing
from data_pipeline.tokenize import tokenize as word_cache
from data_pipeline.tokenize import word_table
from data_pipeline.tokenize.tokenize import WordCache, tokenize
from data_pipeline.tokenize.word_table import ALONE, LONGEST_CACHED, ROOM, WIDE, byte_kinds
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.wordpiece import SPECIAL_TOKENS, Normalization, make_vocabulary
from tests.factories.vocabularies import charsmap, trained

GOLDEN = Path(__file__).parents[3] / "golden"
FULL = os.environ.get("MASKMILL_GOLDEN")
GOLDENS = {
    "uncased": ("bert-base-uncased-vocab.txt", None),
    "cased": ("bert-base-cased-vocab.txt.zst", None),
    "multilingual_cased": ("bert-base-multilingual-cased-vocab.txt.zst", None),
    "multilingual_cased_lower": ("bert-base-multilingual-cased-vocab.txt.zst", True),
}


@pytest.fixture(scope="module", params=GOLDENS)
def golden(request, tmp_path_factory):
    """(rows, cache) of one reference vocabulary."""
    name, lowercase = GOLDENS[request.param]
    data = (GOLDEN / "vocab" / name).read_bytes()
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_bytes(zstandard.ZstdDecompressor().decompress(data) if name.endswith(".zst") else data)
    return request.param, WordCache(load_vocabulary(path, lowercase=lowercase))


def library(vocabulary, sentences):
    """(ids, lengths) by the tokenizers library alone."""
    before = vocabulary.cuts.before
    ids = [vocabulary.tokenizer.encode(before + s, add_special_tokens=False).ids for s in sentences]
    return [i for sentence in ids for i in sentence], [len(sentence) for sentence in ids]


def ours(cache, sentences):
    ids, lengths = cache.encode(sentences)
    assert ids.dtype == cache.vocabulary.dtype
    assert lengths.dtype == np.int64
    return ids.tolist(), lengths.tolist()


def check_golden(folder, name, cache):
    lines = (folder / "wordpiece" / f"{name}.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    flat, lengths = cache.encode([row["text"] for row in rows])
    ids = [found.tolist() for found in np.split(flat, np.cumsum(lengths)[:-1])]
    strict = [i for i, row in enumerate(rows) if row["rust_same"]]
    assert len(strict) > 100
    assert [ids[i] for i in strict] == [rows[i]["ids"] for i in strict]
    # Both references differ on special tokens in the text: we go with the one that takes them for text.
    special = [i for i, row in enumerate(rows) if row["text"].startswith("[CLS] ")]
    assert [ids[i] for i in special] == [rows[i]["ids"] for i in special]
    assert (flat.tolist(), lengths.tolist()) == library(cache.vocabulary, [row["text"] for row in rows])


def test_ids_equal_the_goldens(golden):
    check_golden(GOLDEN, *golden)


@pytest.mark.skipif(not FULL, reason="MASKMILL_GOLDEN names no folder with the complete goldens")
def test_ids_equal_the_complete_goldens(golden):
    check_golden(Path(FULL or ""), *golden)


PIECES = [
    *"abcdeghinorstux!\u03c3\u03c2字ー한“\u0301",
    "the",
    *("##" + piece for piece in (*"abost\u0301", "ing")),
]


def small(**flags):
    return make_vocabulary([*SPECIAL_TOKENS, *PIECES], Normalization(**flags), "test")


ALBERTS = [
    {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    *({"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase")),
    {"type": "Precompiled", "precompiled_charsmap": charsmap()},
]
CACHES = [
    WordCache(small(lowercase=True)),
    WordCache(small(lowercase=False)),
    WordCache(small(lowercase=False, strip_accents=True, handle_chinese_chars=False), most_words=ROOM),
    WordCache(small(lowercase=True, strip_accents=False), most_words=2 * ROOM),
    *(
        WordCache(trained(kind, lower), n)
        for kind in ("bpe", "unigram")
        for lower, n in ((False, 2 * ROOM), (True, ROOM))
    ),
    WordCache(replace(trained("unigram"), normalizer=ALBERTS)),
]
NAMES = ["uncased", "cased", "no-chinese", "keep-accents", "bpe", "bpe-lower", "unigram", "unigram-lower"]
NAMES += ["albert"]
SPACES = " |  |▁|▁▁|\t|\n|\r|\x0b|\x0c|\x1c|\x85|\u00a0|\u2003|\u2028|\u2029|\u3000"
INVISIBLE = "\x00|\x01|\x7f|\u00ad|\u200b|\u200d|\u200e|\u200f|\ufeff|\ufffd|\ufffe"
MARKS = (
    " \u0301| \u20dd|\u0600 |¨|\u00b4|\u0301|\u0338|\u0327\u0301|\u05bc|\u064b|\u3099|e\u0301|é|Å|ﬁ|İ|ẞ|ǅ|≮"
)
SCRIPTS = "\u0391\u03a3|\u0391\u03a3.|字|字a|a字|龥|一|䷿|\u9fff|ꀀ|豈|𠀀|かな|한국|힣|각|שלום|مرحبا|ไทย|नी"
WORDS = (
    "👨\u200d👩\u200d👧|🏳️\u200d🌈|🇩🇪|the|THING|a|b.b|don't|“the”|—|…|\u2010|\u2027|†|[MASK]|[CLS]|[UNK]|##a"
)
NASTY = "|".join([SPACES, INVISIBLE, MARKS, SCRIPTS, WORDS]).split("|")
NASTY += ["x" * 63, "y" * 64, "z" * 65, "i" * 120]


@pytest.mark.parametrize("cache", CACHES, ids=NAMES)
@given(
    st.lists(
        st.one_of(
            st.lists(st.sampled_from(NASTY), max_size=12).map("".join),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        ),
        max_size=6,
    )
)
@example([])
@example(["", " ", "a"])
@example(
    ["x" * 10_000, "“" * 100, "字" * 100, "\u3000 \u3000", "don't 's", "``a`` `", "▁", "<unk> <s> <mask>"]
)
@settings(max_examples=250, deadline=None)
def test_ids_are_the_librarys(cache, sentences):
    expected = library(cache.vocabulary, sentences)
    assert ours(cache, sentences) == expected
    assert ours(cache, sentences) == expected  # now from memory
    if getattr(cache.vocabulary, "normalizer", None) is not ALBERTS:  # its table removes characters
        ids = [cache.vocabulary.tokenizer.encode(s, add_special_tokens=False).ids for s in sentences]
        assert [i for sentence in ids for i in sentence] == expected[0]


def test_characters_that_stand_alone_can_be_cut_off():
    """What the cutting rests on, for every single character at which words are cut."""
    kinds = byte_kinds(punctuation=True, chinese=True)
    every = [chr(c) for c in range(128) if kinds[c] == ALONE]
    every += [chr(c) for c in (*range(0x2010, 0x2028), *range(0x4E00, 0xA000))]
    for flags in ({"lowercase": True}, {"lowercase": False}):
        library = small(**flags).tokenizer
        for c in every:
            words = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(f"a{c}\u0301b"))
            texts = [text for text, _ in words]
            assert texts[:2] == ["a", c], hex(ord(c))
            assert "".join(texts[2:]) in ("b", "\u0301b")
            assert unicodedata.combining(c) == 0
            assert unicodedata.normalize("NFD", c) == c


def test_the_words_that_are_cut_are_those_that_stand_alone():
    kinds = byte_kinds(punctuation=True, chinese=True)
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x11000), 0x20000):
        data = np.frombuffer(chr(code).encode() + b"xx", np.uint8)
        alone = kinds[data[0]] == WIDE and bool(word_table.stands_alone.py_func(data, 0))
        assert alone == (0x2010 <= code <= 0x2027 or 0x4E00 <= code <= 0x9FFF), hex(code)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, LONGEST_CACHED, LONGEST_CACHED + 1])
def test_words_of_every_length_that_differ_in_one_byte_have_their_own_ids(size):
    vocabulary = make_vocabulary([*SPECIAL_TOKENS, "a", "b", "##a", "##b"], Normalization(True), "test")
    words = ["a" * i + "b" + "a" * (size - i - 1) for i in range(size)]
    assert ours(WordCache(vocabulary), words) == library(vocabulary, words)


def colliding_words():
    """Two pairs of words of one hash: of 8 and 16 bytes, and of 16 each."""
    letters = np.frombuffer(ascii_letters.encode(), np.uint8)
    halves = np.random.default_rng(0).choice(letters, (1 << 21, 8))
    block = halves.view(np.uint64).ravel()
    value = (block ^ (block >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(29)
    is_letter = np.isin(np.arange(256), letters)
    rest = (value ^ block[0]).view(np.uint8).reshape(-1, 8)
    one = np.flatnonzero(is_letter[rest].all(1))[0]
    yield halves[0].tobytes(), halves[one].tobytes() + rest[one].tobytes()
    change = (value ^ value[0]).view(np.uint8).reshape(-1, 8)
    pairs = {int(a ^ b): (int(a), int(b)) for a in letters for b in letters}
    two = np.flatnonzero(np.isin(np.arange(256), list(pairs))[change].all(1))[1]
    a, b = np.array([pairs[int(d)] for d in change[two]], np.uint8).T
    yield halves[0].tobytes() + a.tobytes(), halves[two].tobytes() + b.tobytes()


def test_words_of_equal_hash_have_their_own_ids():
    pieces = [*ascii_lowercase, *("##" + c for c in ascii_lowercase)]
    vocabulary = make_vocabulary([*SPECIAL_TOKENS, *pieces], Normalization(True), "test")
    for pair in colliding_words():
        data = [np.frombuffer(word, np.uint8) for word in pair]
        one, two = (word_table.hash_of(word, np.uint64(0), np.uint64(len(word))) for word in data)
        assert one == two
        for words in (pair, pair[::-1]):
            sentence = [b" ".join(words).decode()]
            assert ours(WordCache(vocabulary), sentence) == library(vocabulary, sentence)


def test_a_full_cache_is_emptied_and_refilled(monkeypatch):
    monkeypatch.setattr(word_cache, "_BUFFER_WORDS", ROOM)
    monkeypatch.setattr(word_cache, "_LONG_WORDS", ROOM)
    monkeypatch.setattr(word_cache, "_FIRST_SLOTS", 1024)
    cache = WordCache(small(lowercase=True), most_words=1000)
    sentences = [" ".join(f"{a}{b}{'t' * i}" for i in range(50)) for a in "abcdef" for b in "eghik"] * 2
    assert ours(cache, sentences) == library(cache.vocabulary, sentences)
    assert cache._known <= 1000
    assert ours(cache, ["the" * 40] * 900) == library(cache.vocabulary, ["the" * 40] * 900)
    with pytest.raises(ValueError, match="expected at least"):
        WordCache(small(lowercase=True), most_words=ROOM - 1)


@pytest.mark.parametrize("before", ["", "a", "aa"])
def test_a_buffer_that_is_full_within_a_character(monkeypatch, before):
    monkeypatch.setattr(word_cache, "_BUFFER_WORDS", ROOM)
    cache = WordCache(small(lowercase=True))
    sentences = [before + 2000 * "\u2019" + " the"]
    assert ours(cache, sentences) == library(cache.vocabulary, sentences)


def test_known_words_are_not_asked_for_again(monkeypatch):
    cache = WordCache(small(lowercase=True))
    cache.encode(["the cat sat"])
    asked, encode = [], cache._encode

    def listen(words):
        asked.extend(words)
        return encode(words)

    monkeypatch.setattr(cache, "_encode", listen)
    cache.encode(["the dog, the cat"])
    assert asked == [b"dog", b","]


def test_text_without_any_border_is_cut_between_characters():
    cache = CACHES[0]
    ids, lengths = cache.encode(["한" * 400_000, "a"])  # 1.2 MB; 1 MiB falls within a character
    assert lengths.tolist() == [2, 1]
    assert ids.tolist() == [cache.vocabulary.unk] * 2 + [cache.vocabulary.ids["a"]]


def test_a_corpus_without_empty_sentences_and_documents(monkeypatch):
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 5)
    documents = [
        Sentences("x:1", ["the a", "\u200b", "b b b"]),
        Sentences("x:2", ["\u200b", "\u200d"]),
        Sentences("x:3", []),
        Sentences("x:4", ["the \u0416"]),
    ]
    counts = Counts()
    corpus = tokenize(iter(documents), CACHES[0], counts)
    ids = CACHES[0].vocabulary.ids
    assert corpus.tokens.tolist() == [ids[t] for t in ("the", "a", "b", "b", "b", "the", "[UNK]")]
    assert corpus.sentence_starts.tolist() == [0, 2, 5, 7]
    assert corpus.document_starts.tolist() == [0, 2, 3]
    assert corpus.keys.tolist() == [text_key("x:1"), text_key("x:4")]
    assert [
        a.dtype for a in (corpus.tokens, corpus.sentence_starts, corpus.document_starts, corpus.keys)
    ] == [
        np.uint16,
        np.int64,
        np.int64,
        np.uint64,
    ]
    assert counts == Counts(tokens=7, unknown_tokens=1, empty_sentences=3, documents_without_tokens=2)


def test_an_empty_corpus_has_no_tokens():
    corpus = tokenize([], CACHES[0], Counts())
    assert len(corpus) == len(corpus.tokens) == 0
    assert corpus.sentence_starts.tolist() == corpus.document_starts.tolist() == [0]
