"""`maskmill slurm --submit` on a real Slurm cluster: from text to an exported model, and what follows a failure."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import Cluster
from tests.command_line import ROOT, command, described, setting

pytestmark = pytest.mark.cluster

SIZE = ["--nodes", "2", "--gpus-per-node", "0", "--tasks", "2", "--cpus", "1", "--sbatch=--time=00:10:00"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def called(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """What a command line says, on the cluster's login node."""
    done = subprocess.run(
        command(*arguments),
        env=cluster.environment | {"COLUMNS": "200"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_text_to_model(cluster: Cluster, tiny: list[str], maskmill, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run, out = tmp_path / "a run", tmp_path / "shards"
    settings = ["demo", *tiny, f"data.out={out}", f"run.dir={run}", "run.step_timeout=120"]
    told = json.loads(called(cluster, "slurm", *settings, *SIZE, "--submit", "--json"))
    assert list(told["skipped"]) == ["vocab"]
    assert f"a vocabulary is there: {setting(tiny, 'data.vocab')}" in told["skipped"]["vocab"]
    jobs = {job["name"]: job for job in told["jobs"]}
    assert list(jobs) == ["discover", "read", "plan", "gather", "write", "finish", "train", "export"]
    waiting = called(cluster, "status", str(run))
    assert "not started" in waiting
    assert f"train {jobs['train']['job']}" in waiting

    def logs() -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-1500:]}" for p in sorted((run / "logs").glob("*")))

    assert cluster.wait(jobs["export"]["job"], 240) == "COMPLETED", logs()
    assert described(maskmill, run / "export")["hashes"] == "all hold"
    found = json.loads(called(cluster, "status", str(run), "--json"))
    assert (found["health"], found["step"], found["attempts"]) == ("finished", 4, 1)
    assert "step 4/4" in (run / "logs" / "rank-0.log").read_text()
    assert (run / "logs" / "rank-1.log").exists(), "a log for each rank, in the run folder"
    nodes = (run / "logs" / f"train-{jobs['train']['job']}.log").read_text()
    assert "2 ranks" in nodes
    asked = cluster._run(["scontrol", "show", "job", jobs["train"]["job"]])
    assert "CPUs/Task=1" in asked
    assert re.search(r"MinMemoryNode=[2-9]G", asked), asked

    again = called(cluster, "slurm", *settings, *SIZE, "--submit")
    assert "job" not in again, "all is done: nothing is submitted"
    assert [line.split(":")[0] for line in again.splitlines()] == ["vocab", "prepare", "train", "export"]


def test_a_stage_that_fails_ends_what_waits_for_it(cluster: Cluster, tiny: list[str], tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "shards"
    broken = tmp_path / "broken.jsonl"
    # behind what is looked at when the sources are discovered
    broken.write_text('{"text": "This is fine. So is this."}\n' * 5_000 + '{"text": \n')
    settings = ["demo", *tiny, f"data.out={out}", f"run.dir={run}", f"data.sources={broken}"]
    told = json.loads(called(cluster, "slurm", *settings, *SIZE, "--submit", "--json"))
    jobs = {job["name"]: job["job"] for job in told["jobs"]}
    assert cluster.wait(jobs["read"]) == "FAILED"
    assert cluster.wait(jobs["export"]) == "CANCELLED"
    assert "broken.jsonl" in (run / "logs" / f"read-{jobs['read']}_0.log").read_text()
    assert "broken.jsonl" in called(cluster, "status", str(run))

    for option in ("--partition=no_such", "--nodes=5", "--mem=900G", "--exclude=node[1-3]"):
        refused = called(cluster, "slurm", *settings, *SIZE, f"--sbatch=train:{option}", "--submit", code=2)
        assert "Slurm would not start the job maskmill-train" in refused
    left = {
        number: state for number, (state, name) in cluster.jobs().items() if state in ("PENDING", "RUNNING")
    }
    assert not left, "nothing is submitted before all jobs were asked for"
