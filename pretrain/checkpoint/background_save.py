"""Write a checkpoint while training continues.

A save has two parts. The copy to host memory is all that training waits for. A thread writes it: the same protocol
as ever (store.py), its barriers and gathers on a gloo group of its own, so that they neither wait for nor come
between the collectives of training. (The other way, to commit at a later step boundary, would tie the time of the
commit, and the room that two checkpoints need, to the length of steps, and lose the save if the run ends before.)
One save is under way at a time on every rank, so all ranks' threads are always at the same one.
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from rich.console import Console

from data_pipeline.errors import UserError
from pretrain.checkpoint.cleanup import drop_old
from pretrain.checkpoint.fragments import HostCopies
from pretrain.checkpoint.mirror import Mirror
from pretrain.checkpoint.store import FOLDER, LATEST, name_latest, save_checkpoint, step_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment

FAILED_RUN_WAIT_SECONDS = 60.0
"""Seconds that a run which fails leaves to a save under way: the ranks that it waits for may be gone."""


Told = Callable[[int, float, float, int], None]
"""Of a checkpoint: its step, the seconds until it was whole, of them those in which training stood still, its bytes."""


class Saver:
    """Saves checkpoints in the background; all ranks call its methods in the same order."""

    def __init__(
        self, config: RunConfig, world: World, console: Console, step: int, told: Told | None = None
    ) -> None:
        """`told` hears on the first rank, in the thread that writes, of each checkpoint that became whole."""
        self.saved = step
        """The step of the newest whole checkpoint, as far as this rank has waited for it; 0: none."""
        self._config, self._console, self._told = config, console, told
        self._began = self._held = 0.0
        self._run, self._world = Path(config.run.dir), world.apart()
        self._mirror = Mirror(config) if config.checkpoint.mirror else None
        self._copies = HostCopies()
        self._thread: Thread | None = None
        self._failed: Exception | None = None
        self._uncopied: Path | None = None  # the newest whole checkpoint, where the mirror may lack it

    def __enter__(self) -> "Saver":
        if self._mirror is not None and self.saved:
            self._start(self._catch_up, self._run / FOLDER / f"step-{self.saved:08d}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join(None if kind is None else FAILED_RUN_WAIT_SECONDS)

    def save(
        self, step: int, fragments: Iterable[Fragment], shapes: dict[str, list[int]], state: dict[str, Any]
    ) -> None:
        """Returns once the fragments are copied; `state` (JSON) is read at once as well. Waits for the save before."""
        self.wait()
        self._began = time.perf_counter()
        copies = self._copies.take(fragments)
        state = json.loads(json.dumps(state))
        self._held = time.perf_counter() - self._began
        self._start(self._work, step, copies, shapes, state)

    def wait(self) -> None:
        """Waits for the save under way. What failed was told; it is tried again when the caller saves again."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failed is not None and not isinstance(self._failed, UserError):
            raise self._failed

    def rolled_back(self, step: int) -> None:
        """The run is at the checkpoint of `step` again, and no newer one is whole. All ranks call this."""
        self.saved, self._failed = step, None
        if self._uncopied is not None and step_of(self._uncopied) != step:
            self._uncopied = None

    def finish(self, *, for_good: bool = False) -> None:
        """Waits for the save under way and raises the UserError of one that failed, on all ranks. What was not mirrored
        is tried once more; where the run ends `for_good`, and no later attempt makes up for it, that raises as well."""
        self.wait()
        if self._failed is not None:
            raise self._failed
        try:
            self._copy()
        except UserError as error:
            if for_good:
                raise
            self._warn(f"the newest checkpoint was not mirrored: {error}", "the next start tries again")

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._thread = Thread(target=work, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()

    def _work(self, step: int, copies: list[Fragment], shapes: dict[str, list[int]], state: dict) -> None:
        try:
            folder = save_checkpoint(self._run, step, copies, shapes, state, self._world)
        except UserError as error:
            self._failed = error
            latest = (
                f"the latest checkpoint is still step {self.saved:,}"
                if self.saved
                else "there is no checkpoint yet"
            )
            self._warn(f"checkpoint of step {step:,} not saved: {error}; {latest}")
            return
        except Exception as error:
            self._failed = (
                error  # a mistake in the program, or ranks that are gone: the training loop raises it
            )
            return
        self._failed, self.saved, self._uncopied = None, step, folder
        self._tell(step, folder)
        self._name_latest(folder)
        try:
            self._world.together(lambda: drop_old(self._config) if self._world.rank == 0 else None)
            self._copy()
        except UserError as error:
            self._warn(
                f"the checkpoint of step {step:,} is saved here, but not mirrored, or old ones not deleted: {error}"
            )
        except Exception as error:
            self._failed = error

    def _copy(self) -> None:
        if self._mirror is not None and self._uncopied is not None:
            self._mirror.copy(self._uncopied, self._world)
        self._uncopied = None

    def _catch_up(self, folder: Path) -> None:
        """The attempt before may have been killed between a checkpoint and its copy."""
        mirror = self._mirror
        assert mirror is not None
        self._uncopied = folder
        try:
            if any(self._world.together(lambda: self._world.rank == 0 and mirror.has(step_of(folder)))):
                self._uncopied = None
            self._copy()
        except UserError as error:
            self._warn(f"{folder.name} is whole here, and may not be mirrored: {error}")
        except Exception as error:
            self._failed = error

    def _tell(self, step: int, folder: Path) -> None:
        if self._told is not None and self._world.rank == 0:
            with suppress(OSError):  # the folder has gone again: the next save will say so, on all ranks
                size = sum(path.stat().st_size for path in folder.iterdir())
                self._told(step, time.perf_counter() - self._began, self._held, size)

    def _name_latest(self, folder: Path) -> None:
        if self._world.rank == 0:
            try:
                name_latest(folder)
            except (OSError, UserError) as error:  # the last byte of the disk, say; the folders decide
                self._warn(f"{folder.name} is saved, but {LATEST} still names the one before: {error}")

    def _warn(
        self, line: str, then: str = "training continues and tries again at the next checkpoint"
    ) -> None:
        if self._world.rank == 0:
            line = f"maskmill: WARNING: {line}; {then}"
            self._console.print(line, soft_wrap=True, markup=False, style="bold red")
