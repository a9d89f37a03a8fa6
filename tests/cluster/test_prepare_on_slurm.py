"""Preparation on a real Slurm cluster of four nodes: as arrays and through Dask, also when a node dies half-way,
the same bytes as in one process."""

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import send

from slurm import NODES, Cluster
from tests.command_line import ROOT, TINY, Maskmill, command, until, write_text
from tests.factories.preparations import hashes

pytestmark = pytest.mark.cluster

FILES = 40
SCRIPT = ROOT / "slurm/prepare.sbatch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.environment |= {
            "TASKS": "4",
            "CPUS": "1",
            "OPTIONS": "--exclusive",  # a node for each task
            "TIME": "00:10:00",
            "DASK_JOBQUEUE__SLURM__JOB_EXTRA_DIRECTIVES": "['--exclusive']",
            "DASK_JOBQUEUE__SLURM__LOG_DIRECTORY": str(tmp_path_factory.mktemp("dask")),
            "DASK_JOBQUEUE__SLURM__INTERFACE": "lo",
        }
        yield cluster
        for node, state in cluster.states().items():
            assert "down" not in state, f"{node} was not brought back"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, maskmill: Maskmill) -> list[str]:
    """Settings of a corpus of many files, so that there is much to do, with its vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus").mkdir()
    for number in range(FILES):
        write_text(folder / "corpus" / f"{number:02d}.txt", documents=1500, seed=number)
    settings = [
        *TINY,
        f"data.sources={folder}/corpus",
        f"data.vocab={folder}/vocabulary",
        "data.shard_tokens=400000",
    ]
    maskmill("vocab", "demo", *settings, "vocabulary.sample_mb=1")
    return settings


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, text: list[str], maskmill: Maskmill) -> dict[str, str]:
    """The hashes of what one process on this machine makes."""
    out = tmp_path_factory.mktemp("local") / "shards"
    maskmill("prepare", "demo", *text, f"data.out={out}")
    assert len(list(out.glob("*.tar"))) > 8
    return hashes(out)


def submit(cluster: Cluster, settings: list[str], out: Path) -> dict[str, str]:
    """Runs prepare.sbatch until it has submitted its jobs; the number of each stage's."""
    log = out.with_suffix(".log")
    cluster.environment["LOGS"] = str(out.with_suffix(".logs"))
    job = cluster.submit(SCRIPT, "demo", *settings, f"data.out={out}", options=[f"--output={log}"])
    assert cluster.wait(job) == "COMPLETED", log.read_text()
    names = {
        name: number.split("_")[0] for number, (_, name) in cluster.jobs().items() if name.endswith(f"-{job}")
    }
    return {name.split("-")[1]: number for name, number in names.items()}


def read_so_far(out: Path) -> int:
    """How many files of the corpus are tokenized; the run is half-way while that is between none and all."""
    return len(list((out / ".work" / "read-done").glob("[!.]*.json")))


def restarted(cluster: Cluster, node: str) -> None:
    cluster.start_node(node)
    until(lambda: "down" not in cluster.states()[node] and "*" not in cluster.states()[node])


def test_arrays_one_behind_the_other(
    cluster: Cluster, text: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    jobs = submit(cluster, text, tmp_path / "shards")
    assert cluster.wait(jobs["finish"], 240) == "COMPLETED", cluster.jobs()
    assert hashes(tmp_path / "shards") == expected
    assert not (tmp_path / "shards" / ".work").exists()
    assert not submit(cluster, text, tmp_path / "shards"), "nothing is left to do"
    assert "already prepared" in (tmp_path / "shards.log").read_text()


def test_a_node_that_dies_while_it_reads(
    cluster: Cluster, text: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    jobs = submit(cluster, text, out)
    until(lambda: read_so_far(out) >= 2 and cluster.nodes_of(jobs["read"]))
    node = cluster.nodes_of(jobs["read"])[0]
    cluster.kill_node(node)
    assert read_so_far(out) < FILES, "too late: all is read"
    assert cluster.wait(jobs["finish"], 300) == "COMPLETED", cluster.jobs()
    assert hashes(out) == expected
    assert not cluster.processes_of(node)
    restarted(cluster, node)


def test_a_task_that_fails_once_stops_nothing(
    cluster: Cluster,
    text: list[str],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a node without a mount, say: Slurm requeues it, and what waits for it goes on waiting."""
    once = tmp_path / "maskmill"
    once.write_text(
        f'#!/usr/bin/env bash\nif [[ "$*" == *"--stage read --share 1/4"* && ! -e {tmp_path}/failed ]]; then\n'
        f'touch {tmp_path}/failed; exit 1\nfi\nexec {shlex.join(command())} "$@"\n'
    )
    once.chmod(0o755)
    monkeypatch.setitem(cluster.environment, "MASKMILL", str(once))
    out = tmp_path / "shards"
    jobs = submit(cluster, text, out)
    assert cluster.wait(jobs["read"]) == "COMPLETED", cluster.jobs()
    assert (
        "task 1 of stage read ended with exit code 1 on node"
        in (tmp_path / "shards.logs/read-1.log").read_text()
    )
    assert cluster.wait(jobs["finish"], 240) == "COMPLETED", cluster.jobs()
    assert hashes(out) == expected


def test_a_task_that_fails_stops_what_follows_and_the_same_command_goes_on(
    cluster: Cluster, text: list[str], expected: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    jobs = submit(cluster, text, out)
    until(lambda: read_so_far(out) >= 2 and cluster.nodes_of(jobs["read"]))
    send(
        cluster.processes_of(cluster.nodes_of(jobs["read"])[0])[1:], signal.SIGKILL
    )  # all but the step daemon
    assert cluster.wait(jobs["read"]) == "FAILED"
    assert cluster.wait(jobs["finish"]) == "CANCELLED", "a failed array did not end what waited for it"
    assert not (out / "index.json").exists()
    before = read_so_far(out)
    assert 0 < before < FILES
    jobs = submit(cluster, text, out)
    assert cluster.wait(jobs["finish"], 240) == "COMPLETED", cluster.jobs()
    assert hashes(out) == expected


@pytest.mark.parametrize("killed", [False, True])
def test_dask_workers_as_slurm_jobs(
    cluster: Cluster, text: list[str], expected: dict[str, str], tmp_path: Path, killed: bool
) -> None:
    out = tmp_path / "shards"
    settings = [*text, f"data.out={out}", "data.executor=dask", "data.scheduler=slurm", "data.workers=3"]
    with open(tmp_path / "log.txt", "w+") as log:
        process = subprocess.Popen(
            command("prepare", "demo", *settings),
            env=cluster.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        try:
            if killed:
                until(lambda: read_so_far(out) >= 2)
                busy = [node for node in NODES if cluster.processes_of(node)]
                cluster.kill_node(busy[0])
                assert read_so_far(out) < FILES, "too late: all is read"
            code = process.wait(timeout=240)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        assert code == 0, log.read()
    assert hashes(out) == expected
    until(lambda: all("dask" not in name for state, name in cluster.jobs().values() if state == "RUNNING"))
    if killed:
        restarted(cluster, busy[0])
