"""Masks and orders against what the original programs drew: golden/masks/README.md."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from data_pipeline.masking.budget import MaskBudget
from data_pipeline.masking.masker import Masker
from data_pipeline.records import Examples, Segments
from data_pipeline.rng import words
from data_pipeline.settings import DataSettings
from pretrain.model.batch import MicroBatch
from pretrain.model.xlnet import plan_streams
from pretrain.objectives.xlnet import factorization_ranks
from tests.factories.pairs import CLS, FIRST, MASK, SEP, vocabulary

FOLDER = Path(__file__).parent / "masks"
DRAWS, SIZE = 40_000, 600
CONTINUATION, START = FIRST, FIRST + 1
"""Ids of the two kinds of piece: every third id from FIRST on continues a word."""
CLOSE = 0.005
"""Largest difference of two shares: three deviations; another p, another length or a rule left out is far beyond."""


def golden(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def starts_of_words(tokens: int, pieces: list[int]) -> list[bool]:
    starts: list[bool] = []
    while len(starts) < tokens:
        starts += [True] + [False] * (pieces[sum(starts) % len(pieces)] - 1)
    return starts[:tokens]


def drawn(starts: list[bool], **settings: Any) -> tuple[Examples, NDArray[np.bool_]]:
    """DRAWS sequences of such words, masked; and which of their tokens were, without [CLS] and [SEP]."""
    length = len(starts) + 2
    masker = Masker.from_settings(
        DataSettings(masked_lm_prob=0.15, max_predictions=0, **settings), vocabulary(SIZE, 3)
    )
    ids = [START if start else CONTINUATION for start in starts]
    segments = Segments(
        tokens=np.tile(np.array([CLS, *ids, SEP], np.uint16), DRAWS),
        offsets=np.arange(DRAWS + 1, dtype=np.int64) * length,
        first_lengths=np.full(DRAWS, length, np.uint16),
        labels=np.full(DRAWS, -1, np.int8),
        keys=words(1, 2, 3, DRAWS),
    )
    examples = masker(segments, seed=5)
    masked = np.zeros((DRAWS, length), bool)
    counts = np.diff(examples.masked_offsets)
    masked[np.repeat(np.arange(DRAWS), counts), examples.masked_positions] = True
    return examples, masked[:, 1:-1]


def runs(masked: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sequence, first token and token after the last of each stretch of masked tokens."""
    edges = np.diff(np.pad(masked, ((0, 0), (1, 1))).astype(int), axis=1)
    (rows, first), (_, after) = np.nonzero(edges > 0), np.nonzero(edges < 0)
    return np.stack((rows, first, after), 1)


def shares(values: Any) -> dict[str, float]:
    found = Counter(values.tolist() if isinstance(values, np.ndarray) else values)
    return {str(value): count / found.total() for value, count in found.items()}


def assert_close(ours: dict[str, float], theirs: dict[str, float], close: float = CLOSE) -> None:
    for value in ours.keys() | theirs.keys():
        assert abs(ours.get(value, 0) - theirs.get(value, 0)) < close, (value, ours, theirs)


def assert_same_masks(masked: NDArray[np.bool_], starts: list[bool], theirs: dict[str, Any]) -> None:
    found, before = runs(masked), np.concatenate(([0], np.cumsum(starts)))
    assert_close(shares(np.minimum(before[found[:, 2]] - before[found[:, 1]], 12)), theirs["words_per_run"])
    per_example = np.bincount(found[:, 0], minlength=DRAWS)
    assert_close(shares(per_example), theirs["runs_per_example"], 4 * CLOSE)  # ten times fewer draws
    assert_close(shares(masked.sum(1)), theirs["masked_per_example"])
    assert_close(shares(np.nonzero(masked)[1] * 10 // masked.shape[1]), theirs["masked_by_tenth"])


def test_spans_are_those_of_spanberts_program() -> None:
    theirs = golden("spanbert")
    starts = [True] * theirs["tokens"]
    examples, masked = drawn(starts, masking="span", span_p=0.2, max_span=10, replace_together=True)
    assert_same_masks(masked, starts, theirs)
    shown = examples.tokens.reshape(DRAWS, -1)[:, 1:-1]
    kinds = []
    for row, first, after in runs(masked).tolist():
        ids = shown[row, first:after]
        kinds.append("masked" if (ids == MASK).all() else "kept" if (ids == START).all() else "random")
    assert_close(shares(kinds), theirs["replacement_per_run"], 0.01)


def test_n_grams_are_those_of_alberts_script() -> None:
    theirs = golden("albert")
    starts = starts_of_words(theirs["tokens"], theirs["pieces_of_words_in_turn"])
    examples, masked = drawn(starts, masking="ngram", max_ngram=3)
    assert_same_masks(masked, starts, theirs)
    shown = examples.tokens.reshape(DRAWS, -1)[:, 1:-1][masked]
    assert abs((shown == MASK).mean() - theirs["replacement_per_token"]["masked"]) < CLOSE


def kinds_of(
    examples: Examples, masked: NDArray[np.bool_], original: NDArray[np.integer]
) -> dict[str, float]:
    """What became of the masked tokens, whose ids were `original`."""
    shown = examples.tokens.reshape(DRAWS, -1)[:, 1:-1][masked]
    kept = shown == original
    return shares(np.where(shown == MASK, "masked", np.where(kept, "kept", "random")))


def test_tokens_are_those_of_fairseqs_program() -> None:
    theirs = golden("fairseq")
    starts = [True] * theirs["tokens"]
    examples, masked = drawn(starts, masking="token")
    assert_same_masks(masked, starts, theirs)
    assert_close(kinds_of(examples, masked, np.full(masked.sum(), START)), theirs["replacement_per_token"])


def test_units_are_masked_as_a_whole_as_in_ernies_program() -> None:
    theirs = golden("ernie")
    starts = np.array(starts_of_words(theirs["tokens"], theirs["pieces_of_units_in_turn"]))
    examples, masked = drawn(starts.tolist(), masking="token", whole_word=True)
    first = np.nonzero(starts)[0]
    touched = np.add.reduceat(masked, first, axis=1)
    lengths = np.broadcast_to(np.diff([*first, len(starts)]), touched.shape)
    assert theirs["whole_units"] == ((touched == lengths) | (touched == 0)).mean() == 1.0
    # ours stops at 15 % of the tokens, where a long unit may have no room; drawn by tokens, "1" would be 0.39
    assert_close(shares(lengths[touched > 0]), theirs["masked_units_by_length"], 6 * CLOSE)
    assert abs(masked.mean() - theirs["mean_share_of_tokens"]) < CLOSE
    ids = np.broadcast_to(np.where(starts, START, CONTINUATION), masked.shape)[masked]
    assert_close(kinds_of(examples, masked, ids), theirs["replacement_per_token"])


def test_an_example_has_as_many_predictions_as_in_electras_program() -> None:
    theirs = golden("electra")
    budget = MaskBudget(theirs["rate"], theirs["max_predictions"])
    assert {n: budget.count(int(n)) for n in theirs["predictions_by_length"]} == theirs[
        "predictions_by_length"
    ]
    examples, masked = drawn(
        [True] * (theirs["tokens"] - 2), masking="token", mask_replace_prob=0.85, random_prob=0.0
    )
    found = kinds_of(examples, masked, np.full(masked.sum(), START))
    assert found.keys() == {"masked", "kept"}
    assert abs(found["masked"] - theirs["masked_share_of_positions_drawn_once"]) < CLOSE
    assert masked.sum(1).min() == budget.count(theirs["tokens"]) > theirs["distinct_positions"]


@pytest.mark.parametrize("case", golden("xlnet")["cases"])
def test_an_order_hides_what_xlnets_program_hides(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens, targets and order: in XLNet's program [CLS] is last, and first here."""
    cls, sep, inputs = golden("xlnet")["cls"], golden("xlnet")["sep"], case["inputs"]
    n, places = len(inputs), np.roll(np.arange(len(inputs)), 1)
    first = inputs.index(sep) + 2
    batch = MicroBatch.from_lists(
        [[inputs[p] for p in places]], [first], [{p + 1: inputs[p] for p in case["targets"]}]
    )
    monkeypatch.setattr(
        "pretrain.objectives.xlnet.row_keys", lambda *_: torch.tensor([case["order"][p] for p in places])
    )
    ranks = factorization_ranks(batch, cls, sep, seed=0)
    [tile] = plan_streams(batch, ranks, 0, heads=1).tiles  # in XLNet's order of tokens
    hidden = torch.tensor([[int(x) for x in row] for row in case["hidden"]]).bool()
    content, query = tile.content_E1SK[0, 0], tile.query_E1SK[0, 0]
    itself = torch.eye(n, dtype=torch.bool)
    assert content.equal(hidden & ~itself)
    assert query[case["targets"]].equal(hidden[case["targets"]])
