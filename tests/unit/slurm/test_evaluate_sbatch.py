"""slurm/evaluate.sbatch with a stand-in for sbatch: an array and a job behind it, and what each of them runs; in the
other scripts with arrays as well, what a task does that fails."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.command_line import ROOT

SCRIPT = ROOT / "slurm/evaluate.sbatch"
ARGUMENTS = ("models/bert", "rte", "mrpc", "--data", "my glue", "--seeds", "5", "lr=1e-4")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    bodies = {
        "sbatch": 'printf "%s|" "$@" >>"$TOLD"; echo >>"$TOLD"; echo "$(wc -l <"$TOLD");cluster"',
        "maskmill": 'printf "%s|" maskmill "$@"',
        "scancel": 'echo "scancel $*" >>"$TOLD"',
    }
    for name, body in bodies.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "SLURM_JOB_ID": "7",
        "LOGS": str(tmp_path / "logs"),
        "TASKS": "20",
    }


def run(environment: dict[str, str], *arguments: str, code: int = 0, **more: str) -> str:
    done = subprocess.run(
        [str(SCRIPT), *arguments], env=environment | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def submitted(environment: dict[str, str]) -> list[list[str]]:
    """The arguments of each call of sbatch."""
    return [line.rstrip("|").split("|") for line in Path(environment["TOLD"]).read_text().splitlines()]


def test_an_array_scores_and_a_job_behind_it_writes_the_results(environment: dict[str, str]) -> None:
    said = run(
        environment, *ARGUMENTS, OPTIONS="--gpus=1 --partition=long", CPUS="2", MEMORY="3G", TIME="01:00:00"
    )
    score, results = submitted(environment)
    assert "--array=0-19" in score
    assert f"--output={environment['LOGS']}/score-%a.log" in score
    assert not [word for word in score if word.startswith("--dependency")]
    assert "--export=ALL,MASKMILL_STAGE=score,MASKMILL_SHARES=20" in score
    assert not [word for word in results if word.startswith("--array")]
    assert {"--dependency=afterok:1", "--kill-on-invalid-dep=yes"} <= set(results), (
        "the name of the cluster is cut off"
    )
    assert "--export=ALL,MASKMILL_STAGE=results,MASKMILL_SHARES=20" in results
    for job in (score, results):
        assert {"--gpus=1", "--partition=long", "--cpus-per-task=2", "--mem=3G", "--time=01:00:00"} <= set(
            job
        )
        assert job[-len(ARGUMENTS) - 1 :] == [str(SCRIPT), *ARGUMENTS], "a space in an argument is kept"
    assert "job 2 writes the results" in said
    assert Path(environment["LOGS"]).is_dir()


def test_what_a_job_runs(environment: dict[str, str]) -> None:
    array = {"MASKMILL_STAGE": "score", "SLURM_ARRAY_TASK_ID": "3", "MASKMILL_SHARES": "20"}
    same = ["maskmill", "evaluate", *ARGUMENTS]
    assert run(environment, *ARGUMENTS, **array).rstrip("|").split("|") == [*same, "--share", "3/20"]
    assert run(environment, *ARGUMENTS, MASKMILL_STAGE="results").rstrip("|").split("|") == same
    assert not Path(environment["TOLD"]).exists(), "jobs of the array submit nothing"


def test_a_requeued_job_replaces_what_it_submitted(environment: dict[str, str]) -> None:
    run(environment, *ARGUMENTS, SLURM_RESTART_COUNT="1")
    told = Path(environment["TOLD"]).read_text().splitlines()
    assert told[:2] == [f"scancel --quiet --name=maskmill-{name}-7" for name in ("score", "results")]
    assert len(told) == 4


def test_without_a_task_nothing_is_submitted(environment: dict[str, str]) -> None:
    assert run(environment, "models/bert", code=2) == ""
    assert not Path(environment["TOLD"]).exists()


@pytest.mark.parametrize(
    ("script", "stage"),
    [
        ("evaluate", "score"), ("evaluate", "results"), ("prepare", "read"), ("prepare", "plan"), ("study", "first"),
        ("study", "prepare"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("requeues", [True, False])
@pytest.mark.parametrize(
    ("restarts", "codes", "code"), [(0, [0], 0), (0, [1, 0], 0), (0, [137, 2], 2), (1, [1], 1)]
)
def test_a_task_that_fails_is_done_once_more(
    environment: dict[str, str], tmp_path: Path, script: str, stage: str, requeues: bool, restarts: int,
    codes: list[int], code: int,
) -> None:  # fmt: skip
    """Requeued, so that Slurm cancels nothing that waits for it; in place where Slurm requeues no jobs."""
    (tmp_path / "codes").write_text("".join(f"{number}\n" for number in codes))
    bodies = {
        "maskmill": f'cd {tmp_path}; code=$(head -n 1 codes); sed -i 1d codes; echo "$1" >>calls; exit "$code"',
        "scontrol": f'echo "$*" >>{tmp_path}/requeues; {"kill -s TERM $PPID" if requeues else "exit 1"}',
    }
    for name, body in bodies.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin/sleep").symlink_to("/bin/true")
    task = environment | {"MASKMILL_STAGE": stage, "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "n1"}
    ends = []
    for count in range(restarts, restarts + 2):
        done = subprocess.run(
            ["bash", str(ROOT / f"slurm/{script}.sbatch"), "demo", "rte"],
            env=task | ({"SLURM_RESTART_COUNT": str(count)} if count else {}),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        ends.append(done.returncode)
        if not ends[-1] < 0:  # ended by itself, not by the requeue
            break
    assert ends[-1] == code
    assert (tmp_path / "calls").read_text().splitlines() == [script] * len(codes)
    fails_first = restarts == 0 and codes[0] != 0
    assert (tmp_path / "requeues").exists() is fails_first
    if fails_first:
        assert (tmp_path / "requeues").read_text() == "requeue 7\n"
        assert len(ends) == 1 + requeues
    assert not Path(environment["TOLD"]).exists()
