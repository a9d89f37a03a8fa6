"""Draw blanks from held-out examples: their first segments with one word hidden, and that word.

Which words are hidden is drawn by the example's number, not chosen by what a model can fill. Words of fewer than four
letters and closed-class words (the, of, which) are left alone: they say little about what was learnt.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import text_key
from data_pipeline.errors import UserError
from data_pipeline.index import TOKENIZER, Index
from data_pipeline.layout import Layout
from data_pipeline.packing import original_tokens
from data_pipeline.pieces import Vocabulary
from data_pipeline.shards import BlockReader
from data_pipeline.storage import read_bytes
from data_pipeline.units import closed_class_words
from data_pipeline.vocabulary import parse_tokenizer_json
from pretrain.exporting import read_config
from pretrain.phases import phases_of

SHORTEST = 4
"""Letters of a word that may be hidden."""


class Blank(NamedTuple):
    """A text with [MASK] in it, and the word that stood there."""

    text: str
    word: str


def blanks_of_run(run: Path, count: int) -> list[Blank]:
    """`held_out_blanks` of the shards that the run was trained on, at last. Raises UserError as it does, and for what
    is no run folder."""
    config = phases_of(read_config(run))[-1].config
    return held_out_blanks(Index.load(config.train.shards or config.data.out), count)


def held_out_blanks(index: Index, count: int) -> list[Blank]:
    """At most `count` blanks, one each of examples that lie evenly spread over the held-out ones; the same every time.

    An example without a word to hide gives its place to the next one that no other blank is from. Raises UserError
    where nothing was held out, or nothing can be hidden."""
    if not index.held_out.examples:
        raise UserError(
            "holds no held-out examples",
            where=index.folder,
            expected="shards prepared with data.held_out",
            remedy="give sentences of your own",
        )
    vocabulary = parse_tokenizer_json(read_bytes(index.path(TOKENIZER)).decode(), str(index.folder))
    hideable = _hideable(vocabulary)
    starts = np.linspace(0, index.held_out.examples, count, endpoint=False).astype(np.int64)
    found: list[Blank] = []
    for start, stop in zip(starts, [*starts[1:], index.held_out.examples], strict=True):
        for number, ids in _first_segments(index, int(start), int(stop)):
            places = _whole_words(ids, hideable, vocabulary)
            if len(places):
                place = places[text_key(f"blank {number}") % len(places)]
                found.append(_blank(ids, int(place), vocabulary))
                break
    if not found:
        raise UserError("no held-out example has a word to hide", where=index.folder)
    return found


def _first_segments(index: Index, start: int, stop: int) -> Iterator[tuple[int, NDArray]]:
    """Number and ids, without special tokens, of the first segment of each held-out example start..stop-1."""
    layout = Layout(index.held_out.shard_examples, index.block_examples)
    runs = list(layout.runs(start, stop - start))
    number = start
    reader = BlockReader(index, index.held_out)
    for run in runs:
        (block,) = reader.read([(run.shard, run.block)])
        tokens = original_tokens(block)
        special = [index.vocabulary.cls, index.vocabulary.sep]
        for row in range(run.first, run.first + run.rows):
            first = int(block.offsets[row])
            ids = tokens[first : first + int(block.first_lengths[row])]
            yield number, ids[~np.isin(ids, special)]
            number += 1


def _hideable(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """(vocabulary,): which pieces are words of letters alone, and none of a closed class."""
    closed = {word.lower() for word in closed_class_words()}
    words = [_word(vocabulary, i) for i in range(vocabulary.size)]
    fits = [len(w) >= SHORTEST and w.isalpha() and w.lower() not in closed for w in words]
    special = [vocabulary.ids[token] for token in vocabulary.specials]
    return np.array(fits, np.bool_) & ~vocabulary.continuation & ~np.isin(np.arange(vocabulary.size), special)


def _whole_words(ids: NDArray, hideable: NDArray[np.bool_], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Places of the words that are one piece and may be hidden."""
    goes_on = np.append(vocabulary.continuation[ids][1:], False)
    return np.flatnonzero(hideable[ids] & ~goes_on)


def _word(vocabulary: Vocabulary, number: int) -> str:
    return str(vocabulary.tokenizer.decode([number], skip_special_tokens=False)).strip()


def _blank(ids: NDArray, place: int, vocabulary: Vocabulary) -> Blank:
    before, after = (
        str(vocabulary.tokenizer.decode(part.tolist(), skip_special_tokens=False)).strip()
        for part in (ids[:place], ids[place + 1 :])
    )
    return Blank(f"{before} [MASK] {after}".strip(), _word(vocabulary, int(ids[place])))
