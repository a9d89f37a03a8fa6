"""Reproduce the instances of google-research/bert's create_pretraining_data.py, id for id and in its order.

The text holds one sentence per line; a blank line separates documents, the end of a file does not. Every draw comes
from Python's `random.Random(seed)` in the script's order: documents shuffled once; in each pass and document the pairs,
each masked as soon as it is made; at last all instances shuffled. All in one process: this mode answers "is it the
same?", the fast mode is the one that scales.

Memory grows with sentences and instances, not with bytes: 24 bytes per sentence at the end of reading, then 8; 40
per document; 60 per instance at the peak; and some 150 MB for buffers and the word cache. Token ids and instances
are spilled to disk, memory-mapped, 2 bytes per token of the text and 2.6 per token of the instances (dupe_factor
times as many), or twice that if the vocabulary exceeds 65,536; the spill is deleted at the end.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import open_bytes, reading
from data_pipeline.io.files import open_to_write
from data_pipeline.io.npy import mapped, offsets_of
from data_pipeline.jit import copy_run, jit
from data_pipeline.masking.masker import Masker, emit_masked, mask_sequence, scratch_for
from data_pipeline.records import Corpus, Examples
from data_pipeline.rng import python_stream, shuffle
from data_pipeline.sequences.base import AT_START, draw_target, flat_columns, no_files, write_pair
from data_pipeline.sequences.pairs import NextSentencePairs, next_pair
from data_pipeline.settings import DataSettings
from data_pipeline.shards.statistics import text_statistics
from data_pipeline.sources.cleaning import Counts, check_encoding, decode
from data_pipeline.sources.formats import SourceFile
from data_pipeline.stages.corpus import document_tokens
from data_pipeline.stages.tasks import spill
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.fit import refuse_unknown
from data_pipeline.vocabulary.wordpiece import WordPiece

WORD_CHARACTERS = 200
"""The script maps longer words to unknown; most vocabularies say 100."""
READ_CHARACTERS = 1 << 22
"""Text tokenized at a time."""
BUFFER_TOKENS = 1 << 22
"""Tokens of instances that compiled code buffers before they are spilled."""

DOCUMENT, POSITION, TARGET, USED = range(4)  # what a pass keeps from one buffer to the next


def exact_examples(
    files: Sequence[SourceFile],
    vocabulary: Vocabulary,
    settings: DataSettings,
    spool_folder: str | Path,
    counts: Counts | None = None,
    text: dict[str, int] | None = None,
) -> Iterator[Examples]:
    """Yield the script's instances in blocks of `settings.block_examples`; update `counts` with what was read and,
    before the first block, `text` with the `text_statistics`.

    `files` in the order in which the script reads them: its patterns as given, each expanded in sorted order, as
    `discover` lists them; a file cut into pieces is read once, as a whole. The spool is a folder `exact.partial` in
    `spool_folder`; leftovers of a killed run are removed. Raises UserError for settings that this mode cannot
    honour, a file that is not text or cannot be read, files without a sentence, or text that is mostly unknown to the
    vocabulary."""
    _check(files, settings)
    builder = NextSentencePairs.from_settings(settings, vocabulary)
    masker = Masker.from_settings(settings, vocabulary)
    spool = Path(spool_folder) / "exact.partial"
    shutil.rmtree(spool, ignore_errors=True)
    spool.mkdir(parents=True)
    try:
        stream = python_stream(settings.seed)
        counts = Counts() if counts is None else counts
        corpus = read_corpus(files, vocabulary, spool, counts)
        refuse_unknown(counts.as_dict(), settings.vocab)
        used = np.zeros(settings.dupe_factor, np.int64)
        examples = spill(script_instances(corpus, builder, masker, stream, settings.dupe_factor, used), spool)
        if text is not None:
            tokens, passes = document_tokens(corpus), np.full(len(corpus), settings.dupe_factor)
            text.update(text_statistics(tokens, passes, builder.least_tokens, int(used[0])))
        order = np.arange(len(examples))
        shuffle(stream, order)
        for first in range(0, len(order), settings.block_examples):
            yield examples.take(order[first : first + settings.block_examples])
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def _check(files: Sequence[SourceFile], settings: DataSettings) -> None:
    for file in files:
        if file.format != "text":
            raise UserError(
                "exact mode reads plain text only",
                where=file.uri,
                expected="one sentence per line, documents separated by blank lines",
                remedy="or choose data.mode=fast",
            )


def read_corpus(
    files: Sequence[SourceFile], vocabulary: Vocabulary, spool: Path, counts: Counts | None = None
) -> Corpus:
    """Tokenize the files into `spool`; update `counts`. Lines without a token and documents without a line are
    dropped."""
    if not isinstance(vocabulary, WordPiece):
        raise UserError(
            "exact mode repeats BERT's script, which knows WordPiece only",
            where="data.vocab",
            expected="a WordPiece vocabulary",
            remedy="or choose data.mode=fast",
        )
    counts = Counts() if counts is None else counts
    cache = WordCache(replace(vocabulary, word_characters=WORD_CHARACTERS))
    lines = _lines(files, vocabulary.normalization.lowercase, counts)
    lengths, starts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sentences, document = 0, -1
    with open_to_write(spool / "text.tokens", "wb") as out:
        for batch in _batches(lines):
            ids, tokens = cache.encode([line for _, line in batch])
            counts.sentences += len(batch)
            counts.empty_sentences += int((tokens == 0).sum())
            counts.tokens += len(ids)
            counts.unknown_tokens += int((ids == vocabulary.unk).sum())
            counts.unknown_long_words += cache.take_long_words()
            out.write(np.ascontiguousarray(ids, vocabulary.dtype).data)
            owners = np.fromiter((number for number, _ in batch), np.int64, len(batch))[tokens > 0]
            starts.append(sentences + np.flatnonzero(np.diff(owners, prepend=document)))
            lengths.append(tokens[tokens > 0])
            sentences += len(owners)
            document = owners[-1] if len(owners) else document
    if not sentences:
        raise UserError("no sentence found", where="data.sources", expected="text, one sentence a line")
    document_starts = np.concatenate([*starts, np.full(1, sentences)])
    counts.documents += len(document_starts) - 1
    return Corpus(
        tokens=mapped(spool / "text.tokens", vocabulary.dtype),
        sentence_starts=offsets_of(np.concatenate(lengths)),
        document_starts=document_starts,
        keys=np.arange(len(document_starts) - 1, dtype=np.uint64),
        sources=np.zeros(len(document_starts) - 1, np.uint16),
    )


def _batches(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line[1])
        if size >= READ_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _lines(files: Iterable[SourceFile], lowercase: bool, counts: Counts) -> Iterator[tuple[int, str]]:
    """Yield (document number, line) of the lines that are not blank. As in the script, a line ends at a line feed
    only, bytes that are not UTF-8 are dropped, and white space at both ends is stripped. Python, unlike the
    tokenizers library, lower-cases a Greek sigma by its place in the word."""
    document = 0
    for uri, compression in dict.fromkeys((file.uri, file.compression) for file in files):
        with reading(uri), open_bytes(uri, compression) as raw_lines:
            check_encoding(raw_lines.peek(4096)[:4096], uri)
            for raw in raw_lines:
                counts.bytes += len(raw)
                if line := decode(raw, counts, "ignore").strip():
                    yield document, line.lower() if lowercase and "\u03a3" in line else line
                else:
                    document += 1


def script_instances(
    corpus: Corpus,
    builder: NextSentencePairs,
    masker: Masker,
    stream: NDArray[np.uint64],
    passes: int,
    used: NDArray[np.int64] | None = None,
) -> Iterator[Examples]:
    """Yield all instances in the order in which the script makes them, before it shuffles them; `stream` advances.
    Each yielded value is overwritten by the next. `used`: set to the tokens that each pass puts into an instance; as
    a random second segment they do not count."""
    tokens, starts, firsts, lasts, keys, sources = flat_columns(corpus)
    order = np.arange(len(corpus))
    shuffle(stream, order)
    columns = (tokens, starts, firsts[order], lasts[order], keys, sources, no_files())
    counts = masker.counts(np.arange(builder.sequence_length + 1))
    out = _buffers(int(counts[-1]), tokens.dtype)
    flat, offsets, first_lengths, labels, positions, ids, masked_offsets = out
    numbers = (builder.room, float(builder.short_seq_prob), counts)
    _, places, covered = scratch_for(builder.room + 3)
    scratch = (np.empty(builder.room + 3, tokens.dtype), places, covered)
    for number in range(passes):
        walk = np.array([0, AT_START, 0, 0], np.int64)
        while walk[DOCUMENT] < len(corpus):
            n = _fill_exact(walk, stream, numbers, columns, masker.rule, scratch, out)
            masked = slice(masked_offsets[n])
            yield Examples(
                flat[: offsets[n]], offsets[: n + 1], first_lengths[:n], labels[:n],
                positions[masked], ids[masked], masked_offsets[: n + 1],
            )  # fmt: skip
        if used is not None:
            used[number] = walk[USED]


def _buffers(most_masked: int, dtype: np.dtype) -> tuple[NDArray, ...]:
    """Allocate buffers for the columns of Examples; unused pages cost no memory."""
    sequences = BUFFER_TOKENS // 64
    masked = min(sequences * most_masked, BUFFER_TOKENS)
    return (
        np.empty(BUFFER_TOKENS, dtype),
        np.zeros(sequences + 1, np.int64),
        np.empty(sequences, np.uint16),
        np.empty(sequences, np.int8),
        np.empty(masked, np.uint16),
        np.empty(masked, dtype),
        np.zeros(sequences + 1, np.int64),
    )


@jit
def _fill_exact(walk, stream, numbers, columns, rule, scratch, out):
    """Write masked pairs into the buffers `out` until the pass is done or a buffer is full; return how many.
    scratch: a sequence, and the work arrays of `mask_sequence`."""
    room, short_seq_prob, counts = numbers
    _, _, firsts, lasts, _, _, files = columns
    tokens, offsets, first_lengths, labels, positions, ids, masked_offsets = out
    sequence, places, covered = scratch
    made = 0
    while walk[DOCUMENT] < len(firsts) and made < len(labels) and offsets[made] + room + 3 <= len(tokens):
        document = walk[DOCUMENT]
        if walk[POSITION] == AT_START:
            walk[POSITION] = firsts[document]
            walk[TARGET] = draw_target(stream, room, short_seq_prob)
        pair, label, _, onward = next_pair(stream, columns, document, walk[POSITION], walk[TARGET], room, 0.5)
        first, whole = write_pair(columns[0], files, pair, (rule.cls, rule.sep, 1), sequence, 0)
        corrupted = tokens[offsets[made] : offsets[made] + whole]
        copy_run(corrupted, 0, sequence, 0, whole)
        done = mask_sequence(stream, counts[whole], rule, sequence[:whole], corrupted, covered, places)
        at = masked_offsets[made]
        emit_masked(sequence, covered, done, positions[at:], ids[at:])
        first_lengths[made], labels[made] = first, label
        offsets[made + 1], masked_offsets[made + 1] = offsets[made] + whole, at + done
        made += 1
        walk[USED] += pair[1] - pair[0] + (0 if label else pair[3] - pair[2])
        if onward == lasts[document]:
            walk[DOCUMENT], walk[POSITION] = document + 1, AT_START
        else:
            walk[POSITION] = onward
    return made
