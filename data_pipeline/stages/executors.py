"""Run a function over its tasks, each task once, on processes of this machine or on the workers of a Dask cluster.

Any `concurrent.futures` executor will do. A result is a JSON file, the task's marker: after a kill, tasks with a marker
are not repeated, and any process that sees the folder can run any share of the tasks. A worker that dies is replaced
and its tasks are retried; an error in a task ends the run with that error.

dask is imported here alone.
"""

import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from data_pipeline.errors import UserError
from data_pipeline.io.files import write_whole, writing
from data_pipeline.settings import DataSettings

# Start workers on a Dask cluster as a `concurrent.futures` executor.

SLURM = "slurm"
DEFAULT_MEMORY = "2GiB"
"""Default memory limit of a worker: twice what it needs."""
CONNECT_TIMEOUT_SECONDS = 60
"""Seconds to wait for a running scheduler, and for its first worker. A Slurm job may queue indefinitely."""

_ADDRESS = re.compile(r"[a-z]+://|[\w.-]+:\d+$")


class DaskWorkers:
    """Workers on a Dask cluster. Every worker must see all folders of the preparation.

    `data.scheduler` names a running cluster (the address of its scheduler, or the path of its scheduler file), or
    `slurm`: dask-jobqueue then submits a Slurm job per worker and cancels them at the end. Queue, account, walltime,
    log folder and further directives of these jobs come from dask-jobqueue's own configuration
    (~/.config/dask/jobqueue.yaml, or the environment: DASK_JOBQUEUE__SLURM__QUEUE=long); `data.workers` sets how many
    jobs. Defaults for what the configuration leaves out: one core, two gigabytes, and a process per core of a job.
    """

    def __init__(self, settings: DataSettings) -> None:
        """Check the settings. Raises UserError if they name no cluster, or if dask is not installed."""
        self.scheduler = settings.scheduler
        self.count = settings.workers
        self._client: Any = None
        self._cluster: Any = None
        if not self.scheduler:
            raise UserError(
                "is empty",
                where="data.scheduler",
                expected="an address, the path of a scheduler file, or slurm",
            )
        if self.scheduler == SLURM and not self.count:
            raise UserError("has to say how many Slurm jobs", where="data.workers", remedy="data.workers=8")
        try:
            from distributed import KilledWorker
            from distributed.comm.core import CommClosedError
        except ImportError as error:
            raise UserError(
                f"needs dask: {error}", where="data.executor=dask", remedy="pip install maskmill[dask]"
            ) from None
        self.deaths: tuple[type[BaseException], ...] = (KilledWorker, CommClosedError, CancelledError)

    def start(self) -> Executor:
        """Start the workers. Raises UserError if no scheduler answers, it has no worker, or there is no Slurm."""
        if self.scheduler == SLURM:
            self._cluster = _slurm_cluster(self.count)
            self._client = self._cluster.get_client()
        else:
            self._client = _connected(self.scheduler)
        return self._client.get_executor(
            pure=False
        )  # a task is done when its files are there, not by its arguments

    def stop(self) -> None:
        for owned in (self._client, self._cluster):
            if owned is not None:
                owned.close()
        self._client = self._cluster = None

    def __str__(self) -> str:
        return f"data.scheduler={self.scheduler}"


def _connected(scheduler: str) -> Any:
    from distributed import Client

    is_address = _ADDRESS.match(scheduler)
    if not is_address and not Path(scheduler).is_file():  # distributed would wait for it forever
        raise UserError(
            "there is no such scheduler file",
            where=f"data.scheduler={scheduler}",
            expected="an address, the path of a scheduler file, or slurm",
        )
    where = {"address": scheduler} if is_address else {"scheduler_file": scheduler}
    try:
        client = Client(**where, timeout=CONNECT_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no scheduler answers: {error}",
            where=f"data.scheduler={scheduler}",
            remedy="start one, or check it",
        ) from None
    try:
        client.wait_for_workers(1, timeout=CONNECT_TIMEOUT_SECONDS)
    except TimeoutError:
        client.close()
        raise UserError(
            "the scheduler has no workers",
            where=f"data.scheduler={scheduler}",
            remedy="start some: dask worker",
        ) from None
    return client


def _slurm_cluster(jobs: int) -> Any:
    import dask
    from dask_jobqueue import SLURMCluster

    if shutil.which("sbatch") is None:
        raise UserError("finds no sbatch", where="data.scheduler=slurm", remedy="run it where Slurm is")
    given = dask.config.get("jobqueue.slurm", {})
    cores = given.get("cores") or 1
    cluster = SLURMCluster(
        cores=cores,
        processes=cores,  # one thread per worker: the stages are not designed to share a process
        memory=given.get("memory") or DEFAULT_MEMORY,
        python=given.get("python") or sys.executable,
    )
    workers = jobs * cores
    # adaptive between equal bounds: a job that ended, at its walltime or with its node, is submitted again
    cluster.adapt(minimum=workers, maximum=workers, interval="2s", wait_count=math.inf)
    return cluster


# Run tasks on any workers, and keep their results.

MAX_DEATHS_IN_A_ROW = 3
"""Maximum consecutive worker deaths, without a finished task in between, before the run gives up."""


class Share(NamedTuple):
    """The tasks of a stage whose number modulo `of` is `number`."""

    number: int
    of: int

    @classmethod
    def parsed(cls, text: str) -> "Share":
        """Parse a share such as `3/16`. Raises UserError for anything else."""
        number, slash, of = text.partition("/")
        is_small = len(number) <= 9 and len(of) <= 9
        if slash and is_small and number.isdecimal() and of.isdecimal() and int(number) < int(of):
            return cls(int(number), int(of))
        raise UserError(
            f"cannot read {text!r}",
            where="--share",
            expected="NUMBER/OF, from 0/16 to 15/16 for sixteen shares",
        )

    def tasks(self, count: int) -> range:
        """Return the numbers of its tasks, out of `count`."""
        return range(self.number, count, self.of)


ALL = Share(0, 1)


class Backend(Protocol):
    """A place that runs workers: they start when first needed, and restart after they die."""

    deaths: tuple[type[BaseException], ...]
    """The exception of a future whose worker died."""

    def start(self) -> Executor: ...

    def stop(self) -> None:
        """Stop the workers; tasks that have not begun are dropped."""

    def __str__(self) -> str:
        """Return the setting that selects this backend."""


class LocalProcesses:
    """Processes on this machine."""

    deaths: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor: Executor | None = None

    def start(self) -> Executor:
        # fresh processes: threads of the parent (torch, the tokenizers library) do not survive a fork
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(self.count, context, initializer=_end_with_parent)
        return self._executor

    def stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def __str__(self) -> str:
        return f"data.workers={self.count}"


@contextmanager
def processes_for_jobs(count: int) -> Iterator[Executor]:
    """Start `count` processes for what --jobs runs side by side, and stop them. Raises UserError if one is killed."""
    workers = LocalProcesses(count)
    try:
        yield workers.start()
    except workers.deaths:
        raise UserError(
            "a process was killed, perhaps for memory",
            where="--jobs",
            remedy="the same command with fewer jobs does what is left",
        ) from None
    finally:
        workers.stop()


def local_workers(settings: DataSettings) -> int:
    """Return data.workers; for 0, one per core that this process may use."""
    return settings.workers or len(os.sched_getaffinity(0))


def backend_of(settings: DataSettings) -> Backend:
    """Create the workers that the settings name."""
    return DaskWorkers(settings) if settings.executor == "dask" else LocalProcesses(local_workers(settings))


class Workers:
    """A pool of workers, kept from one stage to the next."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._executor: Executor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self.backend.stop()

    def warm_up(self, function: Callable[[], None]) -> None:
        """Start local workers, each of which calls `function`, while this process continues."""
        if isinstance(self.backend, LocalProcesses):
            self._executor = self._executor or self.backend.start()
            for _ in range(self.backend.count):
                self._executor.submit(_single_threaded, function)

    def run(
        self,
        function: Callable[..., dict[str, Any]],
        tasks: Sequence[tuple],
        done: Path,
        advance: Callable[[int], None],
        share: Share = ALL,
        in_process: bool = False,
    ) -> list[dict[str, Any]]:
        """Run function(*task) for every task of the share, in order, on the workers or, with `in_process`, here one
        by one. Results are kept in the folder `done`, and `advance(n)` is called as n more finish. Raises UserError
        if workers keep dying."""
        with writing(done):
            done.mkdir(parents=True, exist_ok=True)
        mine = share.tasks(len(tasks))
        advance(sum(marker(done, number).is_file() for number in mine))
        deaths = 0
        while deaths < MAX_DEATHS_IN_A_ROW:
            left = [number for number in mine if not marker(done, number).is_file()]
            if not left:
                return results(done, mine)
            if in_process:
                for number in left:
                    keep(done, number, function(*tasks[number]))
                    advance(1)
                continue
            self._executor = self._executor or self.backend.start()
            try:
                futures = {self._executor.submit(_single_threaded, function, *tasks[n]): n for n in left}
                for future in as_completed(futures):
                    keep(done, futures[future], future.result())
                    advance(1)
                    deaths = 0
            except self.backend.deaths:
                deaths += 1
                self.backend.stop()
                self._executor = None
        raise UserError(
            f"workers died {MAX_DEATHS_IN_A_ROW} times in a row",
            where=self.backend,
            remedy="if the machine runs out of memory, lower data.workers",
        )


def marker(done: Path, number: int) -> Path:
    """Return the path of the result of task `number`, which exists once it is done."""
    return done / f"{number:06d}.json"


def keep(done: Path, number: int, result: dict[str, Any]) -> None:
    """Mark task `number` as done. If two processes ran it, their results are the same."""
    write_whole(marker(done, number), json.dumps(result).encode())


def results(done: Path, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Load the results of these tasks."""
    return [json.loads(marker(done, number).read_bytes()) for number in numbers]


def missing(done: Path, count: int) -> list[int]:
    """List the tasks, out of `count`, that are not done."""
    there = {entry.name for entry in os.scandir(done)} if done.is_dir() else set()  # one scan for all of them
    return [number for number in range(count) if marker(done, number).name not in there]


def _end_with_parent() -> None:
    """Have this worker end when the process that started it does, even by SIGKILL: it would go on with its task, and
    hold its core and what the next call needs, for hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _single_threaded(function: Callable[..., Any], *task: Any) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or the library starts a thread per core in every worker
    return function(*task)
