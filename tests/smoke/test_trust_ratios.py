"""Trust ratios by tensor, from the command line to metrics.jsonl and W&B; of an optimizer kept on the CPU."""

import json
import math
from pathlib import Path

import pytest

from pretrain.monitoring.wandb_run import point_of
from pretrain.report.record import read_run
from pretrain.run import metrics_log
from tests.command_line import Maskmill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trust") / "run"
    settings = ["monitor.trust_ratios_every=2", "zero.stage=2", "zero.offload=cpu", "run.ranks=2"]
    done = maskmill("train", "demo", *tiny, *settings, f"run.dir={run}")
    assert done.stderr == ""
    return run


def test_a_line_holds_each_tensors_ratio(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    trust = [line for line in lines if line["kind"] == "trust"]
    assert [line["step"] for line in trust] == [2, 4]
    for line in trust:
        means = {entry["step"]: entry["trust_ratio"] for entry in lines if entry["kind"] == "train"}
        ratios = [value for key, value in line.items() if key.startswith("trust_ratio/")]
        assert len(ratios) == len(line) - 2
        assert sum(ratios) / len(ratios) == pytest.approx(means[line["step"]], rel=1e-12)
    assert "trust_ratio/encoder.embeddings.word.weight" in trust[0]
    assert trust[0] != trust[1] | {"step": 2}


def test_the_report_and_the_summary_leave_them_out(finished: Path) -> None:
    record = read_run(finished)
    assert not record.complaints
    assert len(record.train["loss"].values) == 4
    assert not any(name.startswith("trust_ratio/") for name in [*record.train, *record.summary])


def test_wandb_draws_them_as_heat_maps(finished: Path) -> None:
    points = [point_of(line) for line in metrics_log.read_metrics(finished) if line["kind"] == "trust"]
    assert [point["step"] for point in points] == [2, 4]
    ratios = {key: value for key, value in points[0].items() if key.startswith("trust_ratio/")}
    assert sum(points[0]["trust_ratios"].heights) == len(ratios) > 10
    rows, edges = points[0]["trust_ratio_by_layer"]
    layers = max(int(key.partition(".layers.")[2].partition(".")[0] or -1) for key in ratios) + 1
    assert (len(rows), edges[0], edges[-1]) == (layers + 2, 0, layers + 2)
    first = [value for key, value in ratios.items() if ".layers.0." in key]
    assert rows[1] == pytest.approx(math.prod(first) ** (1 / len(first)))
