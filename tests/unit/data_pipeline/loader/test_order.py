"""Who reads what, when: pure arithmetic, so small cases are tried out completely and large ones sampled."""

import itertools
from collections import Counter

import numpy as np
import pytest

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.loader.batch_sizes import default_streams
from data_pipeline.loader.order import Order, permuted, rank_range
from data_pipeline.shards.index import Layout
from tests.factories.shards import epochs_of, share_of

SMALL = [
    # examples, block, global batch, streams, window: nothing divides anything, tails, batches beyond an epoch
    (1, 1, 1, 1, 1),
    (1, 4, 6, 3, 1),
    (5, 2, 8, 8, 1),
    (7, 3, 20, 4, 2),
    (13, 5, 4, 4, 1),
    (64, 8, 16, 4, 2),
    (97, 8, 12, 3, 2),
    (100, 7, 10, 10, 1),
    (101, 100, 6, 6, 3),
    (250, 9, 15, 5, 64),
]


@pytest.fixture(params=[(*case, sequential) for case in SMALL for sequential in (False, True)], ids=str)
def order(request: pytest.FixtureRequest) -> Order:
    examples, block, batch, streams, window, sequential = request.param
    return Order(examples, block, 11, batch, streams, window, sequential)


def steps_of(order: Order, epochs: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [share_of(order, t, 0, 1) for t in range(-(-order.examples * epochs // order.global_batch))]


def test_every_epoch_has_each_example_once(order: Order) -> None:
    counts = Counter(pair for e, n in steps_of(order, 4) for pair in zip(e.tolist(), n.tolist(), strict=True))
    for epoch, number in itertools.product(range(4), range(order.examples)):
        assert counts.pop((epoch, number)) == 1
    assert set(counts.values()) <= {1}
    assert {epoch for epoch, _ in counts} <= set(range(4, 4 + order.global_batch))


def test_epochs_follow_one_another_without_a_gap(order: Order) -> None:
    """A step holds just as many examples of each epoch as a plain sequence would give it."""
    for step, (epochs, _) in enumerate(steps_of(order, 4)):
        places = np.arange(step * order.global_batch, (step + 1) * order.global_batch)
        assert sorted(epochs.tolist()) == (places // order.examples).tolist()
        assert epochs_of(order, step) == (epochs.min(), epochs.max())


def test_a_step_is_the_same_at_every_world_size(order: Order) -> None:
    for step in (0, 1, 5):
        epochs, numbers = share_of(order, step, 0, 1)
        for world in range(1, order.global_batch + 1):
            shares = [share_of(order, step, rank, world) for rank in range(world)]
            assert np.array_equal(np.concatenate([s[0] for s in shares]), epochs)
            assert np.array_equal(np.concatenate([s[1] for s in shares]), numbers)
            assert {len(s[1]) for s in shares} <= {
                order.global_batch // world,
                -(-order.global_batch // world),
            }


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_a_sequential_stream_walks_a_stretch_of_the_split(case: tuple[int, ...]) -> None:
    """Item by item one further, but where an epoch ends: there it goes back to where its stretch begins."""
    examples, block, batch, streams, window = case
    order = Order(examples, block, 11, batch, streams, window, sequential=True)
    epochs, numbers = (np.array(column) for column in zip(*steps_of(order, 4), strict=True))
    epochs, numbers = (
        c.reshape(len(c), streams, -1).swapaxes(0, 1).reshape(streams, -1) for c in (epochs, numbers)
    )
    onward = np.diff(numbers) == 1
    assert (onward | (np.diff(epochs) > 0)).all()
    for epoch in range(4):  # the stretches lie side by side, in the order of the streams
        together = [row[epochs[k] == epoch] for k, row in enumerate(numbers)]
        assert np.concatenate(together).tolist() == list(range(examples))
        assert max(map(len, together)) - min(map(len, together)) <= 1


@pytest.mark.parametrize("case", [case for case in SMALL if case[3] % 2 == 0], ids=str)
def test_in_both_directions_every_second_stream_walks_its_stretch_from_the_end(case: tuple[int, ...]) -> None:
    examples, block, batch, streams, window = case
    one_way, both = (
        Order(examples, block, 11, batch, streams, window, sequential=True, both_directions=both)
        for both in (False, True)
    )
    for order in (one_way, both):
        for step in (0, 1, 5):
            whole = share_of(order, step, 0, 1)
            shares = [share_of(order, step, rank, 2) for rank in range(2)]
            assert all(
                np.array_equal(np.concatenate(c), w)
                for c, w in zip(zip(*shares, strict=True), whole, strict=True)
            )
    walks = []
    for order in (one_way, both):
        columns = (np.array(column) for column in zip(*steps_of(order, 4), strict=True))
        walks.append([c.reshape(len(c), streams, -1).swapaxes(0, 1).reshape(streams, -1) for c in columns])
    (epochs, forwards), (same_epochs, numbers) = walks
    assert np.array_equal(epochs, same_epochs)
    for stream in range(streams):
        for epoch in range(3):  # the fourth may be cut short
            stretch = forwards[stream][epochs[stream] == epoch]
            read = numbers[stream][epochs[stream] == epoch]
            assert np.array_equal(read, stretch[::-1] if stream % 2 else stretch)


def test_both_directions_need_an_even_number_of_streams_in_order() -> None:
    with pytest.raises(
        UserError, match=r"data\.both_directions=true with 3 streams in sequential order .*even"
    ):
        Order.of(100, 8, 0, 9, 3, sequential=True, both_directions=True)
    with pytest.raises(UserError, match=r"with 4 streams in shuffled order .*data\.order=sequential"):
        Order.of(100, 8, 0, 8, 4, both_directions=True)


def test_a_sequential_order_makes_every_row_a_stream() -> None:
    assert default_streams(384, sequential=True) == 384
    order = Order.of(10**6, 512, 0, 384, sequential=True)
    assert (order.streams, order.items, order.window) == (384, 1, 1)
    assert Order.of(10**6, 512, 0, 384, streams=96, sequential=True).items == 4
    first, second = (share_of(order, step, 0, 1)[1] for step in (7, 8))
    assert np.array_equal(second, first + 1)


def test_windows_tile_a_stream_and_hold_their_blocks_only() -> None:
    order = Order(1000, 8, 3, 12, 3, 4)
    for stream in range(3):
        item, blocks = 0, Counter()
        while item < 700:
            window = order.window_at(stream, item)
            assert all(order.window_at(stream, i) == window for i in range(item, item + window.items))
            assert window.first == item
            assert window.items <= 4 * 8
            spans = list(order.window_blocks(window))
            assert len(spans) <= 4
            blocks.update((window.epoch, first // 8) for first, _ in spans)
            item += window.items
        assert sum(blocks.values()) <= len(blocks) + 4  # cut in two by a stream's border at most


def test_order_depends_on_epoch_and_seed_and_is_shuffled() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        order = Order(512, 8, seed, 512, 1, 4)
        return share_of(order, number, 0, 1)[1].tolist()

    first, second, other = epoch(1, 0), epoch(1, 1), epoch(2, 0)
    assert first == epoch(1, 0)
    for a, b in ((first, second), (first, other), (first, list(range(512)))):
        assert sum(x == y for x, y in zip(a, b, strict=True)) < 12  # about one is expected
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(first))
    assert neighbours < 60  # within a window of 32, 2 in 32 are expected: 32 of 511


def test_the_order_never_changes() -> None:
    """Frozen: a resumed run of another version must read on in the same order."""
    order = Order(29, 4, 7, 6, 2, 2)
    assert [share_of(order, t, 0, 1)[1].tolist() for t in (0, 4, 1000)] == [
        [6, 10, 9, 15, 21, 22],
        [13, 18, 19, 25, 24, 11],
        [23, 21, 25, 27, 10, 11],
    ]


def test_shuffle_of_blocks_is_a_permutation_for_any_size() -> None:
    keys = rng.words(1, 2, 3, 192)
    for n in (*range(1, 70), 1000, 4097):
        assert sorted(permuted(x, n, keys) for x in range(n)) == list(range(n))


def test_shuffle_of_blocks_is_uniform() -> None:
    """All 24 orders of four blocks, chi-square below the 99.9 % point for 23 degrees of freedom."""
    rounds = 12_000
    seen = Counter(
        tuple(Order(40, 10, 5, 1, 1, 1).virtual_block(epoch, x) for x in range(4)) for epoch in range(rounds)
    )
    expected = rounds / 24
    assert len(seen) == 24
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 49.7


def test_default_streams_is_the_largest_divisor_up_to_256() -> None:
    found = {batch: default_streams(batch) for batch in (1, 6, 64, 256, 257, 384, 1000, 8192, 65_537 * 3)}
    assert found == {1: 1, 6: 6, 64: 64, 256: 256, 257: 1, 384: 192, 1000: 250, 8192: 256, 65_537 * 3: 3}
    assert [Order.of(10**6, 512, 0, batch).window for batch in (256, 64, 257, 8192)] == [1, 4, 256, 1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="13 ranks for a global batch of 12"):
        rank_range(12, 0, 13)
    with pytest.raises(UserError, match="5 streams do not divide the global batch of 12"):
        Order.of(100, 8, 0, 12, streams=5)
    with pytest.raises(UserError, match="no examples"):
        Order.of(0, 8, 0, 12)


@pytest.mark.parametrize("counts", [[8], [3], [8, 16], [20, 8, 3, 17, 30], [1] * 30, [7, 9, 15, 1, 8]])
def test_layout_finds_every_row_once(counts: list[int]) -> None:
    layout, total = Layout(np.array(counts), 8), sum(counts)
    found = []
    for start in range(0, total, 8):
        runs = list(layout.runs(start, min(8, total - start)))
        assert sum(run.rows for run in runs) == min(8, total - start)
        found += [(run.shard, run.block * 8 + run.first + i) for run in runs for i in range(run.rows)]
    assert sorted(found) == [(shard, row) for shard, n in enumerate(counts) for row in range(n)]
    assert found == [
        pair
        for i in range(total)
        for run in layout.runs(i, 1)
        for pair in [(run.shard, run.block * 8 + run.first)]
    ]


@pytest.mark.parametrize("counts", [[8], [3], [8, 16], [20, 8, 3, 17, 30], [1] * 30, [7, 9, 15, 1, 8]])
def test_a_sequential_layout_is_the_order_of_the_shards(counts: list[int]) -> None:
    layout, total = Layout(np.array(counts), 8, sequential=True), sum(counts)
    for size in (1, 5, 8, total):
        runs = [run for i in range(0, total, size) for run in layout.runs(i, min(size, total - i))]
        found = [(run.shard, run.block * 8 + run.first + i) for run in runs for i in range(run.rows)]
        assert found == [(shard, row) for shard, n in enumerate(counts) for row in range(n)]
        assert all(run.first + run.rows <= 8 for run in runs)


def test_a_full_virtual_block_is_one_block_of_one_shard() -> None:
    layout = Layout(np.array([20, 8, 3, 17]), 8)
    assert [list(layout.runs(8 * v, 8)) for v in range(5)] == [
        [(0, 0, 0, 8)],
        [(0, 1, 0, 8)],
        [(1, 0, 0, 8)],
        [(3, 0, 0, 8)],
        [(3, 1, 0, 8)],
    ]
    assert list(layout.runs(40, 8)) == [(0, 2, 0, 4), (2, 0, 0, 3), (3, 2, 0, 1)]


SHARDS = np.random.default_rng(0).integers(70_000, 90_000, 100_000)
"""A hundred thousand shards of some 80,000 examples of 128 tokens: 8 billion examples, a trillion tokens."""
FAR = 123_456_789


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("batch", [4096, 5000, 65_536])
def test_4096_ranks_share_a_step_of_a_trillion_tokens(batch: int, sequential: bool) -> None:
    """Every rank's share of a far step, found one by one: together the whole step, nobody's twice."""
    order = Order.of(int(SHARDS.sum()), 512, 9, batch, sequential=sequential)
    layout = Layout(SHARDS, 512, sequential)
    assert order.examples > 7_900_000_000
    windows, taken = {}, []
    for rank in range(4096):
        ranges = order.stream_ranges(FAR, rank, 4096)
        for stream, first, last in zip(*(column.tolist() for column in ranges), strict=True):
            taken += [(stream, item) for item in range(first, last)]
            window = windows.setdefault((stream, first), order.window_at(stream, first))
            assert window.first <= first < window.first + window.items
            assert window.items <= order.window * 512
    items = order.items
    assert taken == [(k, FAR * items + i) for k in range(order.streams) for i in range(items)]
    assert {w.epoch for w in windows.values()} <= set(
        range(epochs_of(order, FAR)[0], epochs_of(order, FAR)[1] + 1)
    )
    blocks = 0
    for window in list(windows.values())[:64]:
        runs = [run for span in order.window_blocks(window) for run in layout.runs(*span)]
        assert sum(run.rows for run in runs) == window.items
        assert all(r.first >= 0 and r.block * 512 + r.first + r.rows <= SHARDS[r.shard] for r in runs)
        blocks += len(runs)
    assert blocks <= 64 * (order.window + 1) * (3 if sequential else 1)
    if sequential:
        epochs, numbers = (
            np.concatenate(c) for c in zip(*(share_of(order, FAR, r, 4096) for r in range(64)), strict=True)
        )
        after = np.concatenate([share_of(order, FAR + 1, r, 4096)[1] for r in range(64)])
        stay = epochs == np.concatenate([share_of(order, FAR + 1, r, 4096)[0] for r in range(64)])
        assert stay.sum() > 60
        assert ((after - numbers)[stay] == order.items).all()
    else:
        shares = [share_of(order, FAR, rank, 4096) for rank in range(0, 4096, 64)]
        assert len({n for _, numbers in shares for n in numbers.tolist()}) == sum(len(n) for _, n in shares)


@pytest.mark.parametrize("sequential", [False, True])
def test_the_turn_of_an_epoch_of_a_trillion_tokens(sequential: bool) -> None:
    """The step in which epoch 2 begins holds the last of epoch 1 and the first of epoch 2, stream by stream."""
    order = Order.of(int(SHARDS.sum()), 512, 9, 4096, sequential=sequential)
    step = 2 * order.examples // 4096
    assert epochs_of(order, step - 1) == (1, 1)
    assert epochs_of(order, step) == (1, 2)
    assert epochs_of(order, step + 1) == (2, 2)
    old = 2 * order.examples - step * 4096
    places = np.array([order.window_at(k, step * order.items + i).epoch for k in range(order.streams)
                       for i in range(order.items)])  # fmt: skip
    assert (places == 1).sum() == old
    stream = (
        old % order.streams
    )  # the first whose first item of the step belongs to the next epoch, or a later one
    last, first = (order.window_at(stream, step * order.items + i) for i in (-1, order.items - 1))
    assert (last.epoch, first.epoch) == (1, 2)
    assert last.first + last.items == first.first
    if sequential:
        numbers, rows = order.window_numbers(first)
        assert numbers[0] == first.start
        assert np.array_equal(rows, np.arange(first.items))


def test_the_arithmetic_grows_with_nothing() -> None:
    """A far step of huge data costs as many calls of the block permutation as a near step of small data."""

    def calls(order: Order, step: int) -> int:
        made = 0
        original = Order.virtual_block

        def counted(self: Order, epoch: int, place: int) -> int:
            nonlocal made
            made += 1
            return original(self, epoch, place)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Order, "virtual_block", counted)
            share_of(order, step, 5, 4096)
        return made

    small, large = Order.of(512 * 10_000, 512, 9, 4096), Order.of(int(SHARDS.sum()), 512, 9, 4096)
    assert 1 <= calls(large, FAR) <= calls(small, 3) + 1
