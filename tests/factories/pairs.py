"""What the tests of draws, pairs and masks share: small corpora, a small vocabulary, and chi-square tests."""

from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace

import numpy as np

from data_pipeline.records import Corpus, Segments

CLS, SEP, MASK, FIRST = 1, 2, 3, 4  # special ids; ordinary ids begin at FIRST


def all_segments(recipe, corpus, start, stop, seed, passes):
    """The sequences of documents start..stop-1, whatever pieces they come in."""
    parts = list(recipe.pieces(corpus, start, stop, seed, passes))
    columns = {
        f.name: np.concatenate([getattr(part, f.name) for part in parts])
        for f in fields(Segments)
        if isinstance(getattr(parts[0], f.name), np.ndarray)
    }
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    columns["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    return Segments(**columns, tokens_used=sum(part.tokens_used for part in parts))


def vocabulary(size, continuation_every=0):
    """Every so many-th id is a '##' piece; 0: none."""
    continuation = np.zeros(size, np.bool_)
    if continuation_every:
        continuation[FIRST::continuation_every] = True
    return SimpleNamespace(size=size, cls=CLS, sep=SEP, mask=MASK, pad=0, unk=0, continuation=continuation)


def corpus(sentences_per_document, sentence_lengths, dtype=np.uint32, tokens=None):
    """A corpus whose token at place p of the text is p + FIRST, so that each token tells where it is from."""
    sentence_starts = np.concatenate([[0], np.cumsum(sentence_lengths)]).astype(np.int64)
    document_starts = np.concatenate([[0], np.cumsum(sentences_per_document)]).astype(np.int64)
    if tokens is None:
        tokens = np.arange(sentence_starts[-1]) + FIRST
    keys = np.random.default_rng(len(sentence_lengths)).permutation(len(sentences_per_document)) * 977
    return Corpus(
        tokens.astype(dtype),
        sentence_starts,
        document_starts,
        keys.astype(np.uint64),
        np.zeros(len(keys), np.uint16),
    )


def random_corpus(documents, seed=0, mean_sentences=6, mean_length=9, longest=60):
    generator = np.random.default_rng(seed)
    sentences = generator.geometric(1 / mean_sentences, documents)
    lengths = np.minimum(generator.geometric(1 / mean_length, sentences.sum()), longest)
    return corpus(sentences, lengths)


def rows(flat, offsets):
    return [flat[a:b] for a, b in pairwise(offsets)]


def surprise(observed, expected):
    """Chi-square of counts against expected counts (or shares), as a standard normal deviate
    (Wilson and Hilferty 1931): above 4 has a chance of 3 in 100,000."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    expected = expected * observed.sum() / expected.sum()
    return _deviate(((observed - expected) ** 2 / expected).sum(), len(observed) - 1)


def difference(one, other, bins):
    """As `surprise`, for two samples that should have one distribution, over `bins` (edges)."""
    a, b = np.histogram(one, bins)[0].astype(float), np.histogram(other, bins)[0].astype(float)
    filled = a + b >= 10
    a, b = a[filled], b[filled]
    ratio = np.sqrt(b.sum() / a.sum())
    return _deviate(((a * ratio - b / ratio) ** 2 / (a + b)).sum(), len(a) - 1)


def _deviate(statistic, freedom):
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread)
