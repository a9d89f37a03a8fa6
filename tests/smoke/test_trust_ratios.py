"""Trust ratios by tensor, from the command line to metrics.jsonl and W&B; of an optimizer kept on the CPU."""

import json
from pathlib import Path

import pytest

from pretrain import monitor
from pretrain.report.record import read_run
from tests.command_line import Maskmill


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


class Run:
    """Stands in for W&B's run."""

    def __init__(self) -> None:
        self.points: list[dict] = []

    def log(self, point: dict) -> None:
        self.points.append(point)

    def finish(self) -> None:
        pass


def test_wandb_draws_them_as_a_heat_map(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    monkeypatch.setattr(monitor, "_start", lambda *_: run)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monitor.sync(finished, "abc", "p", {})
    trust = [point for point in run.points if "trust_ratios" in point]
    assert [point["step"] for point in trust] == [2, 4]
    counted = sum(trust[0]["trust_ratios"].histogram)
    assert counted == sum(key.startswith("trust_ratio/") for key in trust[0]) > 10
