"""A network folder that lists new entries late, or in another order: the newest checkpoint is found all the same."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.retention import _take_the_place_of, drop_leftovers, set_aside
from pretrain.checkpoint.store import LATEST, checkpoints, newest_checkpoint, wait_for_newest
from pretrain.config.settings import RunSettings
from pretrain.run.files import folder_wait
from tests.factories.checkpoints import is_right, save


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
    assert folder_wait(RunSettings(step_limit=60, stage_limit=1000)) == 30
    assert folder_wait(RunSettings(step_limit=0, stage_limit=0)) == 90


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
