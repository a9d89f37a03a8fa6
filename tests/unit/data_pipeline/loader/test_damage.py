"""Damaged shards while training: found before use, named, and left out where that is wanted, alike at every world size;
reads that fail for a moment are tried again."""

import re
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from data_pipeline.errors import DamagedError, UserError
from data_pipeline.io import object_store
from data_pipeline.io.files import read_ranges
from data_pipeline.loader.loader import Loader, Shares, order_of
from data_pipeline.loader.packing import caps_for
from data_pipeline.shards.index import Index
from tests.factories.shards import shard_folder

COUNTS, BATCH, BLOCK = [20, 16, 19], 5, 8
STEPS = sum(COUNTS) // BATCH

Seen = dict[int, bytes]
"""The tokens of each example of an epoch, by its number."""


def read(index: Index, world: int = 1, skip: bool = True) -> tuple[Seen, set[str]]:
    """What all ranks read in one epoch, and the lines about damage."""
    order, caps = order_of(index, seed=3, global_batch=BATCH), caps_for(index.train, 4, 24)
    seen: Seen = {}
    lines: set[str] = set()
    for rank in range(world):
        shares = Shares(index, order, caps, rank, world, skip_damaged=skip)
        for step in range(STEPS):
            share = shares.read(step)
            lines |= set(share.damage)
            assert share.examples == len(share.numbers) == sum(len(m.lengths) for m in share.micro_batches)
            for micro_batch in share.micro_batches:
                starts = micro_batch.cu_seqlens
                for member, first, last in zip(micro_batch.members, starts[:-1], starts[1:], strict=True):
                    number = int(share.numbers[member])
                    assert number not in seen
                    seen[number] = micro_batch.input_ids[first:last].tobytes()
    return seen, lines


def flip(folder: Path) -> None:
    path = folder / "train-000001.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 8
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "train-000001.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "lost", "says"),
    [
        (flip, BLOCK, "block 0.*bytes changed"),
        (truncate, BLOCK, "block 1.*too early"),
        (lambda folder: (folder / "train-000002.tar").unlink(), 19, "train-000002.tar.*cannot be read"),
        (lambda folder: (folder / "train-000002.json").unlink(), 19, "train-000002.tar.*missing"),
        (
            lambda folder: (folder / "train-000002.json").write_text("{}"),
            19,
            "train-000002.tar.*bytes changed",
        ),
    ],
    ids=["flipped", "truncated", "shard gone", "table gone", "table changed"],
)
def test_damage_is_left_out_alike_at_every_world_size(
    tmp_path: Path, damage: Callable[[Path], None], lost: int, says: str
) -> None:
    index, _ = shard_folder(tmp_path, COUNTS, BLOCK)
    whole, none = read(index)
    assert (len(whole), none) == (sum(COUNTS), set())
    damage(tmp_path)
    with pytest.raises(DamagedError, match=says.split(".*")[-1]):
        read(index, skip=False)
    one, lines = read(index)
    assert len(one) == sum(COUNTS) - lost
    assert one.items() <= whole.items(), "what is left is as it was"
    assert any(re.search(says, line) for line in lines), lines
    for world in (2, 5):
        assert read(index, world) == (one, lines)


def test_the_loader_tells_each_block_once(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, COUNTS, BLOCK)
    flip(tmp_path)
    order, caps = order_of(index, seed=3, global_batch=BATCH), caps_for(index.train, 4, 24)
    with Loader(index, order, caps, skip_damaged=True) as loader:
        lines = [line for _ in range(4 * STEPS) for line in next(loader).damage]
    assert len(lines) == 1
    assert "its 8 examples are left out" in lines[0]


def test_what_may_come_back_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission is not damage: a run that went on would go on without any data."""
    index, _ = shard_folder(tmp_path, COUNTS, BLOCK)

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("data_pipeline.io.files.os.open", refused)
    with pytest.raises(UserError, match="Permission denied") as caught:
        read(index)
    assert not isinstance(caught.value, DamagedError)


class Flaky(MemoryFileSystem):
    """Every third read fails, as a busy network's."""

    protocol = "flaky"
    store: dict = {}  # noqa: RUF012 (fsspec's own form)
    asked = failed = 0

    @classmethod
    def _strip_protocol(cls, path):  # type: ignore[no-untyped-def]
        return super()._strip_protocol(path.removeprefix("flaky://"))

    def cat_file(self, path, start=None, end=None, **options):  # type: ignore[no-untyped-def]
        Flaky.asked += 1
        if Flaky.asked % 3 == 0:
            Flaky.failed += 1
            raise ConnectionResetError("connection reset by peer")
        return super().cat_file(path, start, end, **options)


def test_a_flaky_store_gives_what_a_disk_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(object_store, "PROTOCOLS", (*object_store.PROTOCOLS, "flaky"))
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    index, _ = shard_folder(tmp_path, COUNTS, BLOCK)
    store = fsspec.filesystem("flaky")
    for path in tmp_path.iterdir():
        store.pipe_file(f"/shards/{path.name}", path.read_bytes())
    far = Index.load("flaky:///shards")
    assert read(far) == read(index)
    assert Flaky.failed > 3
    store.rm_file("/shards/train-000002.tar")
    assert len(read(far)[0]) == sum(COUNTS) - 19
    with pytest.raises(DamagedError):
        list(read_ranges([("flaky:///shards/train-000002.tar", 0, 10)]))
