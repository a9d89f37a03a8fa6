"""Nothing is written through a symbolic link in a run folder, in shards or in results: one line says which."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import open_to_write, own_folder, refuse_links, write_whole
from data_pipeline.io.npy import save_column
from launch.ranks import start_ranks
from pretrain.checkpoint.store import saved_checkpoints
from pretrain.config.settings import RunSettings
from pretrain.distributed.watchdog import Watchdog
from pretrain.evaluate.results import write_result
from pretrain.run.files import EVENTS, OUTPUTS, STATE, append, replace_file
from pretrain.run.folder import lock, refuse_locked

KEPT = b"what the link leads to"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.write_bytes(KEPT)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def log_of_a_rank(run: Path) -> None:
    Watchdog(RunSettings()).log_in(run, 0)


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lock": (".lock", lock),
    "refuse_locked": (".lock", refuse_locked),
    "append": (EVENTS, lambda run: append(run / EVENTS, b"{}\n")),
    "text": ("log", lambda run: open_to_write(run / "log", "a")),
    "column": ("tokens.npy", lambda run: save_column(run / "tokens.npy", np_zeros())),
    "replace": (f"heartbeat.{os.getpid()}", lambda run: replace_file(run / "heartbeat", "{}")),
    "log of a rank": ("logs/rank-0.log", log_of_a_rank),
}


def np_zeros() -> object:
    import numpy as np

    return np.zeros(3)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_a_link_is_refused_and_its_target_kept(run: Path, target: Path, name: str) -> None:
    file, write = WRITERS[name]
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).symlink_to(target)
    with pytest.raises(UserError, match="is a symbolic link") as caught:
        write(run)
    assert len(str(caught.value).splitlines()) == 1
    assert str(run / file) in str(caught.value)
    assert target.read_bytes() == KEPT


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_to_nothing_makes_no_file(run: Path, tmp_path: Path, name: str) -> None:
    file, write = WRITERS[name]
    (run / file).parent.mkdir(exist_ok=True)
    (run / file).symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match="is a symbolic link"):
        write(run)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", [*STATE, *OUTPUTS])
def test_a_run_refuses_links_among_its_files_before_it_writes(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in run.rglob("*"))
    for begin in (lock, refuse_locked):
        with pytest.raises(UserError, match="is a symbolic link"):
            begin(run)
    assert sorted(path.name for path in run.rglob("*")) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_is_a_link_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("logs", "evaluation"):
        (run / name).symlink_to(tmp_path / "elsewhere")
    (run / "task").symlink_to(tmp_path / "elsewhere")
    for write in (
        lambda: own_folder(run / "logs"),
        lambda: start_ranks(["--help"], 1, run / "logs"),
        lambda: log_of_a_rank(run),
        lambda: write_result(run, "task", {}),
        lambda: refuse_links(run, ["logs"]),
    ):
        with pytest.raises(UserError, match="is a symbolic link"):
            write()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_run_folder_reached_through_a_link_is_fine(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    lock(tmp_path / "link").close()
    append(tmp_path / "link" / EVENTS, b"{}\n")
    assert (run / EVENTS).read_bytes() == b"{}\n"


def test_a_whole_file_takes_the_place_of_a_link(run: Path, target: Path) -> None:
    (run / "summary.json").symlink_to(target)
    write_whole(run / "summary.json", b"{}")
    assert target.read_bytes() == KEPT
    assert not (run / "summary.json").is_symlink()


@pytest.mark.parametrize("step", ["Infinity", "NaN", "[]", "null", '"five"'])
def test_a_marker_that_is_no_checkpoints_is_passed_over(step: str, tmp_path: Path) -> None:
    """Red for Infinity where OverflowError is not caught."""
    for name, value in (("step-00000001", "1"), ("step-00000002", step)):
        marker = tmp_path / "checkpoints" / name / "checkpoint.json"
        marker.parent.mkdir(parents=True)
        marker.write_text(f'{{"step": {value}, "files": []}}')
    assert [checkpoint.name for checkpoint in saved_checkpoints(tmp_path)] == ["step-00000001"]
