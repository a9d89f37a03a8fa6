"""Checkpoints: any piece of any tensor comes back, nothing half-written looks whole, damage is found."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data_pipeline.errors import UserError
from pretrain.checkpoint.fragments import HostCopies
from pretrain.checkpoint.retention import _take_the_place_of, drop_leftovers, drop_old, kept, set_aside
from pretrain.checkpoint.store import (
    FORMAT,
    checkpoints,
    drop,
    find_checkpoint,
    newest_checkpoint,
    newest_whole,
    open_checkpoint,
    save_checkpoint,
    sealed,
    wait_for_newest,
)
from pretrain.config.settings import RunSettings
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment
from pretrain.run.files import LATEST, folder_wait
from tests.factories.checkpoints import SHAPES, WEIGHT, Killed, is_right, killed_at, run_config, save


def test_any_piece_of_any_tensor_comes_back(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path))
    weight = WEIGHT + 5
    assert torch.equal(checkpoint.tensor("a.weight"), weight)
    assert torch.equal(checkpoint.tensor("a.weight", "exp_avg"), weight * 2)
    for start in range(12):
        for length in range(1, 13 - start):
            piece = checkpoint.read("a.weight", "master", start, length)
            assert torch.equal(piece, weight.reshape(-1)[start : start + length])
    assert checkpoint.state == {"position": {"step": 5}, "held_out_loss": None}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000005"


def test_a_missing_piece_is_an_error(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path))
    with pytest.raises(UserError, match=r"holds 0 of 2 elements of exp_avg/a\.bias"):
        checkpoint.read("a.bias", "exp_avg", 0, 2)


def test_without_its_marker_it_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 5)
    save(tmp_path, 10)
    (tmp_path / "checkpoints" / "step-00000010" / "checkpoint.json").unlink()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.step == 5


def test_a_save_that_dies_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 5)

    def dying():  # type: ignore[no-untyped-def]
        yield Fragment("master", "a.weight", 0, WEIGHT.reshape(-1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 10, dying(), SHAPES, {}, World())
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005"]
    save(tmp_path, 10)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005", "step-00000010"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_bytes_are_found(tmp_path: Path, damage: str) -> None:
    path = save(tmp_path) / "fragments-00000.safetensors"
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"fragments-00000.*bytes changed"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"file": "../../secret", "bytes": 1, "sha256": "0"}]},
        {"files": [{"file": "a", "bytes": "many", "sha256": "0"}]},
        {"files": 3},
        {"shapes": []},
        {"format": 99},
        {"step": None},
    ],
)
def test_a_hostile_marker_is_one_line(tmp_path: Path, change: dict) -> None:
    marker = save(tmp_path) / "checkpoint.json"
    marker.write_bytes(sealed(json.loads(marker.read_text()) | change))
    with pytest.raises(UserError, match=r"malformed|checkpoint of format 99"):
        find_checkpoint(tmp_path)


def test_what_killed_saves_left_goes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-00000001" / "checkpoint.json").unlink()  # killed while it was deleted
    (tmp_path / "checkpoints" / "step-00000003.partial").mkdir()
    drop_leftovers(tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000002"]


def test_the_newest_stays_though_its_marker_is_not_shown_yet(tmp_path: Path) -> None:
    """As on a network folder, whose entries may be those of before."""
    newest = save(tmp_path, 2)
    marker = newest / "checkpoint.json"
    marker.rename(tmp_path / "hidden")
    drop_leftovers(tmp_path)
    (tmp_path / "hidden").rename(marker)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert is_right(found)


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="not a checkpoint"):
        open_checkpoint(tmp_path)


def test_the_file_is_one_that_safetensors_reads(tmp_path: Path) -> None:
    values = {
        dtype: torch.tensor([0, 1, 3, 2]).to(dtype)
        for dtype in (torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.float32)
    }
    fragments = [Fragment("master", f"a.{dtype}", 4, tensor) for dtype, tensor in values.items()]
    state = {"x": 1}
    path = save_checkpoint(tmp_path, 1, fragments, {}, state, World()) / "fragments-00000.safetensors"
    found = load_file(path)
    assert {key: tensor.dtype for key, tensor in found.items()} == {f.key: f.values.dtype for f in fragments}
    assert all(torch.equal(found[f.key], f.values) for f in fragments)


def test_killed_at_any_moment_the_last_good_one_is_found(tmp_path: Path) -> None:
    """At every change of the disk: while fragments, marker and `latest` are written and while old ones are deleted."""
    at, found = 0, set()
    while True:
        run = tmp_path / f"run-{at}"
        run.mkdir()
        save(run, 5)
        config = run_config(run, keep=1)
        try:
            with killed_at(at):
                save(run, 10)
                drop_old(config)
            break
        except Killed:
            pass
        newest = newest_checkpoint(run)
        assert newest is not None
        assert is_right(newest), at
        drop_leftovers(run)  # the next attempt begins
        again = newest_checkpoint(run)
        assert again is not None
        assert again.step >= newest.step
        assert is_right(again), at
        found.add((newest.step, again.step))
        save(run, 10)
        drop_old(config)
        names = sorted(path.name for path in (run / "checkpoints").iterdir())
        assert [name for name in names if not name.startswith(".")] == ["latest", "step-00000010"], at
        at += 1
    assert at > 20
    assert found == {(5, 5), (5, 10), (10, 10)}, "before the marker, between marker and name, and after"


def test_a_save_of_the_same_step_again_never_leaves_none(tmp_path: Path) -> None:
    """A run that was rolled back comes to the step again."""
    for at in range(60):
        run = tmp_path / f"run-{at}"
        run.mkdir()
        save(run, 10)
        try:
            with killed_at(at):
                save(run, 10)
            break
        except Killed:
            pass
        drop_leftovers(run)
        newest = newest_checkpoint(run)
        assert newest is not None
        assert is_right(newest), at
    else:
        pytest.fail("never came to its end")


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-00000003" / "fragments-00000.safetensors").write_bytes(b"")
    marker = tmp_path / "checkpoints" / "step-00000002" / "checkpoint.json"
    marker.write_text(marker.read_text().replace('"step": 2', '"step": 7'))
    newest, damaged = newest_whole(tmp_path, World())
    told = [f"{folder.name}: {what}" for folder, what in damaged]
    assert newest is not None
    assert newest.step == 1
    assert "step-00000003" in told[0]
    assert "bytes changed" in told[0]
    assert "step-00000002" in told[1]
    assert "SHA-256 does not hold" in told[1]
    (tmp_path / "checkpoints" / "step-00000001" / "fragments-00000.safetensors").unlink()
    with pytest.raises(UserError, match="all 3 checkpoints are damaged"):
        newest_checkpoint(tmp_path)


def test_one_of_another_version_is_not_taken_for_damaged(tmp_path: Path) -> None:
    marker = save(tmp_path) / "checkpoint.json"
    marker.write_bytes(sealed(json.loads(marker.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(UserError, match=f"checkpoint of format {FORMAT + 1}"):
        newest_checkpoint(tmp_path)


def test_a_run_folder_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        save(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_all_is_on_the_disk_before_anything_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and names: a power cut keeps what was flushed, in no order of its own. The history is flushed as well,
    before it is said that one may go on from here."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    did: list[str] = []

    def short(path: object) -> str:
        return re.sub(r"\.[0-9a-f]{8,}\.partial$", ".partial", Path(str(path)).name).removeprefix(".")

    def named(old: Callable) -> Callable:
        def rename(source: object, target: object, **options: object) -> None:
            did.append(f"{short(source)} -> {short(target)}")
            old(source, target, **options)

        return rename

    monkeypatch.setattr("os.fsync", lambda file: did.append(short(Path(f"/proc/self/fd/{file}").readlink())))
    monkeypatch.setattr("os.replace", named(os.replace))
    monkeypatch.setattr("os.rename", named(os.rename))
    save(tmp_path)
    assert did == [
        "fragments-00000.safetensors",
        "metrics.jsonl",
        "checkpoint.json.partial",
        "checkpoint.json.partial -> checkpoint.json",
        "step-00000005.partial",
        "step-00000005.partial",
        "step-00000005.partial -> step-00000005",
        "checkpoints",
        "latest.partial",
        "latest.partial -> latest",
        "checkpoints",
    ]


def test_which_stay() -> None:
    config = run_config(Path("run"))
    config.train.checkpoint_every = 10
    losses: dict[int, float | None] = dict.fromkeys((10, 20, 30, 40, 45, 50), None)
    assert kept(losses, config) == {45, 50}
    losses |= {20: 1.5, 40: 1.5, 30: 1.7}
    assert kept(losses, config) == {40, 45, 50}, "of equal losses the later"
    config.checkpoint.keep_every = 2
    assert kept(losses, config) == {20, 40, 45, 50}
    config.checkpoint.keep_every, config.checkpoint.keep_best, config.checkpoint.keep = 0, False, 1
    assert kept(losses, config) == {50}


def test_of_each_phase_those_at_its_own_multiples_stay() -> None:
    config = run_config(Path("run"), keep=1)
    config.train.checkpoint_every, config.checkpoint.keep_every = 0, 2
    config.phases = [
        {"name": "one", "train": {"steps": 40, "checkpoint_every": 10}},
        {"name": "two", "train": {"steps": 40, "checkpoint_every": 15}},
        {"name": "three", "train": {"steps": 40}},
    ]
    assert kept(dict.fromkeys((10, 20, 30, 40, 45, 60, 75, 80, 110)), config) == {20, 40, 60, 110}


def test_a_folder_that_has_gone_has_nothing_old(tmp_path: Path) -> None:
    """Between the save that made it whole and what follows: the next save says so."""
    aside = tmp_path / "checkpoints" / "step-00000004.damaged"
    aside.mkdir(parents=True)
    drop_old(run_config(tmp_path))
    assert aside.is_dir()


def test_all_ranks_take_the_checkpoint_that_the_first_one_found(tmp_path: Path) -> None:
    """A run that goes on may save another meanwhile."""

    class Second(World):
        def broadcast(self, value: Any) -> Any:
            return str(tmp_path / "checkpoints" / "step-00000005")

    for step in (5, 10):
        save(tmp_path, step)
    assert find_checkpoint(tmp_path, Second()).step == 5
    assert find_checkpoint(tmp_path).step == 10


def test_old_ones_go(tmp_path: Path) -> None:
    for step, loss in ((1, 3.0), (2, 2.5), (3, 2.6), (4, None), (5, 2.7)):
        save(tmp_path, step, loss)
    damaged = tmp_path / "checkpoints" / "step-00000004.damaged"
    (tmp_path / "checkpoints" / "step-00000004").rename(damaged)
    drop_old(run_config(tmp_path, keep=1))
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-00000002",
        "step-00000005",
    ]


def test_the_marker_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders are emptied in no known order: killed in between, one would lack a part and look whole."""
    folder, found = save(tmp_path), list[bool]()
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: found.append((path / "checkpoint.json").exists()))
    assert (folder / "checkpoint.json").exists()
    drop(folder)
    assert found == [False]


def test_copies_are_made_in_the_same_memory() -> None:
    copies = HostCopies()
    values = torch.ones(5)
    (first,) = copies.take([Fragment("master", "a", 0, values)])
    values += 1
    assert first.values.tolist() == [1.0] * 5
    (second,) = copies.take([Fragment("master", "a", 0, values)])
    assert second.values.data_ptr() == first.values.data_ptr()
    assert second.values.tolist() == [2.0] * 5
    (third,) = copies.take([Fragment("master", "a", 0, torch.zeros(3))])
    assert third.values.tolist() == [0.0] * 3


# A network folder that lists new entries late, or in another order: the newest checkpoint is found all the same.


class Entries(list[Any]):
    """What os.scandir returns, as far as it is used."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@contextmanager
def listed(folder: Path, names: list[str]) -> Iterator[None]:
    """Listings of `folder` have these names, in this order, whatever is there."""
    scan, names_of = os.scandir, os.listdir

    def is_it(path: Any) -> bool:
        return not isinstance(path, int) and Path(path) == folder

    def scandir(path: Any = ".") -> Any:
        if not is_it(path):
            return scan(path)
        there = {entry.name: entry for entry in scan(path)}
        return Entries(there[name] for name in names if name in there)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        patch.setattr(os, "listdir", lambda path=".": [*names] if is_it(path) else names_of(path))
        yield


@pytest.mark.parametrize("names", [[], ["step-00000005"], ["latest", "step-00000005"]])
def test_a_checkpoint_that_is_not_listed_yet_is_found(names: list[str], tmp_path: Path) -> None:
    save(tmp_path, 5)
    with listed(tmp_path / "checkpoints", names):
        save(tmp_path, 10)
        found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, is_right(found)) == (10, True)


def test_the_order_of_a_listing_is_of_no_importance(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step)
    names = [f"step-{step:08d}" for step in (10, 15, 5)]
    with listed(tmp_path / "checkpoints", names):
        assert [path.name for path in checkpoints(tmp_path)] == sorted(names)


@pytest.mark.parametrize("text", ["", "step-00000099", "../step-00000005", "x", "/etc"])
def test_what_latest_names_counts_only_if_it_is_whole(text: str, tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / "checkpoints" / LATEST).write_text(text)
    (tmp_path / "step-00000005").symlink_to(tmp_path / "checkpoints" / "step-00000005")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005"]


def shows(path: Path, hidden: Path, after: float) -> threading.Timer:
    """The folder or file `hidden` gets its name `path` in so many seconds, as a network folder would show it."""
    timer = threading.Timer(after, os.rename, [hidden, path])
    timer.start()
    return timer


@pytest.mark.parametrize("what", ["", "checkpoint.json", "fragments-00000.safetensors"])
def test_a_checkpoint_is_waited_for(what: str, tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    path = folder / what if what else folder
    path.rename(tmp_path / "hidden")
    said: list[str] = []
    timer = shows(path, tmp_path / "hidden", 0.2)
    wait_for_newest(tmp_path, 60, said.append)
    timer.join()
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert is_right(found)
    lacks = path / "checkpoint.json" if not what else path
    [line] = said
    assert line.startswith(f"{lacks} is not shown here: waiting up to 60 s for it, ")


def test_a_file_that_is_shown_in_part_is_waited_for(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "fragments-00000.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    timer = threading.Timer(0.2, path.write_bytes, [data])
    timer.start()
    wait_for_newest(tmp_path, 60, print)
    timer.join()
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert is_right(found)


def test_the_name_of_the_newest_is_waited_for(tmp_path: Path) -> None:
    save(tmp_path, 5)
    latest = tmp_path / "checkpoints" / LATEST
    latest.rename(tmp_path / "hidden")
    timer = shows(latest, tmp_path / "hidden", 0.2)
    wait_for_newest(tmp_path, 60, print)
    timer.join()
    assert latest.is_file()


@pytest.mark.parametrize("case", ["nothing", "damaged marker", "other bytes", "set aside"])
def test_what_no_waiting_mends_is_not_waited_for(case: str, tmp_path: Path) -> None:
    if case != "nothing":
        folder = save(tmp_path, 5)
    if case == "damaged marker":
        (folder / "checkpoint.json").write_text("{}")
    if case == "other bytes":
        path = folder / "fragments-00000.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    if case == "set aside":
        set_aside(folder)
    said: list[str] = []
    wait_for_newest(tmp_path, 60, said.append)
    assert said == []


def test_what_stays_away_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    (save(tmp_path, 5) / "fragments-00000.safetensors").unlink()
    began = time.monotonic()
    wait_for_newest(tmp_path, 0.1, print)
    assert 0.1 <= time.monotonic() - began < 30


def test_a_leftover_that_is_but_an_old_listing_takes_no_place(tmp_path: Path) -> None:
    """The folder under its temporary name, still listed, and the final one, whose marker is not shown yet, are one."""
    final = save(tmp_path, 5)
    (final / "checkpoint.json").rename(tmp_path / "hidden")
    stale = final.with_name(f"{final.name}.0123abcd.partial")
    _take_the_place_of(final, stale)
    (tmp_path / "hidden").rename(final / "checkpoint.json")
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert is_right(found)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", final.name]


def test_a_wait_is_shorter_than_what_the_watchdog_allows() -> None:
    assert folder_wait(RunSettings()) == 90
    assert folder_wait(RunSettings(step_timeout=60, stage_limit=1000)) == 30
    assert folder_wait(RunSettings(step_timeout=0, stage_limit=0)) == 90


def test_a_first_save_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000005.0123abcd.partial").mkdir(parents=True)
    said: list[str] = []
    wait_for_newest(tmp_path, 60, said.append)
    assert said == []


def test_what_cannot_be_renamed_is_an_old_name_and_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a client of a network folder it may still lead to the whole checkpoint; the server does not know it."""
    stale = save(tmp_path, 5).with_name("step-00000005.0123abcd.partial")
    stale.mkdir()
    (stale / "fragments-00000.safetensors").touch()
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path == stale:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        drop_leftovers(tmp_path)
    assert [path.name for path in stale.iterdir()] == ["fragments-00000.safetensors"]
    drop_leftovers(tmp_path)
    assert not stale.exists()
