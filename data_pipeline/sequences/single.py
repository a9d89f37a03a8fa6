"""Build single sequences of whole sentences from documents: [CLS] text [SEP], without a label."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from data_pipeline.jit import copy_run, jit
from data_pipeline.records import NO_LABEL, Corpus, Segments
from data_pipeline.rng import SEGMENTS, derive_key, start
from data_pipeline.sequences.base import (
    AT_START,
    DOCUMENT,
    ORDINAL,
    PASS,
    POSITION,
    TARGET,
    TOKEN,
    USED,
    Passes,
    SequenceBuilder,
    begin,
    draw_target,
    go_on,
    write_stream,
)

# Make sequences from the flat columns of a Corpus, in compiled loops.


@jit
def next_stream(starts, last, position, token, target, room):
    """Return the end token of the sequence that begins at `token` of sentence `position`, and the sentence where the
    next sequence begins."""
    end = starts[position + 1]
    onward = position + 1
    while onward < last and starts[onward + 1] - token <= target:
        onward += 1
        end = starts[onward]
    if end - token > room:
        return token + room, position
    return end, onward


@jit
def fill_streams(walk, stream, numbers, passes, columns, frame, out):
    """Write single sequences, each from one document, into the buffers `out` until the documents are done or a buffer
    is full; return how many. `numbers`: seed, first and last + 1 document, room, short_seq_prob."""
    _, _, stop, room, _ = numbers
    starts, lasts, sources = columns[1], columns[3], columns[5]
    tokens, offsets, first_lengths, labels, keys, first_sources, last_sources = out
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 2 <= len(tokens):
        key = begin(walk, stream, numbers, columns)
        document, token = walk[DOCUMENT], walk[TOKEN]
        end, onward = next_stream(starts, lasts[document], walk[POSITION], token, walk[TARGET], room)
        whole = write_stream(columns[0], token, end, frame, tokens, offsets[made])
        offsets[made + 1] = offsets[made] + whole
        first_lengths[made], labels[made], keys[made] = whole, NO_LABEL, derive_key(key, walk[ORDINAL])
        first_sources[made] = last_sources[made] = sources[document]
        made += 1
        if walk[PASS] == 0:
            walk[USED] += end - token
        go_on(walk, onward, end, numbers, passes, lasts[document])
    return made


@jit
def _begin_sequence(walk, stream, numbers, columns):
    """Return the key of the sequence that begins here. Its number and target length belong to the document and pass in
    which it begins; the target is drawn when their first sequence begins."""
    seed, _, _, room, short_seq_prob = numbers
    starts, firsts, keys = columns[1], columns[2], columns[4]
    key = derive_key(keys[walk[DOCUMENT]], walk[PASS])
    if walk[POSITION] == AT_START:
        walk[POSITION] = firsts[walk[DOCUMENT]]
        walk[TOKEN] = starts[walk[POSITION]]
    if walk[TARGET] == 0:
        start(stream, seed, key, np.uint64(SEGMENTS))
        walk[TARGET], walk[ORDINAL] = draw_target(stream, room, short_seq_prob), 0
    walk[ORDINAL] += 1
    return derive_key(key, walk[ORDINAL] - 1)


@jit
def _next_document(walk, numbers, passes, most):
    """Move to the next document of this pass, or to the first one of the next pass; return True if the pass is the
    same. `most`: maximum passes over a document."""
    _, first, stop, _, _ = numbers
    walk[POSITION], walk[TARGET] = AT_START, 0
    number = walk[PASS]
    walk[DOCUMENT] += 1
    while walk[PASS] < most:
        while walk[DOCUMENT] < stop:
            if passes[walk[DOCUMENT] - first] > walk[PASS]:
                return walk[PASS] == number
            walk[DOCUMENT] += 1
        walk[PASS] += 1
        walk[DOCUMENT] = first
    walk[DOCUMENT] = stop
    return False


@jit
def _take_text(walk, taken, target, columns, numbers, passes, most, frame, out, at):
    """Add sentences of one document to the sequence at out[at:], which has `taken` tokens so far, and advance the walk.
    Return the new number of tokens (0: nothing added), and whether the sequence continues with another document."""
    room = numbers[3]
    tokens, starts, firsts, lasts = columns[0], columns[1], columns[2], columns[3]
    last = lasts[walk[DOCUMENT]]
    position, token = walk[POSITION], walk[TOKEN]
    if taken:
        position = firsts[walk[DOCUMENT]]
        token = starts[position]
        taken += frame[2]  # the separator between documents
        if taken + starts[position + 1] - token > target:
            return 0, False
        if frame[2]:
            out[at + taken - 1] = frame[1]
    end, onward = next_stream(starts, last, position, token, target - taken, room - taken)
    copy_run(out, at + taken, tokens, token, end)
    if walk[PASS] == 0:
        walk[USED] += end - token
    if onward == last:
        return taken + end - token, _next_document(walk, numbers, passes, most)
    walk[POSITION], walk[TOKEN] = onward, end
    return taken + end - token, False


@jit
def fill_full(walk, stream, numbers, passes, columns, frame, out):
    """Write sequences that continue from one document to the next, one pass over all documents after another; otherwise
    as fill_streams."""
    _, _, stop, room, _ = numbers
    sources = columns[5]
    tokens, offsets, first_lengths, labels, keys, first_sources, last_sources = out
    cls, sep, separators = frame
    most = 0
    for n in passes:
        most = max(most, n)
    made = 0
    while walk[DOCUMENT] < stop and made < len(keys) and offsets[made] + room + 2 <= len(tokens):
        keys[made] = _begin_sequence(walk, stream, numbers, columns)
        at, target = offsets[made], walk[TARGET]
        first_sources[made] = last_sources[made] = sources[walk[DOCUMENT]]
        tokens[at] = cls
        taken, goes_on = 0, True
        while goes_on:
            source = sources[walk[DOCUMENT]]
            more, goes_on = _take_text(
                walk, taken, target, columns, numbers, passes, most, frame, tokens, at + 1
            )
            if more:
                taken, last_sources[made] = more, source
        if separators:
            tokens[at + 1 + taken] = sep
        whole = 1 + taken + separators
        offsets[made + 1] = at + whole
        first_lengths[made], labels[made] = whole, NO_LABEL
        made += 1
    return made


# Define the builders of single sequences.


class SingleStreams(SequenceBuilder):
    """[CLS] text [SEP]: as many consecutive whole sentences of one document as fit
    (DOC-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    `short_seq_prob` acts as for pairs: with this probability, a pass over a document targets a random shorter length.
    A sentence longer than the target is a sequence by itself. One longer than the maximum is cut there, and its rest
    begins the next sequence, so that no token is lost. With `short_seq_prob` 0 all passes yield the same sequences,
    each with different masks.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the sequences of documents start..stop-1, with `passes` over each. Labels are -1."""
        return self._walk(fill_streams, corpus, start, stop, seed, passes)


class FullSentences(SequenceBuilder):
    """As many whole sentences as fit, continuing from one document to the next, with a [SEP] between documents
    (FULL-SENTENCES of Liu et al. 2019, RoBERTa, section 4.2).

    Documents are in the order of their keys, which are hashes, one pass over all of them after another; a sequence
    never spans two passes. Target lengths and long sentences are treated as in SingleStreams, by the document in which
    a sequence begins. Which documents share a sequence depends on the range: unlike in the other builders, a document
    with different neighbours yields different sequences.
    """

    parts: ClassVar[int] = 1

    def pieces(self, corpus: Corpus, start: int, stop: int, seed: int, passes: Passes) -> Iterator[Segments]:
        """Yield the sequences of documents start..stop-1, pass after pass. Labels are -1."""
        return self._walk(fill_full, corpus, start, stop, seed, passes)
