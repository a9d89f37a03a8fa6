"""Tasks over worker processes: each once, in order, also when workers die or the run was killed before."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.stages.executors import LocalProcesses, Workers
from data_pipeline.stages.tasks import ready
from tests.command_line import environ, running, until


def count_attempts(number: int, folder: str, deaths: int) -> dict[str, Any]:
    """Notes each time it is called, and takes its process down for the first `deaths` calls of task 1."""
    calls = Path(folder) / f"task-{number}"
    with calls.open("a") as file:
        file.write("x")
    if number == 1 and len(calls.read_text()) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3 and deaths < 0:
        raise UserError("task 3 is wrong", where="here")
    return {"number": number}


def test_results_come_in_the_order_of_the_tasks_and_are_kept(tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path), 0) for number in range(6)]
    seen: list[int] = []
    with Workers(LocalProcesses(2)) as workers:
        first = workers.run(count_attempts, tasks, tmp_path / "done", seen.append)
        again = workers.run(count_attempts, tasks, tmp_path / "done", seen.append)
    assert [result["number"] for result in first] == list(range(6))
    assert again == first
    assert sum(seen) == 12
    assert all((tmp_path / f"task-{n}").read_text() == "x" for n in range(6)), "a finished task ran again"


def test_workers_that_start_early_are_those_that_work(tmp_path: Path) -> None:
    with Workers(LocalProcesses(2)) as workers:
        workers.warm_up(ready)
        started = workers._executor
        workers.run(
            count_attempts, [(n, str(tmp_path), 0) for n in range(4)], tmp_path / "done", lambda n: None
        )
        assert workers._executor is started is not None


def test_a_worker_that_dies_is_replaced_and_its_task_tried_again(tmp_path: Path) -> None:
    with Workers(LocalProcesses(2)) as workers:
        results = workers.run(
            count_attempts, [(n, str(tmp_path), 1) for n in range(4)], tmp_path / "done", lambda n: None
        )
    assert [result["number"] for result in results] == [0, 1, 2, 3]
    assert len((tmp_path / "task-1").read_text()) == 2


def test_workers_that_keep_dying_end_the_run_in_one_line(tmp_path: Path) -> None:
    with Workers(LocalProcesses(1)) as workers, pytest.raises(UserError, match=r"lower data\.workers"):
        workers.run(
            count_attempts, [(n, str(tmp_path), 99) for n in range(2)], tmp_path / "done", lambda n: None
        )


def test_an_error_in_a_task_ends_the_run_with_that_error(tmp_path: Path) -> None:
    with Workers(LocalProcesses(2)) as workers, pytest.raises(UserError) as caught:
        workers.run(
            count_attempts, [(n, str(tmp_path), -1) for n in range(5)], tmp_path / "done", lambda n: None
        )
    assert str(caught.value) == "here: task 3 is wrong"


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Even by SIGKILL; the task would else go on for as long as it takes."""
    script = f"""
import os, pathlib, time
from data_pipeline.stages.executors import processes_for_jobs

def task():
    pathlib.Path({str(tmp_path / "worker")!r}).write_text(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    with processes_for_jobs(1) as executor:
        executor.submit(task).result()
"""
    (tmp_path / "script.py").write_text(script)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py")], env=environ())
    until(lambda: (tmp_path / "worker").exists() and (tmp_path / "worker").read_text())
    worker = int((tmp_path / "worker").read_text())
    assert running(worker)
    parent.kill()
    parent.wait()
    until(lambda: not running(worker), said=lambda: "the worker outlives its parent")
