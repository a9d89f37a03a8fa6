"""The loader: what comes out is what the order says, packed right, the same after a resume, and it always ends."""

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import (
    Loader,
    Prefetch,
    Shares,
    held_out,
    loader_state,
    order_of,
    resumed_batch,
)
from data_pipeline.loader.order import Order
from data_pipeline.loader.packing import (
    Caps,
    PackedMicroBatch,
    StepShare,
    assign,
    caps_for,
    fitting_tokens,
    original_tokens,
    pack,
)
from data_pipeline.records import Examples, concatenate
from data_pipeline.shards.index import Index, Layout
from tests.factories.shards import blocks_of, random_examples, shard_folder, share_of

ROOT = Path(__file__).parents[4]
COUNTS = [20, 8, 3, 17, 30, 1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Examples]:
    """An index, and its training examples by their numbers."""
    index, content = shard_folder(tmp_path_factory.mktemp("shards"), COUNTS, held_out=(9, 5))
    layout = Layout(index.train.shard_examples, index.block_examples)
    rows = [run for i in range(sum(COUNTS)) for run in layout.runs(i, 1)]
    starts = np.cumsum([0, *COUNTS])
    flat = np.array([starts[run.shard] + run.block * index.block_examples + run.first for run in rows])
    return index, concatenate(content).take(flat)


def unpacked(share: StepShare) -> list[tuple]:
    """The examples of a share in its numbering, taken out of the micro-batches the slow and plain way."""
    found: dict[int, tuple] = {}
    for micro in share.micro_batches:
        for e, member in enumerate(micro.members.tolist()):
            low, high = micro.cu_seqlens[e], micro.cu_seqlens[e + 1]
            assert high - low == micro.lengths[e]
            assert micro.positions[low:high].tolist() == list(range(high - low))
            here = (micro.masked_index >= low) & (micro.masked_index < high)
            found[member] = (
                micro.input_ids[low:high].tolist(),
                int((micro.segment_ids[low:high] == 0).sum()),
                int(micro.labels[e]),
                (micro.masked_index[here] - low).tolist(),
                micro.masked_ids[here].tolist(),
            )
            assert sorted(micro.segment_ids[low:high].tolist()) == micro.segment_ids[low:high].tolist()
    assert sorted(found) == list(range(share.examples))
    return [found[i] for i in range(share.examples)]


def plain(examples: Examples) -> list[tuple]:
    return [
        (
            one.tokens.tolist(),
            int(one.first_lengths[0]),
            int(one.labels[0]),
            one.masked_positions.tolist(),
            one.masked_ids.tolist(),
        )
        for one in (examples.take(np.array([i])) for i in range(len(examples)))
    ]


def test_every_example_comes_as_it_was_written_in_the_order_of_the_order(
    data: tuple[Index, Examples],
) -> None:
    index, examples = data
    everything = plain(examples)
    for batch, streams, window in ((12, 12, 1), (12, 3, 2), (40, 4, 1), (200, 8, 1), (5, 1, 64)):
        order = Order(index.train.examples, index.block_examples, 3, batch, streams, window)
        shares = Shares(index, order, caps_for(index.train, 4, 24))
        for step in range(-(-3 * order.examples // batch)):
            share = shares.read(step)
            epochs, numbers = share_of(order, step, 0, 1)
            assert np.array_equal(share.numbers, numbers)
            assert np.array_equal(share.epochs, epochs)
            assert unpacked(share) == [everything[n] for n in numbers]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 12])
def test_the_ranks_together_read_the_batch(data: tuple[Index, Examples], world: int) -> None:
    index, examples = data
    order = order_of(index, seed=3, global_batch=12, streams=4)
    caps = caps_for(index.train, 4, 24)
    readers = [Shares(index, order, caps, rank, world) for rank in range(world)]
    for step in (0, 1, 7, 40):
        shares = [reader.read(step) for reader in readers]
        assert np.concatenate([s.numbers for s in shares]).tolist() == share_of(order, step, 0, 1)[1].tolist()
        expected = examples.take(share_of(order, step, 0, 1)[1])
        assert sum(s.tokens for s in shares) == len(expected.tokens)
        assert sum(s.masked for s in shares) == len(expected.masked_ids)
        assert sum(s.pairs for s in shares) == 12
        assert [one for s in shares for one in unpacked(s)] == plain(expected)


@pytest.mark.parametrize("world", [1, 3, 12])
@pytest.mark.parametrize("streams", [12, 4])
def test_micro_batches_know_their_examples_and_streams(
    data: tuple[Index, Examples], world: int, streams: int
) -> None:
    index, _ = data
    order = Order(index.train.examples, index.block_examples, 9, 12, streams, window=2)
    caps = caps_for(index.train, 2, 24)
    for step in (0, 7, 8):
        epochs, numbers = share_of(order, step, 0, 1)
        expected = {
            (epoch << 40 | number): place // (12 // streams)
            for place, (epoch, number) in enumerate(zip(epochs.tolist(), numbers.tolist(), strict=True))
        }
        shares = [Shares(index, order, caps, rank, world).read(step) for rank in range(world)]
        found = [
            pair
            for share in shares
            for micro in share.micro_batches
            for pair in zip(micro.keys.tolist(), micro.streams.tolist(), strict=True)
        ]
        assert dict(found) == expected
        assert len(found) == 12


def test_a_rank_opens_only_its_streams(data: tuple[Index, Examples]) -> None:
    index, _ = data
    order = order_of(index, seed=3, global_batch=12, streams=4)
    caps = caps_for(index.train, 4, 24)
    assert [Shares(index, order, caps, rank, 4).footprint.streams for rank in range(4)] == [1, 1, 1, 1]
    assert [Shares(index, order, caps, rank, 6).footprint.streams for rank in range(6)] == [1, 2, 1, 1, 2, 1]


def test_memory_stays_bounded(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, [400], block=8)
    order = Order(400, 8, 0, 4, 4, 2)
    shares = Shares(index, order, caps_for(index.train, 4, 24))
    sizes = {shares.read(step).batch and shares.footprint.bytes for step in range(1, 300)}
    # four windows of 16 examples, at 24 tokens of 2 bytes at most and 38 bytes of counts each, with some room
    assert max(sizes) < 4 * 17 * (24 * 2 + 4 * 4 + 38) * 1.25


def identical(a: StepShare, b: StepShare) -> bool:
    return len(a.micro_batches) == len(b.micro_batches) and all(
        np.array_equal(x, y)
        for one, other in zip(a.micro_batches, b.micro_batches, strict=True)
        for x, y in zip(one, other, strict=True)
    )


def test_resumes_in_the_middle_whatever_the_timing(data: tuple[Index, Examples]) -> None:
    index, _ = data
    order = order_of(index, seed=3, global_batch=12, streams=4)
    caps = caps_for(index.train, 4, 24)
    with Loader(index, order, caps, ahead=1) as loader:
        whole = [next(loader) for _ in range(30)]
    for start in (0, 1, 13, 29):
        with Loader(index, order, caps, start_batch=start, ahead=7) as loader:
            assert loader.batch == start
            time.sleep(0.01)
            assert all(identical(next(loader), share) for share in whole[start:])
            assert loader.batch == 30
            state = json.loads(json.dumps(loader_state(index, order, loader.batch)))
    assert resumed_batch(state, index, order) == 30


def test_a_state_of_other_data_or_another_order_is_refused(
    data: tuple[Index, Examples], tmp_path: Path
) -> None:
    index, _ = data
    order = order_of(index, seed=3, global_batch=12, streams=4)
    state = loader_state(index, order, 5)
    with pytest.raises(UserError, match="seed, streams, window differ"):
        resumed_batch(state, index, order_of(index, seed=4, global_batch=12))
    other, _ = shard_folder(tmp_path, [50])
    with pytest.raises(UserError, match=r"index\.json, examples differ"):
        resumed_batch(state, other, order_of(other, seed=3, global_batch=12, streams=4))


def test_a_changed_shard_ends_in_one_line(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, COUNTS)
    path = tmp_path / "train-000004.tar"
    content = bytearray(path.read_bytes())
    content[600] ^= 255
    path.write_bytes(content)
    order = Order(index.train.examples, 8, 3, 4, 1, 1)
    with (
        Loader(index, order, caps_for(index.train, 4, 24)) as loader,
        pytest.raises(UserError, match=r"train-000004\.tar, block 0: bytes changed"),
    ):
        list(islice(loader, 40))


def test_more_ranks_than_examples_is_refused(data: tuple[Index, Examples]) -> None:
    index, _ = data
    order = order_of(index, seed=3, global_batch=4)
    with pytest.raises(UserError, match="5 ranks for a global batch of 4"):
        Loader(index, order, caps_for(index.train, 4, 24), rank=0, world=5)


def test_reads_from_an_object_store(data: tuple[Index, Examples]) -> None:
    index, _ = data
    store = fsspec.filesystem("memory")
    store.put(index.folder, "/bucket/loader", recursive=True)
    try:
        remote = Index.load("memory://bucket/loader")
        order, caps = order_of(index, seed=3, global_batch=12), caps_for(index.train, 4, 24)
        for step in range(4):
            assert identical(Shares(remote, order, caps).read(step), Shares(index, order, caps).read(step))
    finally:
        store.rm("/bucket", recursive=True)


# --- held-out examples


def test_held_out_examples_are_the_first_and_split_over_ranks(data: tuple[Index, Examples]) -> None:
    index, _ = data
    caps = caps_for(index.train, 4, 24)
    content = [random_examples(n, 1000 + seed) for seed, n in enumerate((9, 5))]
    expected = plain(blocks_of(content[0], 8)[0]) + plain(blocks_of(content[0], 8)[1]) + plain(content[1])
    assert unpacked(held_out(index, 10**6, caps)) == expected
    for world in (1, 2, 3, 20):
        shares = [held_out(index, 11, caps, rank, world) for rank in range(world)]
        assert [one for share in shares for one in unpacked(share)] == expected[:11]
        assert [n for share in shares for n in share.numbers] == list(range(11))
    assert held_out(index, 11, caps, 0, 20).micro_batches == []


# --- packing


def test_a_micro_batch_by_hand() -> None:
    examples = Examples(
        tokens=np.array([1, 7, 2, 1, 3, 2, 9, 2], np.uint16),
        offsets=np.array([0, 3, 8]),
        first_lengths=np.array([3, 3], np.uint16),
        labels=np.array([-1, 1], np.int8),
        masked_positions=np.array([1, 1, 3], np.uint16),
        masked_ids=np.array([70, 80, 90], np.uint16),
        masked_offsets=np.array([0, 1, 3]),
    )
    share = pack(examples, Caps(8, 8, 8), batch=4, epochs=np.array([0, 3]), numbers=np.arange(2))
    (micro,) = share.micro_batches
    assert micro == PackedMicroBatch(*micro)
    assert micro.input_ids.tolist() == [1, 3, 2, 9, 2, 1, 7, 2]
    assert micro.segment_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert micro.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert micro.cu_seqlens.tolist() == [0, 5, 8]
    assert micro.masked_index.tolist() == [1, 3, 6]
    assert micro.masked_ids.tolist() == [80, 90, 70]
    assert micro.labels.tolist() == [1, -1]
    assert (micro.members.tolist(), micro.max_length) == ([1, 0], 5)
    assert (micro.keys.tolist(), micro.streams.tolist()) == ([3 << 40 | 1, 0], [1, 0])
    assert (share.batch, share.examples, share.tokens, share.masked, share.pairs) == (4, 2, 8, 3, 1)
    kinds = {name: getattr(micro, name).dtype for name in micro._fields}
    assert {name for name, kind in kinds.items() if kind == np.int32} == {"cu_seqlens", "lengths"}
    assert set(kinds.values()) == {np.dtype(np.int32), np.dtype(np.int64)}
    assert original_tokens(examples).tolist() == [1, 70, 2, 1, 80, 2, 90, 2]
    assert examples.tokens.tolist() == [1, 7, 2, 1, 3, 2, 9, 2]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=120),
    st.integers(40, 300),
    st.integers(1, 30),
    st.integers(8, 60),
)
def test_packing_keeps_all_caps_and_loses_nothing(
    sizes: list[tuple[int, int]], tokens: int, examples: int, masked: int
) -> None:
    lengths, rows = (np.array([size[i] for size in sizes], np.int64) for i in (0, 1))
    members, bins = assign(lengths, rows, Caps(tokens, examples, masked))
    assert sorted(members.tolist()) == list(range(len(sizes)))
    assert (bins[0], bins[-1]) == (0, len(sizes))
    for first, last in pairwise(bins):
        inside = members[first:last]
        assert 0 < len(inside) <= examples
        assert lengths[inside].sum() <= tokens
        assert rows[inside].sum() <= masked
        assert (np.diff(lengths[inside]) <= 0).all()


@pytest.mark.parametrize(("longest", "micro_batch"), [(128, 8), (128, 32), (128, 64), (512, 4), (512, 16)])
@pytest.mark.parametrize("share", [64, 256, 2048])
@pytest.mark.parametrize("full", [0.9, 0.55, 0.05])
def test_micro_batches_are_full(longest: int, micro_batch: int, share: int, full: float) -> None:
    """97 % of the token cap in all but the last micro-batch, with as many full-length examples as pairs of
    articles (0.9) and of novels (0.55) have, or single streams (0.05); and hardly a micro-batch too many."""
    rng = np.random.default_rng(0)
    filled, needed, least = [], 0, 0
    for _ in range(max(4, 2048 // share)):
        lengths = np.where(rng.random(share) < full, longest, rng.integers(8, longest + 1, share))
        masked = np.maximum(1, np.rint(0.15 * lengths)).astype(np.int64)
        mean = (full * longest + (1 - full) * (longest + 8) / 2) / micro_batch
        caps = Caps(micro_batch * longest, int(2 * longest * micro_batch / mean / micro_batch) + 8, 10**6)
        caps = caps._replace(masked=int(caps.tokens * 0.15 * 1.04) + longest // 6)
        members, bins = assign(lengths, masked, caps)
        sums = np.add.reduceat(lengths[members], bins[:-1])
        filled += (sums[:-1] / caps.tokens).tolist()
        needed, least = needed + len(sums), least + -(-lengths.sum() // caps.tokens)
    assert not filled or np.mean(filled) >= 0.97
    assert needed <= least * 1.05 + 1


def test_caps_leave_room_for_real_shares(data: tuple[Index, Examples]) -> None:
    index, _ = data
    caps = caps_for(index.train, 4, 24)
    assert caps.tokens == 96
    assert caps.examples % 8 == caps.masked % 8 == 0
    assert caps.masked >= index.train.max_masked
    with pytest.raises(UserError, match="does not fit a micro-batch of 10"):
        caps_for(index.train, 1, 10)
    with pytest.raises(UserError, match="does not fit a micro-batch"):
        assign(np.array([30]), np.array([1]), Caps(24, 8, 8))


# --- the thread


def test_errors_come_where_their_item_would_have() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise UserError("gone", where="train-000000.tar")

    ahead = Prefetch(source(), 5)
    assert [next(ahead), next(ahead)] == [1, 2]
    for _ in range(3):
        with pytest.raises(UserError, match="gone"):
            next(ahead)
    ahead.close()


def test_reads_no_further_ahead_than_asked() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(1000):
            made.append(i)
            yield i

    with Prefetch(source(), 3) as ahead:
        next(ahead)
        time.sleep(0.2)
        assert len(made) <= 1 + 3 + 1
    assert [*Prefetch(iter(range(5)), 2)] == [0, 1, 2, 3, 4]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "maskmill-loader"]


def test_closing_and_forgetting_end_the_thread(data: tuple[Index, Examples]) -> None:
    index, _ = data
    order, caps = order_of(index, seed=3, global_batch=12), caps_for(index.train, 4, 24)
    loader = Loader(index, order, caps)
    next(loader)
    assert threads()
    loader.close()
    loader.close()
    assert not threads()
    with pytest.raises(RuntimeError, match="closed"):
        next(loader)
    loader = Loader(index, order, caps)
    next(loader)
    del loader
    gc.collect()
    assert not threads()


def test_a_process_ends_while_the_thread_is_busy(data: tuple[Index, Examples]) -> None:
    code = (
        "import sys\n"
        "from data_pipeline.loader.packing import caps_for\n"
        "from data_pipeline.shards.index import Index\n"
        "from data_pipeline.loader.loader import Loader, order_of\n"
        "index = Index.load(sys.argv[1])\n"
        "loader = Loader(index, order_of(index, seed=1, global_batch=12), caps_for(index.train, 4, 24))\n"
        "next(loader)\n"
        "print(loader.batch)\n"
        "if len(sys.argv) > 2: raise SystemExit(3)\n"
    )
    for extra, status in (([], 0), (["error"], 3)):
        command = [sys.executable, "-c", code, index_folder := data[0].folder, *extra]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", status), index_folder


@pytest.mark.parametrize("share", [32, 64, 256, 1000])
@pytest.mark.parametrize("low", [100, 16])
def test_micro_batches_of_one_shape_are_full(share: int, low: int) -> None:
    """At a share of 7.5 micro-batches, say: not 8 of which one is half empty."""
    generator = np.random.default_rng(share)
    draws = generator.integers(low, 129, (40, share))
    most = 32 * 128
    tokens = fitting_tokens(float(draws.mean()), float(draws.var()), 128, share, most)
    assert 128 <= tokens <= most

    def filled(tokens: int) -> tuple[float, float]:
        bins = [assign(x, np.zeros(share, np.int64), Caps(tokens, 10**6, 1))[1] for x in draws]
        counts = np.array([len(b) - 1 for b in bins])
        return draws.sum() / (counts.sum() * tokens), (counts > np.median(counts)).mean()

    (plain, _), (fitted, larger) = filled(most), filled(tokens)
    expected = {32: 0.88, 64: 0.88, 256: 0.93, 1000: 0.96}[share]
    assert fitted >= max(expected if low == 100 else expected - 0.06, plain - 0.01)
    assert larger <= 0.15
