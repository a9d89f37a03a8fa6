"""Cut a text into windows that overlap, each an input beside a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.inputs.builder import Input, InputBuilder


@dataclass(frozen=True)
class Window:
    """An input of a question and a part of a text."""

    input: Input
    spans: tuple[tuple[int, int] | None, ...]
    """Of each token: its characters in the whole text, without spaces; None outside of the text."""
    is_widest: tuple[bool, ...]
    """Of each token: whether no other window has more text on both sides of it."""
    cls: int
    """Place of the classification token."""


class _Piece(NamedTuple):
    """Tokens of a window: their ids, characters and whether no other window has more text around them."""

    ids: list[int]
    spans: list[tuple[int, int] | None]
    is_widest: list[bool]


def windows(builder: InputBuilder, question: str, text: str, question_tokens: int, step: int) -> list[Window]:
    """Return the inputs of a question, cut to `question_tokens`, with each part of a text: as much of it as fits,
    from every `step`-th token on until its end is reached (google-research/bert, run_squad.py); where less than
    two steps fit, parts overlap by half. The text comes first where inputs are padded on the left, as in XLNet's
    run_squad.py and in transformers. Raises UserError where max_length leaves no room for text, and for a model
    that reads from right to left."""
    if builder.is_backwards:
        raise UserError(
            "the model reads from right to left", where="questions", expected="one that reads both ways"
        )
    first, second = builder.encoded(question), builder.encoded(text)
    was_cut = len(first) > question_tokens
    first.truncate(question_tokens)
    room = builder.max_length - builder.special_pair - len(first)
    if room < 1:
        raise UserError(
            f"{builder.max_length} tokens leave no room for text beside a question", where="max_length"
        )
    starts = [0]
    while starts[-1] + room < len(second):
        starts.append(starts[-1] + min(step, max(1, room // 2)))
    parts = [range(start, min(start + room, len(second))) for start in starts]
    owners = [widest(token, parts) for token in range(len(second))]
    spans = _spans(text, second.offsets)
    asked = _Piece(first.ids, [None] * len(first), [False] * len(first))
    found = []
    for number, part in enumerate(parts):
        place = slice(part.start, part.stop)
        read = _Piece(second.ids[place], spans[place], [owners[token] == number for token in part])
        pieces = (read, asked) if builder.left_padded else (asked, read)
        found.append(_window(builder, *pieces, was_cut))
    return found


def _window(builder: InputBuilder, first: _Piece, second: _Piece, was_cut: bool) -> Window:
    """Return the window of two pieces in this order, with the special tokens around them."""
    before, between, after = builder.pair_frame
    segments = builder.pair_segments
    ids = [*before.ids, *first.ids, *between.ids, *second.ids, *after.ids]
    types = [*before.segments, *[segments[0]] * len(first.ids), *between.segments]
    types += [*[segments[1]] * len(second.ids), *after.segments]
    gaps = [_Piece([], [None] * len(one.ids), [False] * len(one.ids)) for one in (before, between, after)]
    pieces = (gaps[0], first, gaps[1], second, gaps[2])
    return Window(
        Input(ids, types, was_cut),
        tuple(span for piece in pieces for span in piece.spans),
        tuple(known for piece in pieces for known in piece.is_widest),
        ids.index(builder.classification),
    )


def widest(token: int, parts: Sequence[range]) -> int:
    """Return which of the parts that hold the token has most text on both sides of it: the smaller side, then the
    longer part, then the first.

    >>> [widest(token, [range(0, 6), range(3, 9)]) for token in (2, 4, 5, 8)]
    [0, 0, 1, 1]
    """
    sides = [
        min(token - part.start, part.stop - 1 - token) + 0.01 * len(part) if token in part else -1.0
        for part in parts
    ]
    return sides.index(max(sides))


def _spans(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Return the characters of each token without spaces; those of a token of spaces are none, before the next one.
    What lies between two tokens belongs to the second one: byte-level BPE takes the first character of a text for the
    space that it puts before it."""
    found: list[tuple[int, int] | None] = []
    before = 0
    for start, end in offsets:
        found.append(_without_spaces(text, min(start, before), end))
        before = max(before, end)
    return found


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without the spaces at its ends, which a token may hold; (end, end) where nothing is left."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, max(start, end - (len(piece) - len(piece.rstrip())))
