"""A function and its tasks in, their results out, over any `concurrent.futures` executor, each task once.

A result is a JSON file: a killed run finds it there and does not do the task again. A worker that dies is
replaced and its tasks are tried again; an error in a task ends the run with that error.
"""

import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from data_pipeline.errors import UserError

Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""stage(name, total) gives a context whose value is called with how many more are done: how progress is shown."""

ATTEMPTS = 3
"""Times in a row that workers may die, without a task done in between, before the run gives up."""


class Workers:
    """Local worker processes, kept from one stage to the next."""

    def __init__(self, count: int) -> None:
        """`count` processes; 0: one for each core that this process may use."""
        self.count = count or len(os.sched_getaffinity(0))
        self._executor: Executor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def run(
        self,
        function: Callable[..., dict[str, Any]],
        tasks: list[tuple],
        done: Path,
        advance: Callable[[int], None],
    ) -> list[dict[str, Any]]:
        """function(*task) for every task, in the tasks' order; results are kept in the folder `done`,
        and `advance(n)` is called as n more are there. Raises UserError where workers keep dying."""
        done.mkdir(parents=True, exist_ok=True)
        markers = [done / f"{number:06d}.json" for number in range(len(tasks))]
        advance(sum(marker.is_file() for marker in markers))
        deaths = 0
        while deaths < ATTEMPTS:
            missing = [number for number, marker in enumerate(markers) if not marker.is_file()]
            if not missing:
                return [json.loads(marker.read_text()) for marker in markers]
            executor = self._started()
            try:
                futures = {executor.submit(function, *tasks[number]): number for number in missing}
                for future in as_completed(futures):
                    _keep(markers[futures[future]], future.result())
                    advance(1)
                    deaths = 0
            except BrokenProcessPool:
                deaths += 1
                executor.shutdown(wait=True, cancel_futures=True)
                self._executor = None
        raise UserError(
            f"workers died {ATTEMPTS} times in a row",
            where=f"data.workers={self.count}",
            remedy="if the machine runs out of memory, lower data.workers",
        )

    def _started(self) -> Executor:
        if self._executor is None:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread a worker
            # fresh processes: threads of the parent (torch, the tokenizers library) do not survive a fork
            self._executor = ProcessPoolExecutor(self.count, mp_context=multiprocessing.get_context("spawn"))
        return self._executor


def _keep(marker: Path, result: dict[str, Any]) -> None:
    partial = marker.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.replace(marker)
