"""Saving in the background: training runs ahead of it, and what fails is told, tried again and harms nothing."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from pretrain.checkpoint import save as background_save
from pretrain.checkpoint.save import Saver
from pretrain.checkpoint.store import checkpoints, newest_checkpoint
from pretrain.distributed.world import World
from pretrain.run.events import NOT_SAVED
from tests.factories.checkpoints import SHAPES, WEIGHT, is_right, pieces, run_config, save


class Shown(io.StringIO):
    """What a console printed."""

    @property
    def console(self) -> Console:
        return Console(file=self, width=500)


@pytest.fixture
def shown() -> Shown:
    return Shown()


def saver_of(run: Path, shown: Shown, step: int = 0) -> Saver:
    return Saver(run_config(run), World(), shown.console, step)


def state(step: int) -> dict[str, Any]:
    return {"position": {"step": step}, "held_out_loss": None}


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Callable[[], None]:
    """Has saves fail; the result has them work again."""
    patch = pytest.MonkeyPatch()

    def write(*_arguments: Any) -> None:
        raise error

    patch.setattr("pretrain.checkpoint.fragments.write_fragments", write)
    return patch.undo


def test_training_goes_on_after_the_copy(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, save_checkpoint = threading.Event(), background_save.save_checkpoint

    def slow(*arguments: Any) -> Path:
        assert may_write.wait(60)
        return save_checkpoint(*arguments)

    monkeypatch.setattr(background_save, "save_checkpoint", slow)
    weights, position = pieces(7), state(7)
    with saver_of(tmp_path, shown) as saver:
        saver.save(7, weights, SHAPES, position)
        for fragment in weights:  # the next step, while nothing of the save has been written
            fragment.values.zero_()
        position["position"]["step"] = 8
        assert checkpoints(tmp_path) == []
        may_write.set()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert is_right(newest)
    assert newest.state["position"] == {"step": 7}


def test_a_save_that_fails_is_told_and_tried_again(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5)
    told: list[tuple[str, int, str]] = []
    saver = Saver(run_config(tmp_path), World(), shown.console, 5, on_failure=lambda *what: told.append(what))
    works_again = failing(monkeypatch, OSError(28, "No space left on device"))
    saver.save(10, pieces(10), SHAPES, state(10))
    saver.wait()
    assert "WARNING: checkpoint of step 10 not saved" in shown.getvalue()
    assert "No space left on device" in shown.getvalue()
    assert "the latest checkpoint is still step 5" in shown.getvalue()
    (what,) = told
    assert what[:2] == (NOT_SAVED, 10)
    assert "No space left on device" in what[2]
    assert saver.saved == 5
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert (newest.step, is_right(newest)) == (5, True)
    assert [p.name for p in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000005"], (
        "its room is free again"
    )
    with pytest.raises(UserError, match="No space left on device"):
        saver.finish()
    works_again()
    saver.save(15, pieces(15), SHAPES, state(15))
    saver.finish()
    assert saver.saved == 15
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000005", "step-00000015"]


def test_a_folder_that_vanishes_and_comes_back(tmp_path: Path, shown: Shown) -> None:
    run = tmp_path / "run"
    run.mkdir()
    saver = saver_of(run, shown)
    run.rename(tmp_path / "away")
    saver.save(1, pieces(1), SHAPES, state(1))
    saver.wait()
    assert "not saved" in shown.getvalue()
    (tmp_path / "away").rename(run)
    saver.save(2, pieces(2), SHAPES, state(2))
    saver.finish()
    assert [p.name for p in checkpoints(run)] == ["step-00000002"]


def test_a_mistake_of_the_program_ends_the_run(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saver_of(tmp_path, shown)
    works_again = failing(monkeypatch, ZeroDivisionError())
    saver.save(1, pieces(1), SHAPES, state(1))
    with pytest.raises(ZeroDivisionError):
        saver.wait()
    works_again()


def test_latest_is_for_people_and_costs_no_checkpoint(tmp_path: Path, shown: Shown) -> None:
    saver = saver_of(tmp_path, shown)
    (tmp_path / "checkpoints" / "latest" / "in the way").mkdir(parents=True)
    saver.save(10, pieces(10), SHAPES, state(10))
    saver.finish()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert (saver.saved, newest.step, is_right(newest)) == (10, 10, True)
    assert "WARNING: step-00000010 is saved, but latest still names the one before: " in shown.getvalue()
    assert "not saved" not in shown.getvalue()


class Away:
    """A mirror that refuses its first copies."""

    def __init__(self, refused: int) -> None:
        self.refused, self.copied = refused, list[str]()

    def copy(self, folder: Path, world: World) -> None:
        self.refused -= 1
        if self.refused >= 0:
            raise UserError("cannot be written", where="s3://bucket/run")
        self.copied.append(folder.name)


@pytest.mark.parametrize("refused", [1, 9])
def test_what_a_mirror_refuses_is_told_and_tried_again_at_the_end(
    tmp_path: Path, shown: Shown, refused: int
) -> None:
    """An attempt that is stopped leaves it to the next one; the run's last one says so by its exit code."""
    saver = saver_of(tmp_path, shown)
    saver._mirror = away = Away(refused)  # type: ignore[assignment]
    saver.save(1, pieces(1), SHAPES, state(1))
    saver.wait()
    assert saver.saved == 1
    assert "step 1 is saved here, but not mirrored" in shown.getvalue()
    saver.finish()
    assert ("the newest checkpoint was not mirrored" in shown.getvalue()) == (refused == 9)
    if refused == 9:
        with pytest.raises(UserError, match="cannot be written"):
            saver.finish(for_good=True)
    saver.finish()
    assert away.copied == ["step-00000001"] * (refused == 1)


def test_a_rollback_forgets_what_failed_at_a_step_that_is_undone(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saver_of(tmp_path, shown)
    saver._mirror = away = Away(9)  # type: ignore[assignment]
    saver.save(4, pieces(4), SHAPES, state(4))
    saver.wait()
    works_again = failing(monkeypatch, OSError(28, "No space left on device"))
    saver.save(6, pieces(6), SHAPES, state(6))
    saver.wait()
    saver.rolled_back(2)  # that of step 4 is damaged, and set aside
    works_again()
    saver.finish(for_good=True)
    assert (saver.saved, away.copied) == (2, [])
    assert WEIGHT[0, 0] == 0
