"""Training on a real Slurm cluster of four nodes, disturbed as clusters do: the same weights as on a quiet machine."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest
from processes import send
from training_job import RUN, STEPS, Job, can_be_slowed

from slurm import Cluster
from tests.command_line import Maskmill
from tests.run_ends import assert_same_tensors, final

pytestmark = pytest.mark.cluster

SECRET = "canary-of-a-key"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster() as cluster:
        can_be_slowed(cluster, tmp_path_factory.mktemp("slowed"))
        cluster.environment |= {"WANDB_MODE": "offline", "WANDB_API_KEY": SECRET}
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    maskmill("train", "demo", *tiny, *RUN, "run.ranks=2", f"run.dir={run}")
    return run


def test_to_the_end(cluster: Cluster, tiny: list[str], undisturbed: Path, tmp_path: Path) -> None:
    job = Job(cluster, tiny, tmp_path)
    job.ends_as(undisturbed)
    assert f"step {STEPS}/{STEPS}" in (job.logs / "rank-0.log").read_text()
    assert (job.logs / "rank-1.log").exists()
    log = job.log.read_text()
    assert log.count("SLURM_JOB_ID=") == 1
    assert SECRET not in job.said()


def test_plain_srun_is_as_good_as_the_script(
    cluster: Cluster, tiny: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    """Without a number of threads in the settings, on nodes that bind no task: the same weights, and a line."""
    own = [word for word in tiny if not word.startswith("run.threads=")]
    words = [
        *shlex.split(cluster.environment["MASKMILL"]),
        "train",
        "demo",
        *own,
        *RUN,
        f"run.dir={tmp_path / 'run'}",
    ]
    done = subprocess.run(
        ["srun", "--nodes=2", "--ntasks=2", *words],
        env={name: value for name, value in cluster.environment.items() if name != "OMP_NUM_THREADS"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "! srun has no --cpus-per-task, so each rank computes with 1 of its node's threads" in done.stdout
    assert_same_tensors(final(undisturbed, STEPS), final(tmp_path / "run", STEPS))


def test_the_time_limit_saves_and_requeues_as_the_same_wandb_run(
    cluster: Cluster, tiny: list[str], undisturbed: Path, slowed: Path, tmp_path: Path
) -> None:
    job = Job(cluster, [*tiny, "monitor.tracker=wandb"], tmp_path, "--time=20", "--signal=B:USR1@100")
    job.until_half_way()
    job.limit(2)  # 100 s before two minutes are over is now
    job.until(lambda: "received USR1" in job.log.read_text())
    slowed.unlink()
    job.limit(20)
    job.ends_as(undisturbed)
    log = job.log.read_text()
    assert "requeued: the time limit" in log
    assert "exit code 3" in log
    assert log.count("SLURM_JOB_ID=") == 1, "the environment is printed once"
    assert (job.logs / f"faults-{job.number}").read_text() == ""
    assert job.attempts() == 2
    run_id = json.loads((job.run / "run.json").read_text())["id"]
    attempts = list((job.run / "wandb").glob("offline-run-*"))
    assert len(attempts) == 2
    assert all(path.name.endswith(f"-{run_id}") for path in attempts)


def test_a_rank_that_is_killed_is_done_again_on_another_node(
    cluster: Cluster, tiny: list[str], undisturbed: Path, slowed: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tiny, tmp_path)
    node = job.until_half_way()[1]
    ranks = job.ranks_on([node])
    assert len(ranks) == 1
    send(ranks, SIGKILL)
    slowed.unlink()
    job.until(lambda: "is excluded" in job.log.read_text())
    assert f" {node}\n" in (job.logs / f"faults-{job.number}").read_text()
    job.ends_as(undisturbed)
    assert f"attempt 1 of job {job.number} on" in job.log.read_text()
    assert node not in cluster._run(
        ["squeue", "--noheader", "--states=all", f"--jobs={job.number}", "--format=%N"]
    )
    assert job.attempts() == 2


def test_a_rank_that_is_stuck_is_done_again_on_another_node(
    cluster: Cluster, tiny: list[str], undisturbed: Path, slowed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A stopped process hears no alarm, as one in a dead disk's read does not: the rank that waits for it reports the
    hang, and its node is the healthy one."""
    monkeypatch.setitem(cluster.environment, "SRUN_OPTIONS", "--wait=5")
    job = Job(cluster, [*tiny, "run.step_timeout=20"], tmp_path)
    healthy, node = job.until_half_way()
    slowed.unlink()
    send(job.ranks_on([node]), SIGSTOP)
    job.until(lambda: "is excluded" in job.log.read_text())
    assert f"a fault on {node}, rank 1: stuck, srun had to end it" in job.log.read_text()
    assert f"\n{node} is excluded\n" in job.log.read_text()
    assert f"error: {healthy}: task 0: Alarm clock" in job.log.read_text()
    job.ends_as(undisturbed)
    assert job.attempts() == 2


def test_a_time_limit_without_time_for_a_step_ends_the_job(
    cluster: Cluster, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster.environment, "SLOW_START", "120")  # the signal comes within 30 s
    job = Job(cluster, tiny, tmp_path, "--time=2", "--signal=B:USR1@300")
    assert cluster.wait(job.number, 180) == "FAILED", job.said()
    assert "not requeued: the signal of the time limit (2:00) came" in job.log.read_text()


def test_a_node_that_dies(
    cluster: Cluster, tiny: list[str], undisturbed: Path, slowed: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tiny, tmp_path)
    node = job.until_half_way()[1]
    cluster.kill_node(node)
    slowed.unlink()
    try:
        job.ends_as(undisturbed)
        assert job.attempts() == 2
    finally:
        cluster.start_node(node)
        job.until(lambda: "down" not in cluster.states()[node] and "*" not in cluster.states()[node])
