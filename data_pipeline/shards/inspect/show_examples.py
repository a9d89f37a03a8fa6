"""Show single examples as text, or with the keys of google-research/bert's instances."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.records import NO_LABEL, Examples
from data_pipeline.sequences.registry import UNLABELLED, label_names, pair_task
from data_pipeline.shards.index import TOKENIZER, Index
from data_pipeline.shards.writer import BlockReader


def label_meanings(sequences: object) -> dict[int, str]:
    """Return what each label means for these sequences, for people."""
    task = pair_task(sequences)
    meanings = task.meanings if task else [f"label {name}" for name in label_names(sequences)]
    unlabelled = "no label" if sequences in UNLABELLED else "one segment"
    return dict(enumerate(meanings)) | {NO_LABEL: unlabelled}


def printed_examples(index: Index, split: str, count: str, as_json: bool) -> Iterator[str]:
    """Yield the first `count` (a number, or `all`) examples of a split, each as text or a line of JSON. Raises
    UserError for an invalid count or split."""
    if split not in index.splits:
        raise UserError(f"no split {split!r}", where=index.folder, expected=", ".join(index.splits))
    if count != "all" and not (count.isascii() and count.isdecimal() and len(count) <= 18):
        raise UserError(f"got {count}", where="--examples", expected="a number, or all")
    left = index.splits[split].examples if count == "all" else int(count)
    words = [] if as_json else words_of(index)
    names = label_meanings(index.settings.get("sequences"))
    blocks = BlockReader(index, index.splits[split]).all_blocks()
    each = ((block, number) for block in blocks for number in range(len(block)))
    for block, number in islice(each, min(left, index.splits[split].examples)):
        yield json.dumps(as_instance(block, number)) if as_json else rendered(block, number, words, names)


def words_of(index: Index) -> list[str]:
    """Return the pieces of the shards' vocabulary, by id; a number for an id that tokenizer.json does not name."""
    words = [f"<{number}>" for number in range(index.vocabulary.size)]
    try:
        tokenizer = json.loads(read_bytes(index.path(TOKENIZER)))
        pieces = tokenizer["model"]["vocab"]
        if not isinstance(pieces, dict):  # a unigram model's: [piece, score] by id
            pieces = {piece: number for number, (piece, _) in enumerate(pieces)}
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}
        for piece, number in (pieces | added).items():
            if 0 <= number < len(words):
                words[number] = str(piece)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # written elsewhere: the hash matches, but the model's layout is unknown here
    return words


def rendered(examples: Examples, number: int, words: list[str], names: dict[int, str]) -> str:
    """Format one example as text: what the encoder sees, and what it has to predict."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    shown = " ".join(words[i] for i in examples.tokens[span])
    wanted = " ".join(words[i] for i in examples.masked_ids[masked])
    return f"one example ({names[int(examples.labels[number])]}):\n  {shown}\nto find:\n  {wanted}"


def as_instance(examples: Examples, number: int) -> dict[str, Any]:
    """Return one example with the keys of google-research/bert's instances."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    length, first = span.stop - span.start, int(examples.first_lengths[number])
    return {
        "input_ids": examples.tokens[span].tolist(),
        "segment_ids": [0] * first + [1] * int(length - first)
        if examples.segment_ids is None
        else examples.segment_ids[span].tolist(),
        "is_random_next": bool(examples.labels[number] == 1),
        "masked_lm_positions": examples.masked_positions[masked].tolist(),
        "masked_lm_ids": examples.masked_ids[masked].tolist(),
    }
