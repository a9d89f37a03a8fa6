"""Divide the tokenized documents into shards and pools of random-next documents, and save corpora in key order.

Shards and pools are ranges of documents in the order of their keys, which are hashes: every range is a uniform sample
of the corpus, or with data.across_languages=false of one language. The plan depends only on the documents and the
settings.

A Corpus is saved as a folder of .npy columns in key order, and opened memory-mapped. `merge` makes one corpus of
documents from many tokenized parts, at any size.
"""

import json
import mmap
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json, open_to_write, writing
from data_pipeline.io.npy import mapped_npy, offsets_of, opened, save_column, write_header
from data_pipeline.jit import copy_run, jit
from data_pipeline.records import Corpus
from data_pipeline.sequences.pairs import ALONE
from data_pipeline.sequences.registry import pair_task
from data_pipeline.settings import DataSettings
from data_pipeline.shards.index import HELD_OUT, TRAIN
from data_pipeline.sources.listing import document_passes, language_numbers, repeats

# Save a Corpus as a folder of .npy columns in key order, and memory-map it.

BLOCK_TOKENS = 1 << 20
"""Tokens sorted at a time."""


def open_corpus(folder: Path) -> Corpus:
    """Open the corpus in `folder`, memory-mapped: only what is touched is read."""
    return Corpus(**{c.name: mapped_npy(folder / f"{c.name}.npy") for c in fields(Corpus)})


def outline(folder: Path) -> Corpus:
    """Load the documents of the corpus in `folder` without their tokens, each as one sentence: enough for a plan,
    and no file stays open."""
    corpus = open_corpus(folder)
    starts = np.array(corpus.sentence_starts[corpus.document_starts])
    return Corpus(
        tokens=np.empty(0, corpus.tokens.dtype),
        sentence_starts=starts,
        document_starts=np.arange(len(starts)),
        keys=np.array(corpus.keys),
        sources=np.array(corpus.sources),
    )


def document_tokens(corpus: Corpus) -> NDArray[np.int64]:
    """Return the tokens of each document."""
    return token_counts(corpus, slice(0, len(corpus)))


def token_counts(corpus: Corpus, chosen: slice) -> NDArray[np.int64]:
    """Return the tokens of each document of a run."""
    return np.diff(corpus.sentence_starts[corpus.document_starts[chosen.start : chosen.stop + 1]])


def save_sorted(corpus: Corpus, folder: Path) -> None:
    """Write the documents into `folder` in key order, so that a range of keys is a range of documents. Memory-mapped
    tokens are copied block by block: memory does not grow with them."""
    order = np.argsort(corpus.keys, kind="stable")
    save_column(folder / "keys.npy", corpus.keys[order])
    save_column(folder / "sources.npy", corpus.sources[order])
    save_column(folder / "document_starts.npy", offsets_of(np.diff(corpus.document_starts)[order]))
    sentence_starts = np.zeros(len(corpus.sentence_starts), np.int64)
    _sort_starts(order, corpus.document_starts, corpus.sentence_starts, sentence_starts)
    save_column(folder / "sentence_starts.npy", sentence_starts)
    del sentence_starts
    starts = corpus.sentence_starts[corpus.document_starts]
    lengths = np.diff(starts)[order]
    numbers = (np.cumsum(lengths) - lengths) // BLOCK_TOKENS
    with writing(folder / "tokens.npy"), open_to_write(folder / "tokens.npy", "wb") as file:
        write_header(file, corpus.tokens.dtype, len(corpus.tokens))
        for block in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
            if len(block) == 1:
                end = starts[block[0] + 1]
                for at in range(starts[block[0]], end, BLOCK_TOKENS):
                    file.write(_fresh(corpus.tokens)[at : min(at + BLOCK_TOKENS, end)].data)
            else:
                out = np.empty(int((starts[block + 1] - starts[block]).sum()), corpus.tokens.dtype)
                _copy_documents(block, starts, _fresh(corpus.tokens), out)
                file.write(out.data)


def _fresh(column: NDArray) -> NDArray:
    """Return the column, in a new mapping if it is memory-mapped: pages read through the old one stay out of memory."""
    if not isinstance(column, np.memmap) or column.filename is None:
        return column
    mapped = np.memmap(column.filename, column.dtype, "r", column.offset, column.shape)
    getattr(mapped, "_mmap").madvise(mmap.MADV_RANDOM)  # noqa: B009 # no page that is not asked for
    return np.asarray(mapped)


@jit
def _sort_starts(documents, document_starts, sentence_starts, out):
    """Compute where sentences start once the documents are in this order."""
    at = 0
    for d in documents:
        for s in range(document_starts[d], document_starts[d + 1]):
            out[at + 1] = out[at] + sentence_starts[s + 1] - sentence_starts[s]
            at += 1


@jit
def _copy_documents(documents, starts, tokens, out):
    at = 0
    for d in documents:
        copy_run(out, at, tokens, starts[d], starts[d + 1])
        at += starts[d + 1] - starts[d]


# Plan the pools and the shards.

POOL_TOKENS = 256_000_000
"""Approximate tokens of a pool, if that leaves enough documents to draw from: half a gigabyte on disk."""
POOL_DOCUMENTS = 2_000_000
"""Approximate documents of a pool: gathering takes a hundred bytes of memory per document."""


@dataclass(frozen=True)
class ShardRange:
    """Documents start..stop-1 of a pool, which become one shard."""

    start: int
    stop: int
    source_rates: tuple[float, ...] = ()
    """Passes over the documents of each source, without dupe_factor; empty: one."""


@dataclass(frozen=True)
class DocumentPool:
    """The documents of one split with first_key <= key <= last_key, from which random next segments are drawn."""

    split: str
    first_key: int
    last_key: int
    shards: tuple[ShardRange, ...]
    sources: tuple[int, ...] = ()
    """Only documents of the sources with these numbers; empty: of all."""
    takes_held_out: bool = False
    """Also the held-out document of these sources: on its own, it would have no random next segment."""
    held_out_limit: int = 0
    """Documents whose draw is below this are held out; 0: as data.held_out alone says."""


@dataclass(frozen=True)
class _Documents:
    """The inputs of the plan: one row per document, in key order."""

    keys: NDArray[np.uint64]
    tokens: NDArray[np.int64]
    sources: NDArray[np.uint16]

    def take(self, chosen: NDArray) -> "_Documents":
        return _Documents(self.keys[chosen], self.tokens[chosen], self.sources[chosen])


def plan_pools(parts: list[Corpus], settings: DataSettings) -> list[DocumentPool]:
    """Plan the pools of both splits, training first. Raises UserError if a split has no document."""
    documents = _Documents(
        np.concatenate([np.asarray(part.keys) for part in parts]),
        np.concatenate([document_tokens(part) for part in parts]),
        np.concatenate([np.asarray(part.sources) for part in parts]),
    )
    if not len(documents.keys):
        raise UserError(
            "no text to learn from: the sources hold no document with a token",
            where="data.sources",
            remedy="check the files, data.text_field and data.vocab",
        )
    documents = documents.take(np.argsort(documents.keys, kind="stable"))
    keys = documents.keys
    if (repeated := int((keys[1:] == keys[:-1]).sum())) > 0:
        raise UserError(
            f"{repeated} documents have the id of another",
            where="data.id_field",
            expected="a field that differs in every record",
            remedy="leave it empty to number the records",
        )
    limit = _raised_limit(documents, settings)
    aside = is_held_out(keys, settings, limit)
    alone = _alone_aside(documents, aside, settings)
    aside[alone] = False
    if settings.held_out > 0 and not 0 < aside.sum() < len(aside):
        raise UserError(
            f"data.held_out={settings.held_out} sets aside {aside.sum()} of {len(aside)} documents",
            where="data.sources",
            expected="some for training and some for evaluation",
            remedy="change data.held_out, or data.held_out=0",
        )
    rates = _rates(documents, settings)
    pools = _pools_of_split(TRAIN, documents.take(~aside), rates, settings)
    alone_sources = set(documents.sources[alone].tolist())
    pools = [replace(p, takes_held_out=not alone_sources.isdisjoint(p.sources)) for p in pools]
    if aside.any():
        pools += _pools_of_split(HELD_OUT, documents.take(aside), rates, settings)
    return [replace(pool, held_out_limit=limit) for pool in pools] if limit else pools


def members(part: Corpus, pool: DocumentPool, settings: DataSettings) -> NDArray[np.int64]:
    """Return the numbers of the documents of `part`, sorted by key, that are in the pool."""
    first = int(np.searchsorted(part.keys, np.uint64(pool.first_key), "left"))
    last = int(np.searchsorted(part.keys, np.uint64(pool.last_key), "right"))
    aside = is_held_out(np.asarray(part.keys[first:last]), settings, pool.held_out_limit)
    mine = aside == (pool.split == HELD_OUT)
    if pool.takes_held_out:
        mine[:] = True
    if pool.sources:
        mine &= np.isin(part.sources[first:last], pool.sources)
    return first + np.flatnonzero(mine)


def is_held_out(keys: NDArray[np.uint64], settings: DataSettings, limit: int = 0) -> NDArray[np.bool_]:
    """Return whether each document is held out: drawn from its key alone, so the same in every run and part. `limit`:
    as in DocumentPool."""
    if settings.held_out <= 0:
        return np.zeros(len(keys), np.bool_)
    limit = limit or min(int(settings.held_out * 2.0**64), 2**64 - 1)
    return _draws(keys, settings) < np.uint64(limit)


def _draws(keys: NDArray[np.uint64], settings: DataSettings) -> NDArray[np.uint64]:
    return rng.first_words(settings.seed, keys, rng.HELD_OUT)


def _raised_limit(documents: _Documents, settings: DataSettings) -> int:
    """Return the limit below which documents are held out where data.held_out leaves fewer than can be evaluated: two
    where random next segments are drawn, of one language if they stay in it, else one. 0 where it leaves enough, or the
    text has too few documents to set so many aside and to train on as many."""
    if settings.held_out <= 0:
        return 0
    languages, numbers = language_numbers(settings)
    needed = 2 if _draws_donors(settings) else 1
    apart = _apart(languages, settings) and needed > 1
    of = numbers[documents.sources] if apart else np.zeros(len(documents.keys), np.int64)
    aside = np.bincount(of[is_held_out(documents.keys, settings)], minlength=1)
    if aside.max() >= needed:
        return 0
    draws = _draws(documents.keys, settings)
    groups = [draws[of == group] for group in np.flatnonzero(np.bincount(of) >= 2 * needed)]
    return min((int(np.partition(group, needed - 1)[needed - 1]) + 1 for group in groups), default=0)


def _alone_aside(
    documents: _Documents, aside: NDArray[np.bool_], settings: DataSettings
) -> NDArray[np.int64]:
    """Return the held-out documents that are the only ones of their language there, if pairs must not mix languages."""
    languages, numbers = language_numbers(settings)
    if not (_apart(languages, settings) and _draws_donors(settings)):
        return np.empty(0, np.int64)
    places = np.flatnonzero(aside)
    of = numbers[documents.sources[places]]
    return places[np.bincount(of, minlength=len(languages))[of] == 1]


def _apart(languages: list[str], settings: DataSettings) -> bool:
    return not settings.across_languages and len(languages) > 1


def _draws_donors(settings: DataSettings) -> bool:
    task = pair_task(settings.sequences)
    return task is not None and task.random_next


def _rates(documents: _Documents, settings: DataSettings) -> tuple[float, ...]:
    """Compute `ShardRange.source_rates` from the tokens of each source."""
    amounts = np.bincount(documents.sources, weights=documents.tokens, minlength=len(settings.sources))
    rates = repeats(amounts, settings)
    return () if (rates == 1.0).all() else tuple(rates.tolist())


def _pools_of_split(
    split: str, documents: _Documents, rates: tuple[float, ...], settings: DataSettings
) -> list[DocumentPool]:
    """Plan the pools of one split in which a document has a pass; with data.across_languages=false, one language
    after the other. Raises UserError if there is none."""
    languages, numbers = language_numbers(settings)
    if not _apart(languages, settings):
        pools = _pools_of_language(split, "", (), documents, rates, settings)
    else:
        pools = []
        for number, language in enumerate(languages):
            sources = np.flatnonzero(numbers == number)
            chosen = documents.take(np.isin(documents.sources, sources))
            if len(chosen.keys):
                pools += _pools_of_language(split, language, tuple(sources.tolist()), chosen, rates, settings)
    pools = [pool for pool in pools if pool.shards]
    if not pools:
        raise UserError(
            f"leave no pass over any of {len(documents.keys)} {split} documents",
            where="data.weights",
            remedy="raise them, or add text",
        )
    return pools


def _pools_of_language(
    split: str,
    language: str,
    sources: tuple[int, ...],
    documents: _Documents,
    rates: tuple[float, ...],
    settings: DataSettings,
) -> list[DocumentPool]:
    keys, tokens = documents.keys, documents.tokens
    if len(keys) == 1 and _draws_donors(settings):
        raise _alone(split, language)
    passes = document_passes(keys, documents.sources, rates, settings.seed, settings.dupe_factor)
    wanted = max(int(tokens.sum()) // POOL_TOKENS, len(keys) // POOL_DOCUMENTS)
    count = max(1, min(wanted, len(keys) // settings.min_donors))
    borders = [len(keys) * n // count for n in range(count + 1)]
    return [
        DocumentPool(
            split,
            int(keys[first]),
            int(keys[last - 1]),
            _shard_ranges(tokens[first:last], passes[first:last], rates, settings),
            sources,
        )
        for first, last in pairwise(borders)
    ]


def _alone(split: str, language: str) -> UserError:
    """Return the error for a random next segment that has no document to come from."""
    remedy = "add text, or data.across_languages=true" if language else ALONE
    return UserError(
        f"a random next segment needs another document{' in ' * bool(language)}{language}, and there is only one"
        + " held out" * (split == HELD_OUT),
        where="data.sources",
        expected="two documents or more" + " of each language" * bool(language),
        remedy="change data.held_out" if split == HELD_OUT else remedy,
    )


def _shard_ranges(
    tokens: NDArray[np.int64], passes: NDArray[np.int64], rates: tuple[float, ...], settings: DataSettings
) -> tuple[ShardRange, ...]:
    """Cut runs of documents of about shard_tokens over all passes: a new run begins with the document that crosses a
    multiple of it. Documents without a pass begin none; every run has another document."""
    each = max(1, settings.shard_tokens // settings.dupe_factor) * settings.dupe_factor
    passed = np.flatnonzero(passes)
    work = tokens[passed] * passes[passed]
    number = (np.cumsum(work) - work) // each
    starts = passed[np.flatnonzero(np.diff(number, prepend=-1))].tolist()
    if starts:
        starts[0] = 0
    return tuple(ShardRange(a, b, rates) for a, b in zip(starts, [*starts[1:], len(tokens)], strict=False))


def pools_json(pools: list[DocumentPool]) -> bytes:
    """Encode the plan as the file that `parsed_pools` reads."""
    return canonical_json([asdict(pool) for pool in pools])


def parsed_pools(data: bytes) -> list[DocumentPool]:
    """Parse the plan that `pools_json` wrote."""
    return [
        DocumentPool(
            row["split"],
            row["first_key"],
            row["last_key"],
            tuple(
                ShardRange(shard["start"], shard["stop"], tuple(shard["source_rates"]))
                for shard in row["shards"]
            ),
            tuple(row["sources"]),
            row["takes_held_out"],
            row.get("held_out_limit", 0),
        )
        for row in json.loads(data)
    ]


# Merge the documents of many tokenized parts into one corpus in key order.

CHUNK_TOKENS = 1 << 25
"""Approximate tokens that `merge` holds in memory at a time; a longer document is held whole."""
SENTENCE_TOKENS = 8
"""Weight of a sentence in a chunk, in tokens: its start takes that much more memory."""
MAX_GAP_TOKENS = 1 << 14
"""Maximum gap between two documents, in tokens, for one read to cover both."""


class DocumentRows(NamedTuple):
    """Where documents are; one row per document."""

    parts: NDArray[np.int32]  # number of the part
    keys: NDArray[np.uint64]
    sources: NDArray[np.uint16]
    tokens: NDArray[np.int64]  # first token in the part
    token_counts: NDArray[np.int64]
    sentences: NDArray[np.int64]  # first sentence in the part
    sentence_counts: NDArray[np.int64]


def locate(number: int, corpus: Corpus, chosen: NDArray[np.int64]) -> DocumentRows:
    """Return the rows of the documents `chosen` (ascending) of part `number`, copied so that the part can be closed."""
    first, last = corpus.document_starts[chosen], corpus.document_starts[chosen + 1]
    start, stop = corpus.sentence_starts[first], corpus.sentence_starts[last]
    keys, sources = np.array(corpus.keys[chosen]), np.array(corpus.sources[chosen])
    part = np.full(len(chosen), number, np.int32)
    return DocumentRows(part, keys, sources, start, stop - start, first, last - first)


def merge(parts: list[Path], found: list[DocumentRows], folder: Path, threads: int = 1) -> None:
    """Write the documents `found` in the folders `parts` into `folder`, in key order.

    Each part is sorted: what a chunk of the result takes from it is nearly contiguous, and is read from its file in
    few pieces, `threads` chunks at a time. So memory stays small, and nothing stays mapped or open, for any size and
    number of parts. The result is written sequentially: a full disk raises an error, where a map would kill the
    process."""
    rows = DocumentRows._make(np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(rows.keys, kind="stable")
    rows = DocumentRows._make(column[order] for column in rows)
    document_starts, token_starts = offsets_of(rows.sentence_counts), offsets_of(rows.token_counts)
    save_column(folder / "keys.npy", rows.keys)
    save_column(folder / "sources.npy", rows.sources)
    save_column(folder / "document_starts.npy", document_starts)
    with (
        open_to_write(folder / "tokens.npy", "wb") as tokens,
        open_to_write(folder / "sentence_starts.npy", "wb") as starts,
    ):
        write_header(tokens, open_corpus(parts[0]).tokens.dtype, int(token_starts[-1]))
        write_header(starts, np.dtype(np.int64), int(document_starts[-1]) + 1)

        def columns(first: int, last: int) -> tuple[NDArray, NDArray[np.int64]]:
            chunk = DocumentRows._make(column[first:last] for column in rows)
            text = _collected(parts, chunk, "tokens", chunk.tokens, chunk.token_counts)
            places = _collected(parts, chunk, "sentence_starts", chunk.sentences, chunk.sentence_counts)
            places += np.repeat(token_starts[first:last] - chunk.tokens, chunk.sentence_counts)
            return text, places

        for text, places in _ahead(columns, _chunks(rows), threads):
            tokens.write(text.data)
            starts.write(places.data)
        starts.write(token_starts[-1:].data)


def _ahead(function: Callable[..., Any], tasks: Iterator[tuple], threads: int) -> Iterator[Any]:
    """Yield function(*task) for each task in order, `threads` at a time."""
    with ThreadPoolExecutor(threads) as pool:
        under_way = deque(pool.submit(function, *task) for task in islice(tasks, threads))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(pool.submit(function, *task) for task in islice(tasks, 1))
            yield result


def _chunks(rows: DocumentRows) -> Iterator[tuple[int, int]]:
    """Yield the runs of documents that are held in memory together."""
    cost = rows.token_counts + SENTENCE_TOKENS * rows.sentence_counts
    number = (np.cumsum(cost) - cost) // CHUNK_TOKENS
    borders = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    yield from zip(borders, [*borders[1:], len(number)], strict=True)


def _collected(
    parts: list[Path], rows: DocumentRows, column: str, first: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray:
    """Return the values `first` to first + counts of a column of the rows' parts, row after row."""
    out = np.empty(0)
    places = np.cumsum(counts) - counts
    by_part = np.argsort(rows.parts, kind="stable")
    borders = np.flatnonzero(np.diff(rows.parts[by_part], prepend=-1, append=-1))
    for a, b in pairwise(borders):
        mine = by_part[a:b]  # in key order, so ascending in the part too
        starts, lengths = first[mine], counts[mine]
        with open(parts[rows.parts[mine[0]]] / f"{column}.npy", "rb") as file:
            dtype, origin = opened(file)
            if not len(out):
                out = np.empty(int(counts.sum()), dtype)
            far = np.flatnonzero(starts[1:] - (starts + lengths)[:-1] > MAX_GAP_TOKENS) + 1
            for run in np.split(np.arange(len(mine)), far):
                low, high = int(starts[run[0]]), int(starts[run[-1]] + lengths[run[-1]])
                file.seek(origin + low * dtype.itemsize)
                values = np.fromfile(file, dtype, high - low)
                _scatter(values, starts[run] - low, lengths[run], places[mine[run]], out)
    return out


@jit
def _scatter(values, starts, counts, places, out):
    for i in range(len(starts)):
        copy_run(out, places[i], values, starts[i], starts[i] + counts[i])
