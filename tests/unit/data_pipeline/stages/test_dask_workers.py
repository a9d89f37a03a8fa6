"""Tasks over Dask workers: a real cluster of two processes on this machine, also when one is killed at work."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings
from data_pipeline.stages import executors
from data_pipeline.stages.executors import Workers, backend_of
from tests.command_line import ROOT, Maskmill, environ, setting, until
from tests.factories.preparations import hashes

pytestmark = pytest.mark.multirank


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a scheduler with two workers."""
    folder = tmp_path_factory.mktemp("dask")
    path = folder / "scheduler.json"
    python = [sys.executable, "-m"]
    worker = [*python, "distributed.cli.dask_worker", "--scheduler-file", str(path), "--nthreads", "1"]
    worker += ["--no-dashboard", "--local-directory", str(folder), "--memory-limit", "0"]
    scheduler = [*python, "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    commands = [[*scheduler, "--scheduler-file", str(path)], worker, worker]
    environment = environ(PYTHONPATH=f"{ROOT}:{Path(__file__).parent}")
    with open(folder / "log.txt", "w") as log:
        processes = [
            subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            for command in commands
        ]
        try:
            until(path.exists, process=processes[0])
            yield path
        finally:
            # with what they started: while a worker is replaced it hears no SIGTERM
            for process in reversed(processes):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def note_attempt(number: int, folder: str) -> dict[str, Any]:
    """Notes its process; task 2 takes it down the first time."""
    calls = Path(folder) / f"task-{number}"
    with calls.open("a") as file:
        file.write(f"{os.getpid()} {os.environ['TOKENIZERS_PARALLELISM']}\n")
    if number == 2 and len(calls.read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number < 0:
        raise UserError("is wrong", where=f"task {number}")
    return {"number": number}


def settings(scheduler: Path | str) -> DataSettings:
    return DataSettings(executor="dask", scheduler=str(scheduler))


def test_tasks_run_on_the_workers_and_a_killed_one_is_replaced(scheduler_file: Path, tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path)) for number in range(6)]
    with Workers(backend_of(settings(scheduler_file))) as workers:
        results = workers.run(note_attempt, tasks, tmp_path / "done", lambda n: None)
        again = workers.run(note_attempt, tasks, tmp_path / "done", lambda n: None)
    assert [result["number"] for result in results] == list(range(6))
    assert again == results
    assert len((tmp_path / "task-2").read_text().splitlines()) == 2
    assert (tmp_path / "task-1").read_text().split()[1] == "false"
    assert str(os.getpid()) not in (tmp_path / "task-1").read_text()


def test_an_error_in_a_task_is_that_error(scheduler_file: Path, tmp_path: Path) -> None:
    with Workers(backend_of(settings(scheduler_file))) as workers, pytest.raises(UserError) as caught:
        workers.run(
            note_attempt, [(0, str(tmp_path)), (-1, str(tmp_path))], tmp_path / "done", lambda n: None
        )
    assert str(caught.value) == "task -1: is wrong"


@pytest.mark.slow
def test_the_same_bytes_as_in_local_processes(
    scheduler_file: Path, maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    dask = [f"data.out={tmp_path}/shards", "data.executor=dask", f"data.scheduler={scheduler_file}"]
    maskmill("prepare", "demo", *tiny, *dask, process=True)
    assert hashes(tmp_path / "shards") == hashes(Path(setting(tiny, "data.out")))


def test_a_scheduler_that_is_no_cluster_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "CONNECT_TIMEOUT_SECONDS", 1)
    for scheduler, line in {
        "": "data.scheduler: is empty",
        "slurm": "data.workers: has to say how many",
        "tcp://127.0.0.1:9": "no scheduler answers",
        str(tmp_path / "scheduler.json"): "no such scheduler file",
    }.items():
        with pytest.raises(UserError, match=line):
            backend_of(settings(scheduler)).start()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="finds no sbatch"):
        backend_of(DataSettings(executor="dask", scheduler="slurm", workers=2)).start()
