"""Start workers on a Dask cluster as a `concurrent.futures` executor. The only import of dask.

`data.scheduler` names a running cluster (the address of its scheduler, or the path of its scheduler file), or
`slurm`: dask-jobqueue then submits a Slurm job per worker and cancels them at the end. Queue, account, walltime, log
folder and further directives of these jobs come from dask-jobqueue's own configuration
(~/.config/dask/jobqueue.yaml, or the environment: DASK_JOBQUEUE__SLURM__QUEUE=long); `data.workers` sets how many
jobs. Defaults for what the configuration leaves out: one core, two gigabytes, and a process per core of a job. Every
worker must see all folders of the preparation.
"""

import math
import re
import shutil
import sys
from concurrent.futures import CancelledError, Executor
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings

SLURM = "slurm"
DEFAULT_MEMORY = "2GiB"
"""Default memory limit of a worker: twice what it needs."""
CONNECT_TIMEOUT_SECONDS = 60
"""Seconds to wait for a running scheduler, and for its first worker. A Slurm job may queue indefinitely."""

_ADDRESS = re.compile(r"[a-z]+://|[\w.-]+:\d+$")


class DaskWorkers:
    """Workers on a Dask cluster."""

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
