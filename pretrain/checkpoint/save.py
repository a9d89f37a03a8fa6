"""Save checkpoints and mirror them while training continues.

Training waits only for the copy to host memory. A thread then writes the checkpoint with the protocol of store.py, its
barriers and gathers on a separate gloo group, so that they neither wait for nor reorder the collectives of training.
(Committing at a later step boundary instead would tie the commit time, and the disk space for two checkpoints, to the
step length, and lose the save if the run ends first.) At most one save is in progress per rank, so all ranks' threads
always work on the same one.
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
from pretrain.checkpoint.fragments import HostCopies
from pretrain.checkpoint.mirror import Mirror
from pretrain.checkpoint.retention import drop_old
from pretrain.checkpoint.store import name_latest, save_checkpoint, step_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment
from pretrain.run.events import NOT_MIRRORED, NOT_SAVED
from pretrain.run.files import CHECKPOINTS, LATEST, folder_wait

FAILED_RUN_WAIT_SECONDS = 60.0
"""Seconds that a failing run waits for a save in progress: the ranks that the save waits for may be gone."""


OnFailure = Callable[[str, int, str], None]
"""Callback per save or copy to the mirror that failed: which of the two, step, why."""
OnSaved = Callable[[int, float, float, int], None]
"""Callback per checkpoint: step, seconds until it was whole, seconds of these that blocked training, bytes."""


class Saver:
    """Saves checkpoints in the background; all ranks call its methods in the same order."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        console: Console,
        step: int,
        on_saved: OnSaved | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Set up the saver. `on_saved` and `on_failure` are called on the first rank, in the writing thread, for each
        completed checkpoint and for each that could not be written, or copied to the mirror."""
        self.saved = step
        """Step of the newest whole checkpoint that this rank has waited for; 0: none."""
        self._config, self._console, self._on_saved, self._on_failure = config, console, on_saved, on_failure
        self._began = self._held = 0.0
        self._run, self._world = Path(config.run.dir), world.apart()
        self._mirror = Mirror(config) if config.checkpoint.mirror else None
        self._copies = HostCopies()
        self._thread: Thread | None = None
        self._failed: Exception | None = None
        self._uncopied: Path | None = None  # the newest whole checkpoint, where the mirror may lack it

    def __enter__(self) -> "Saver":
        if self._mirror is not None and self.saved:
            self._start(self._catch_up, self._run / CHECKPOINTS / f"step-{self.saved:08d}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join(None if kind is None else FAILED_RUN_WAIT_SECONDS)

    def save(
        self, step: int, fragments: Iterable[Fragment], shapes: dict[str, list[int]], state: dict[str, Any]
    ) -> None:
        """Start a save: wait for the previous one, copy the fragments and `state` (JSON), and return."""
        self.wait()
        self._began = time.perf_counter()
        copies = self._copies.take(fragments)
        state = json.loads(json.dumps(state))
        self._held = time.perf_counter() - self._began
        self._start(self._work, step, copies, shapes, state)

    def wait(self) -> None:
        """Wait for the save in progress. A failure was already reported; the caller's next save retries."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failed is not None and not isinstance(self._failed, UserError):
            raise self._failed

    def rolled_back(self, step: int) -> None:
        """Record a rollback to the checkpoint of `step`: no newer one is whole. All ranks call this."""
        self.saved, self._failed = step, None
        if self._uncopied is not None and step_of(self._uncopied) != step:
            self._uncopied = None

    def finish(self, *, for_good: bool = False) -> None:
        """Wait for the save in progress and raise the UserError of a failed one, on all ranks. Retries a failed
        mirror copy once; if the run ends `for_good`, with no later attempt to retry, that failure raises as
        well."""
        self.wait()
        if self._failed is not None:
            raise self._failed
        try:
            self._copy()
        except UserError as error:
            if for_good:
                raise
            self._warn(f"the newest checkpoint was not mirrored: {error}", "the next start tries again")
            self._report_failure(NOT_MIRRORED, self.saved, str(error))

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._thread = Thread(target=work, args=arguments, name="checkpoint", daemon=True)
        self._thread.start()

    def _work(self, step: int, copies: list[Fragment], shapes: dict[str, list[int]], state: dict) -> None:
        try:
            wait = folder_wait(self._config.run)
            folder = save_checkpoint(self._run, step, copies, shapes, state, self._world, wait)
        except UserError as error:
            self._failed = error
            latest = (
                f"the latest checkpoint is still step {self.saved:,}"
                if self.saved
                else "there is no checkpoint yet"
            )
            self._warn(f"checkpoint of step {step:,} not saved: {error}; {latest}")
            self._report_failure(NOT_SAVED, step, str(error))
            return
        except Exception as error:
            self._failed = error  # a bug, or lost ranks: the training loop raises it
            return
        self._failed, self.saved, self._uncopied = None, step, folder
        self._report_saved(step, folder)
        self._name_latest(folder)
        try:
            self._world.together(lambda: drop_old(self._config) if self._world.rank == 0 else None)
            self._copy()
        except UserError as error:
            self._warn(
                f"the checkpoint of step {step:,} is saved here, but not mirrored, or old ones not deleted: {error}"
            )
            self._report_failure(NOT_MIRRORED, step, str(error))
        except Exception as error:
            self._failed = error

    def _copy(self) -> None:
        if self._mirror is not None and self._uncopied is not None:
            self._mirror.copy(self._uncopied, self._world)
        self._uncopied = None

    def _catch_up(self, folder: Path) -> None:
        """Mirror the newest checkpoint: the previous attempt may have been killed between saving and copying it."""
        mirror = self._mirror
        assert mirror is not None
        self._uncopied = folder
        try:
            if any(self._world.together(lambda: self._world.rank == 0 and mirror.has(step_of(folder)))):
                self._uncopied = None
            self._copy()
        except UserError as error:
            self._warn(f"{folder.name} is whole here, and may not be mirrored: {error}")
            self._report_failure(NOT_MIRRORED, step_of(folder), str(error))
        except Exception as error:
            self._failed = error

    def _report_saved(self, step: int, folder: Path) -> None:
        if self._on_saved is not None and self._world.rank == 0:
            with suppress(OSError):  # the folder is gone: the next save reports it on all ranks
                size = sum(path.stat().st_size for path in folder.iterdir())
                self._on_saved(step, time.perf_counter() - self._began, self._held, size)

    def _report_failure(self, kind: str, step: int, why: str) -> None:
        if self._on_failure is not None and self._world.rank == 0:
            self._on_failure(kind, step, why)

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
