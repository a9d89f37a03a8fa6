"""Evaluation on a real Slurm cluster: an array of fine-tunings, the same scores as in one process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import Cluster
from tests.command_line import ROOT, Maskmill
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

pytestmark = pytest.mark.cluster

QUICK = ["epochs=1", "max_length=32", "batch=2", "threads=1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.environment |= {"TASKS": "3", "CPUS": "1", "MEMORY": "1G", "TIME": "00:10:00"}
        yield cluster


def test_an_array_scores_as_one_process_does(cluster: Cluster, tmp_path: Path, maskmill: Maskmill) -> None:
    write(tmp_path / "RTE", FILES["rte"])
    same = [encoder_folder("bert"), "rte", "--data", tmp_path, "--seeds", "2", *QUICK]
    words = [str(word) for word in same]
    cluster.environment["LOGS"] = str(tmp_path / "logs")
    log = tmp_path / "evaluate.log"
    job = cluster.submit(
        ROOT / "slurm/evaluate.sbatch",
        *words,
        "--out",
        str(tmp_path / "cluster"),
        options=[f"--output={log}"],
    )
    assert cluster.wait(job) == "COMPLETED", log.read_text()
    last = log.read_text().split("stage results: job ")[1].split()[0]
    assert cluster.wait(last) == "COMPLETED", log.read_text()
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert "not pretrained" in logs["results.log"]
    for number, parts in enumerate((2, 1, 1)):  # two seeds, and the floor of each
        assert f"share {number}/3: {parts} scores" in logs[f"score-{number}.log"]
    maskmill("evaluate", *words, "--out", str(tmp_path / "here"))
    found, expected = (
        json.loads((tmp_path / name / "rte" / "result.json").read_text()) for name in ("cluster", "here")
    )
    assert found["scores"] == expected["scores"]
    assert found["not_pretrained"] == expected["not_pretrained"]
