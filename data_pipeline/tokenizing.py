"""Documents cut into sentences in, a Corpus of token ids out, batch by batch."""

from collections.abc import Iterable, Iterator

import numpy as np

from data_pipeline.counts import Counts
from data_pipeline.draws import text_key
from data_pipeline.records import Corpus, Sentences
from data_pipeline.tokens import WordCache

BATCH_CHARACTERS = 4 << 20


def tokenize(documents: Iterable[Sentences], cache: WordCache, counts: Counts) -> Corpus:
    """The documents as token ids, in their order, keyed by the hash of their ids. Sentences that give no token
    are dropped, and documents that give none; `counts` is added to."""
    unk, dtype = cache.vocabulary.unk, cache.vocabulary.dtype
    tokens, lengths, sentences, keys = [np.empty(0, dtype)], [np.zeros(1, np.int64)], [0], []
    sources: list[int] = []
    for batch in _batches(documents):
        ids, sentence_lengths = cache.encode([s for document in batch for s in document.sentences])
        kept = sentence_lengths > 0
        counts.empty_sentences += int((~kept).sum())
        counts.tokens += len(ids)
        counts.unknown_tokens += int((ids == unk).sum())
        tokens.append(ids)
        lengths.append(sentence_lengths[kept])
        borders = np.cumsum([0, *(len(document.sentences) for document in batch)])
        per_document = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[borders])
        counts.documents_without_tokens += int((per_document == 0).sum())
        sentences += per_document[per_document > 0].tolist()
        keys += [text_key(d.id) for d, n in zip(batch, per_document, strict=True) if n]
        sources += [d.source for d, n in zip(batch, per_document, strict=True) if n]
    return Corpus(
        tokens=np.concatenate(tokens),
        sentence_starts=np.cumsum(np.concatenate(lengths)),
        document_starts=np.cumsum(sentences, dtype=np.int64),
        keys=np.array(keys, np.uint64),
        sources=np.array(sources, np.uint16),
    )


def _batches(documents: Iterable[Sentences]) -> Iterator[list[Sentences]]:
    batch: list[Sentences] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.sentences))
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
