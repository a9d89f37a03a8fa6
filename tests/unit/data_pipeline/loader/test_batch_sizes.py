"""Sizes of the batches of a ramp, tried out completely for small numbers."""

from collections import Counter
from itertools import accumulate, product
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.loader.loader import Shares, loader_state, order_of, resumed_batch
from data_pipeline.loader.order import Order
from data_pipeline.loader.packing import caps_for
from tests.factories.shards import epochs_of, shard_folder, share_of

RAMPS = [  # examples, block, streams, first batch, full batch, batches of the ramp
    (97, 8, 3, 3, 12, 5),
    (101, 100, 2, 4, 6, 3),
    (250, 9, 5, 5, 30, 12),
    (13, 5, 4, 4, 20, 2),
    (64, 8, 1, 2, 7, 7),
]


def order_with(case: tuple[int, ...], sequential: bool = False) -> Order:
    examples, block, streams, first, full, ramp = case
    return Order(examples, block, 11, full, streams, 2, sequential, first, ramp)


def test_every_small_ramp_is_even_whole_and_counted() -> None:
    for streams, low, more, ramp in product((1, 2, 5), (1, 2, 3), range(7), range(1, 14)):
        first, full = low * streams, (low + more) * streams
        sizes = BatchSizes(full, streams, first, ramp)
        each = [sizes.at(t) for t in range(ramp + 4)]
        assert each == sorted(each)
        assert (each[0], each[ramp:]) == (first, [full] * 4)
        assert all(size % streams == 0 for size in each)
        assert [sizes.before(t) for t in range(ramp + 5)] == [0, *accumulate(each)]
        if more:
            updates = Counter(each[:ramp])
            assert max(updates.values()) - min(updates.values()) <= 1
            assert len(updates) == min(more, ramp)


def test_without_a_ramp_all_batches_are_alike() -> None:
    sizes = BatchSizes(12, 4)
    assert ([sizes.at(t) for t in (0, 9)], sizes.before(7), sizes.smallest) == ([12, 12], 84, 12)


def test_modernberts_ramp_is_of_few_numbers() -> None:
    """768 to 4,608 examples of 1,024 tokens over 50 billion tokens: 15 sizes below it."""
    sizes = BatchSizes(4608, 256, 768, 15 * 1272)
    assert sizes.before(sizes.ramp) * 1024 == pytest.approx(50e9, rel=1e-3)
    assert sizes.at(sizes.ramp - 1) == 4608 - 256
    assert sizes.before(10**6) == sizes.before(sizes.ramp) + (10**6 - sizes.ramp) * 4608


@pytest.mark.parametrize("case", RAMPS, ids=str)
@pytest.mark.parametrize("sequential", [False, True])
def test_a_ramp_cuts_the_same_order_elsewhere(case: tuple[int, ...], sequential: bool) -> None:
    """Stream by stream the items are those without a ramp: nothing is dropped, repeated or moved."""
    examples, block, streams, _, full, ramp = case
    order, plain = order_with(case, sequential), Order(examples, block, 11, full, streams, 2, sequential)
    steps = ramp + 6
    parts = [[np.array(c).reshape(streams, -1) for c in share_of(order, t, 0, 1)] for t in range(steps)]
    whole = [[np.array(c).reshape(streams, -1) for c in share_of(plain, t, 0, 1)] for t in range(steps)]
    for kind in (0, 1):  # epochs, numbers
        found = np.concatenate([part[kind] for part in parts], axis=1)
        expected = np.concatenate([part[kind] for part in whole], axis=1)[:, : found.shape[1]]
        assert np.array_equal(found, expected)
    for t in range(steps):
        epochs = parts[t][0]
        assert epochs_of(order, t) == (epochs.min(), epochs.max())


@pytest.mark.parametrize("case", RAMPS, ids=str)
def test_a_step_of_a_ramp_is_the_same_at_every_world_size(case: tuple[int, ...]) -> None:
    order = order_with(case)
    for t in range(order.ramp_batches + 2):
        epochs, numbers = share_of(order, t, 0, 1)
        assert len(numbers) == order.sizes.at(t)
        for world in range(1, order.sizes.smallest + 1):
            shares = [share_of(order, t, rank, world) for rank in range(world)]
            assert np.array_equal(np.concatenate([s[0] for s in shares]), epochs)
            assert np.array_equal(np.concatenate([s[1] for s in shares]), numbers)
            for rank in range(world):
                first, last = order.streams_of(rank, world)
                streams = order.stream_ranges(t, rank, world).streams
                assert first == streams[0]
                assert streams[-1] <= last


def test_shares_resume_and_change_ranks_inside_a_ramp(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, [20, 8, 3, 17, 30, 1])
    order = order_of(index, seed=3, global_batch=12, ramp_from=4, ramp_batches=6)
    assert (order.streams, [order.sizes.at(t) for t in range(8)]) == (4, [4, 4, 4, 8, 8, 8, 12, 12])
    caps = caps_for(index.train, 4, 24)
    for start, world in ((0, 1), (0, 3), (2, 4), (4, 2)):  # a new reader at `start`, as after a resume
        readers = [Shares(index, order, caps, rank, world) for rank in range(world)]
        for t in range(start, 10):
            read = [reader.read(t) for reader in readers]
            epochs, numbers = share_of(order, t, 0, 1)
            assert np.array_equal(np.concatenate([share.numbers for share in read]), numbers)
            assert np.array_equal(np.concatenate([share.epochs for share in read]), epochs)
    with pytest.raises(UserError, match="5 ranks for a global batch of 4"):
        Shares(index, order, caps, 0, 5)
    state = loader_state(index, order, 4)
    assert resumed_batch(state, index, order) == 4
    plain = order_of(index, seed=3, global_batch=12, streams=4)
    with pytest.raises(UserError, match="ramp_from, ramp_batches differ"):
        resumed_batch(state, index, plain)
    older = loader_state(index, plain, 4)
    older["order"] = {k: v for k, v in older["order"].items() if not k.startswith("ramp_")}
    assert resumed_batch(older, index, plain) == 4


def test_a_ramp_that_the_streams_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="4 streams do not divide the global batch of 6"):
        Order(50, 8, 1, 12, 4, 1, False, 6, 3)
    with pytest.raises(UserError, match="a ramp from 0 to 12"):
        Order(50, 8, 1, 12, 4, 1, False, 0, 3)
