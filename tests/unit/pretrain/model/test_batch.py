"""Micro-batches as objectives see them: what is predicted from left to right, and which rows are spare."""

import pytest
import torch

from pretrain.model.batch import IGNORED, SPARE, MicroBatch, Shape

BATCH = MicroBatch.from_lists([[2, 7, 8, 9, 3], [2, 3], [2, 5, 3]])
TARGETS = [7, 8, 9, 3, IGNORED, 3, IGNORED, 5, 3, IGNORED]


def test_every_token_but_the_last_predicts_the_next_one_of_its_example() -> None:
    assert BATCH.next_tokens().tolist() == TARGETS


@pytest.mark.parametrize("shape", [Shape(17, 5, 3, 5), Shape(10, 5, 0, 5), Shape(11, 4, 0, 5)])
def test_spare_examples_predict_nothing(shape: Shape) -> None:
    whole = BATCH.padded(shape)
    assert whole.next_tokens().tolist() == TARGETS + [IGNORED] * (shape.tokens - len(TARGETS))
    assert whole.streams.tolist() == [0, 1, 2] + [SPARE] * (shape.examples - 3)
    assert len(whole.keys) == shape.examples
    assert whole.real_tokens().tolist() == [True] * 10 + [False] * (shape.tokens - 10)
    assert not MicroBatch.empty(2, 3).real_tokens().any()
    assert (MicroBatch.empty(2, 3).next_tokens() == IGNORED).all()


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        # seven spare tokens: three examples, as long as the mean
        (Shape(17, 9, 3, 5), [5, 2, 3, 3, 2, 2, 0, 0, 0]),
        # there is room for two alone
        (Shape(17, 5, 3, 9), [5, 2, 3, 4, 3]),
        (Shape(10, 5, 0, 5), [5, 2, 3, 0, 0]),
    ],
)
def test_attention_is_given_no_example_without_a_token(shape: Shape, lengths: list[int]) -> None:
    whole = BATCH.padded(shape)
    assert list(whole.lengths) == lengths == whole.cu_seqlens.diff().tolist()
    assert whole.packing.cu_seqlens.diff().tolist() == [length for length in lengths if length]
    assert BATCH.packing.cu_seqlens.diff().tolist() == [5, 2, 3]


def test_no_value_is_read_from_the_device() -> None:
    """The meta device has no values."""
    assert BATCH.padded(Shape(17, 5, 3, 5)).to("meta").next_tokens().shape == (17,)


def test_it_compiles_into_one_graph() -> None:
    found = torch.compile(lambda batch: batch.next_tokens(), backend="eager", fullgraph=True)(BATCH)
    assert found.tolist() == TARGETS
