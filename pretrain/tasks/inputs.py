"""Build an encoder's inputs from texts and words with its own tokenizer, and batches of these inputs.

What is too long is cut; a text beside a question is read in windows that overlap. A feature is an example as a model
takes it: its inputs, and its targets by the names of the model's arguments.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from data_pipeline.errors import UserError


@dataclass(frozen=True)
class Input:
    """One sequence as an encoder reads it."""

    ids: list[int]
    segments: list[int]
    was_cut: bool = False
    """Whether text was left out, for it was too long."""
    words: tuple[int | None, ...] = ()
    """Of a sentence given in words: each token's word; None for special tokens."""
    read: int = 0
    """Of a single text: its characters up to the end of the last token that is left; all where none is left out."""
    is_backwards: bool = False
    """Whether the tokens are in reversed order, for a model that reads from right to left."""

    def backwards(self) -> "Input":
        """Return the same tokens in reversed order."""
        return replace(
            self,
            ids=self.ids[::-1],
            segments=self.segments[::-1],
            words=self.words[::-1],
            is_backwards=not self.is_backwards,
        )

    @property
    def first_tokens(self) -> dict[int, int]:
        """Word -> place of the first token of it in the text, in the order of the words."""
        order = range(len(self.words))
        places: dict[int, int] = {}
        for place in reversed(order) if self.is_backwards else order:
            if (word := self.words[place]) is not None:
                places.setdefault(word, place)
        return places


STATED = (
    "padding_side",
    "model_input_names",
    *(f"{name}_token_id" for name in ("pad", "unk", "cls", "sep", "mask")),
    "pad_token_type_id",
    "all_special_ids",
)
"""What is read of a tokenizer beside its tokenizer.json, here and by tasks without training."""


def deciding_inputs(tokenizer: PreTrainedTokenizerFast) -> tuple[str, dict[str, Any]]:
    """Return what decides how texts are read: the tokenizer as tokenizer.json has it, with the lower-casing and accents
    of tokenizer_config.json, and what else the latter states that is read. Truncation and padding are left out, since
    an InputBuilder turns them off."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    stated = {name: getattr(tokenizer, name) for name in STATED}
    lists = {name: sorted(value) for name, value in stated.items() if isinstance(value, list)}
    return json.dumps(backend, sort_keys=True), stated | lists


class InputBuilder:
    """Build inputs with the tokenizer of an encoder's folder."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_length: int, backwards: bool = False) -> None:
        """`backwards`: give all tokens in reversed order."""
        self.tokenizer, self.max_length, self.is_backwards = tokenizer, max_length, backwards
        self.backend = tokenizer.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self.left_padded: bool = tokenizer.padding_side == "left"
        self.has_segments = "token_type_ids" in tokenizer.model_input_names
        self.unknown: int | None = tokenizer.unk_token_id
        self.special_single = self.backend.num_special_tokens_to_add(is_pair=False)
        self.special_pair = self.backend.num_special_tokens_to_add(is_pair=True)
        if max_length <= self.special_pair + 1:
            raise UserError(f"{max_length} tokens leave no room for text", where="max_length")

    def single(self, text: str) -> Input:
        """Return the input of one text, cut at the end to max_length."""
        encoding = self.encoded(text)
        room = self.max_length - self.special_single
        was_cut, read = len(encoding) > room, len(text)
        if was_cut:
            encoding.truncate(room)
            read = encoding.offsets[-1][1]
        whole = self.backend.post_process(encoding)
        return self._in_order(Input(whole.ids, whole.type_ids, was_cut, read=read))

    def pair(self, first_text: str, second_text: str) -> Input:
        """Return the input of two texts. A pair that is too long loses tokens one at a time from the end of the longer
        text, the second where both are equal (google-research/bert, run_classifier.py)."""
        first, second = self.encoded(first_text), self.encoded(second_text)
        kept = cut_pair(len(first), len(second), self.max_length - self.special_pair)
        was_cut = kept != (len(first), len(second))
        first.truncate(kept[0])
        second.truncate(kept[1])
        whole = self.backend.post_process(first, second)
        return self._in_order(Input(whole.ids, whole.type_ids, was_cut))

    def words(self, words: Sequence[str]) -> Input:
        """Return the input of a sentence given in words, joined by spaces as in running text; `words` of the result
        says which token belongs to which. A word of which nothing is left, since the tokenizer drops its characters,
        is read as the unknown token."""
        encoding = self.encoded(" ".join(words))
        owners = _owners(encoding, words)
        unread = [(word, self.unknown or 0) for word in sorted(set(range(len(words))) - set(owners))]
        tokens = sorted([*zip(owners, encoding.ids, strict=True), *unread], key=lambda token: token[0])
        kept = tokens[: self.max_length - self.special_single]
        before, after = self._frame
        return self._in_order(
            Input(
                [*before.ids, *(token for _, token in kept), *after.ids],
                [*before.segments, *[self._segment] * len(kept), *after.segments],
                len(kept) < len(tokens),
                (*[None] * len(before.ids), *(word for word, _ in kept), *[None] * len(after.ids)),
            )
        )

    @cached_property
    def classification(self) -> int:
        """The id of the classification token. Raises UserError for a tokenizer without one."""
        token = self.tokenizer.cls_token_id
        if token is None or token not in self.backend.post_process(self._probe).ids:
            raise UserError(
                "puts no classification token ([CLS] or <s>) into its inputs",
                where="tokenizer",
                expected="the tokenizer of an encoder, whose tokenizer_config.json names its cls_token",
            )
        return token

    @cached_property
    def pair_frame(self) -> tuple[Input, Input, Input]:
        """The special tokens before, between and after two texts."""
        whole = self.backend.post_process(self._probe, self._probe)
        one = whole.special_tokens_mask.index(0)
        two = whole.special_tokens_mask.index(0, one + 1)
        cuts = slice(0, one), slice(one + 1, two), slice(two + 1, None)
        before, between, after = (Input(whole.ids[cut], whole.type_ids[cut]) for cut in cuts)
        return before, between, after

    @cached_property
    def pair_segments(self) -> tuple[int, int]:
        """The segments of two texts."""
        whole = self.backend.post_process(self._probe, self._probe)
        first, second = (
            t for t, special in zip(whole.type_ids, whole.special_tokens_mask, strict=True) if not special
        )
        return first, second

    @property
    def segment_ids(self) -> dict[str, list[int]] | None:
        """The segments of a single text and of two texts; None for an encoder without segments."""
        return {"single": [self._segment], "pair": list(self.pair_segments)} if self.has_segments else None

    @cached_property
    def _frame(self) -> tuple[Input, Input]:
        """The special tokens before and after a single text."""
        whole = self.backend.post_process(self._probe)
        place = whole.special_tokens_mask.index(0)
        cuts = slice(0, place), slice(place + 1, None)
        before, after = (Input(whole.ids[cut], whole.type_ids[cut]) for cut in cuts)
        return before, after

    @cached_property
    def _segment(self) -> int:
        """The segment of a single text."""
        whole = self.backend.post_process(self._probe)
        return whole.type_ids[whole.special_tokens_mask.index(0)]

    @property
    def _probe(self) -> Encoding:
        """One token of text."""
        encoding = self.encoded("a")
        encoding.truncate(1)
        return encoding

    def encoded(self, text: str) -> Encoding:
        """Return the tokens of a text without special ones."""
        return self.backend.encode(text, add_special_tokens=False)

    def _in_order(self, one: Input) -> Input:
        return one.backwards() if self.is_backwards else one


def _owners(encoding: Encoding, words: Sequence[str]) -> list[int]:
    """Return the word of each token of " ".join(words), by its last character: where a token holds the space before its
    word too (SentencePiece), its first one is not the word's."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1  # the space after a word belongs to the next one
    return [int(np.searchsorted(ends, max(end - 1, 0), side="right")) for _, end in encoding.offsets]


def cut_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts of `first` and `second` tokens are kept in `room` tokens.

    >>> cut_pair(5, 9, 10), cut_pair(5, 5, 9), cut_pair(2, 3, 9)
    ((5, 5), (5, 4), (2, 3))
    """
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def padded(inputs: Sequence[Input], builder: InputBuilder) -> dict[str, np.ndarray]:
    """Return int64 arrays (inputs, longest) by the names that transformers' models take. Padded where the tokenizer
    pads, since a model that reads its last token (XLNet) needs it there."""
    longest = max(len(one.ids) for one in inputs)
    tokenizer = builder.tokenizer
    ids = np.full((len(inputs), longest), tokenizer.pad_token_id or 0, np.int64)
    mask = np.zeros((len(inputs), longest), np.int64)
    segments = np.full((len(inputs), longest), tokenizer.pad_token_type_id, np.int64)
    for row, one in enumerate(inputs):
        place = token_slice(len(one.ids), longest, builder.left_padded)
        ids[row, place], mask[row, place], segments[row, place] = one.ids, 1, one.segments
    arrays = {"input_ids": ids, "attention_mask": mask}
    return arrays | ({"token_type_ids": segments} if builder.has_segments else {})


def token_slice(length: int, longest: int, left_padded: bool) -> slice:
    """Return where the tokens of an input of `length` are in a row of `longest`."""
    return slice(longest - length, longest) if left_padded else slice(0, length)


# Cut a text into windows that overlap, each an input beside a question.


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


# Collect examples as features, cut these into batches of near lengths, and order those of training by a seed.


@dataclass(frozen=True)
class Feature:
    """One example as a model takes it: its sequences, several where it chooses between them, and its targets by the
    name of the model's argument. A target is a number, or one per token of the sequence."""

    inputs: tuple[Input, ...]
    targets: dict[str, float | int | list[int]]
    extra: Any = None
    """What the task needs to know of it to score the answer."""
    states: NDArray[np.float16] | None = None
    """(tokens, layers, width): hidden states of a frozen encoder, computed beforehand."""


WINDOW_BATCHES = 16
"""Batches whose examples are sorted by length together: less padding, and still a random order."""
PLACES = {"start_positions", "end_positions", "root", "owners", "heads"}
"""Targets that are places in the sequence: padding on the left moves them."""
IGNORED = -100
"""Target of a position without one (torch's cross-entropy)."""


def training_batches(
    lengths: NDArray[np.int64], batch: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the examples of each batch of one epoch: all of them once, the last batch smaller, in an order that
    depends on the arguments alone. Examples are permuted, windows of WINDOW_BATCHES batches sorted by length, and the
    batches of the epoch permuted."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    order = generator.permutation(len(lengths))
    window = WINDOW_BATCHES * batch
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), window):
        near = order[start : start + window]
        near = near[np.argsort(lengths[near], kind="stable")]
        batches += [near[i : i + batch] for i in range(0, len(near), batch)]
    return [batches[i] for i in generator.permutation(len(batches))]


def scoring_batches(lengths: NDArray[np.int64], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield the examples of each batch, from the longest to the shortest: as many as fit into `tokens` tokens."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def batches_by_cost(costs: Sequence[int], most: int) -> list[list[int]]:
    """Return the items of each batch, near in cost: as many as would cost `most` together if all cost as much as the
    dearest of them, at least one."""
    order = sorted(range(len(costs)), key=lambda i: (costs[i], i))
    batches: list[list[int]] = [[]]
    for i in order:
        if batches[-1] and (len(batches[-1]) + 1) * costs[i] > most:
            batches.append([])
        batches[-1].append(i)
    return [batch for batch in batches if batch]


def sizes(features: Sequence[Feature]) -> NDArray[np.int64]:
    """Return the longest sequence of each feature, in tokens."""
    return np.array([max(len(one.ids) for one in feature.inputs) for feature in features], np.int64)


def collate(
    features: Sequence[Feature], builder: InputBuilder, device: torch.device, choices: bool
) -> dict[str, Tensor]:
    """Return the arguments of a model's forward: (examples, longest), or (examples, choices, longest) where a feature
    has several sequences; targets (examples,), or (examples, longest) where they are per token; states (examples,
    longest, layers, width)."""
    arrays = padded([one for feature in features for one in feature.inputs], builder)
    if choices:
        arrays = {k: v.reshape(len(features), -1, v.shape[-1]) for k, v in arrays.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    longest = arrays["input_ids"].shape[-1]
    starts = torch.tensor([_start(feature, longest, builder) for feature in features])
    if (states := features[0].states) is not None:
        rows = np.zeros((len(features), longest, *states.shape[1:]), np.float16)
        for row, feature in zip(rows, features, strict=True):
            assert feature.states is not None
            row[token_slice(len(feature.states), longest, builder.left_padded)] = feature.states
        tensors["states"] = torch.from_numpy(rows)
    for name in features[0].targets:
        values = [feature.targets[name] for feature in features]
        if isinstance(values[0], list):
            rows = np.full((len(values), longest), IGNORED, np.int64)
            for row, value in zip(rows, values, strict=True):
                assert isinstance(value, list)
                row[token_slice(len(value), longest, builder.left_padded)] = value
            tensors[name] = torch.from_numpy(rows)
        else:
            tensors[name] = torch.tensor(values)
        if name in PLACES:
            shift = starts.view(-1, *[1] * (tensors[name].ndim - 1))
            tensors[name] = torch.where(tensors[name] == IGNORED, IGNORED, tensors[name] + shift)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _start(feature: Feature, longest: int, builder: InputBuilder) -> int:
    """Return where the tokens of the feature's first sequence begin in a row of `longest`."""
    return int(token_slice(len(feature.inputs[0].ids), longest, builder.left_padded).start)
