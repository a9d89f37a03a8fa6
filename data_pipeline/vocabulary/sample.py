"""Train a vocabulary on a sample of the sources.

The sample is spread over the whole text, since the first documents may all share an author or an initial letter. Each
source gives the same share of its text, adjusted by data.weights and data.smoothing (sources/source_weights.py), such
that sample_mb is filled or every language gives all its text at least once. Documents are taken in the order of a hash
of their ids, repeatedly if the share exceeds the text: a small language in a smoothed sample may be repeated.

The text is read twice: once for the size of every document, once for the chosen documents. If the sources exceed
READ_FACTOR times the sample, only some parts of them are read, also chosen by a hash. Memory holds the sample and 18
bytes per document read.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby, repeat

import numpy as np
from numpy.typing import NDArray

from data_pipeline.records import Document, ShowProgress
from data_pipeline.rng import VOCABULARY, first_words, text_key
from data_pipeline.settings import DataSettings, VocabularySettings, required, stated_languages
from data_pipeline.sources.cleaning import Counts, check_bad_records, utf8_size
from data_pipeline.sources.listing import SourceFile, repeats, source_weights
from data_pipeline.sources.passed_over import lines
from data_pipeline.sources.read import discover, read
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.check import save_trained, trained_before
from data_pipeline.vocabulary.fit import CHECKED_CHARACTERS, trained_fit
from data_pipeline.vocabulary.train import train_vocabulary

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
                yield from repeat(_head(document, size), times)


def _head(document: Document, size: int) -> Document:
    """Join the document's passages; stop after the passage that exceeds `size`, the size of the whole sample."""
    passages, left = [], size
    for passage in document.passages:
        passages.append(passage)
        left -= utf8_size(passage)
        if left <= 0:
            break
    return Document(document.id, "".join(passages), document.source)


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
            lengths.append(sum(map(utf8_size, document.passages)))
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
