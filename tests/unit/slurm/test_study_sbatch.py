"""slurm/study.sbatch with a stand-in for sbatch: four jobs in a chain, and what each of them runs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.command_line import ROOT

SCRIPT = ROOT / "slurm/study.sbatch"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    bodies = {
        "sbatch": 'echo "$*" >>"$TOLD"; wc -l <"$TOLD"',
        "maskmill": 'echo "maskmill $*"',
        "scancel": 'echo "scancel $*" >>"$TOLD"',
    }
    for name, body in bodies.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {
        "PATH": path,
        "TOLD": str(tmp_path / "told"),
        "SLURM_JOB_ID": "7",
        "LOGS": str(tmp_path / "logs"),
        "TASKS": "3",
    }


def run(environment: dict[str, str], *arguments: str, code: int = 0, **more: str) -> str:
    done = subprocess.run(
        [str(SCRIPT), *arguments], env=environment | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_four_jobs_one_behind_the_other(environment: dict[str, str]) -> None:
    said = run(environment, "plateau", "train.steps=5")
    jobs = Path(environment["TOLD"]).read_text().splitlines()
    assert [job.partition("MASKMILL_STAGE=")[2].split(",")[0] for job in jobs] == [
        "prepare",
        "first",
        "further",
        "results",
    ]
    assert ["--array=0-2" in job for job in jobs] == [False, True, True, False]
    assert ["afterok" in job for job in jobs] == [False, True, True, True]
    assert all(f"--dependency=afterok:{number}" in job for number, job in enumerate(jobs[1:], 1))
    assert all(job.endswith("plateau train.steps=5") for job in jobs)
    assert "job 4 writes the results" in said


@pytest.mark.parametrize(
    ("stage", "command"),
    [("prepare", "--prepare"), ("first", "--share 2/3"), ("further", "--share 2/3"), ("results", "")],
)
def test_what_a_job_runs(stage: str, command: str, environment: dict[str, str]) -> None:
    more = {"MASKMILL_STAGE": stage, "SLURM_ARRAY_TASK_ID": "2", "MASKMILL_SHARES": "3"}
    assert run(environment, "plateau", **more).split() == ["maskmill", "study", "plateau", *command.split()]


def test_a_requeued_job_replaces_what_it_submitted(environment: dict[str, str]) -> None:
    run(environment, "plateau", SLURM_RESTART_COUNT="1")
    told = Path(environment["TOLD"]).read_text().splitlines()
    assert [line for line in told if line.startswith("scancel")][
        2
    ] == "scancel --quiet --name=maskmill-further-7"
    assert run(environment, code=2) == ""
