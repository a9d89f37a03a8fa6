"""The mini model's study beside its peer runs as its help says, and continues after an interruption."""

import argparse
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.benchmarks import study_mini
from tests.benchmarks.mini_contenders import Run, peer_command, run_settings
from tests.benchmarks.studies import Failed, Results, load, run
from tests.command_line import write_text

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs a study in this process; what it prints."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()

    def run_study(module: ModuleType, *arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["study", *arguments])
        module.main()
        return capsys.readouterr().out

    yield run_study
    torch.set_num_threads(threads)


def test_the_mini_model_beside_the_trainer(tmp_path: Path, study: Callable[..., str]) -> None:
    write_text(tmp_path / "text.txt", documents=60)
    sizes = "--threads=1 --examples=4 --length=32 --layers=1 --hidden=32 --vocabulary=300 --held-out=0.2"
    times = "--minutes=0.01 --calibrate=4 --rounds=1"
    given = [f"--source={tmp_path}/text.txt", f"--folder={tmp_path}", *sizes.split(), *times.split()]
    printed = study(study_mini, *given, f"--picture={tmp_path}/mini.svg", "--rates", "1e-3")
    measured = load(tmp_path / "result.json")["measured"]
    assert set(measured) == {"ours-0.001-1", "trainer-0.001-1"}
    for name in ("ours", "trainer"):
        found = measured[f"{name}-0.001-1"]
        points = found["points"]
        # no time for more than a step a checkpoint
        assert [p["step"] for p in points] == list(range(1, study_mini.SNAPSHOTS + 1))
        assert [p["seconds"] for p in points] == sorted(p["seconds"] for p in points)
        assert points[0]["seconds"] > 0.5  # the start of the process counts
        assert points[-1]["mask_loss"] < points[0]["mask_loss"]
        assert [p["took"] for p in points] == sorted(p["took"] for p in points)
        assert re.search(rf"\| {found['label']} \| 0.001 \| 1 \| [\d.]+ \| [\d.]+ \| 10 \|", printed)
        assert not (tmp_path / name / "run").exists()
    # ours saw the same examples in the same order from weights of the same distribution
    ours, peer = (measured[f"{name}-0.001-1"]["points"][-1] for name in ("ours", "trainer"))
    assert ours["mask_unigram_loss"] == peer["mask_unigram_loss"]
    assert ours["mask_loss"] == pytest.approx(peer["mask_loss"], abs=0.3)

    # nothing of it is trained again; a second seed runs at the best rate alone
    more = ("--rates", "1e-3", "--seeds=2", "--jobs=2")
    again = study(study_mini, *given, f"--picture={tmp_path}/again.svg", *more)
    assert "ours: " not in again, "its speed is known"
    assert "ours-0.001-1:" not in again
    assert "ours-0.001-2:" in again
    drawn = study(study_mini, f"--draw={tmp_path}/result.json", f"--picture={tmp_path}/drawn.svg")
    assert drawn.partition("picture:")[0] in again
    pictures = [(tmp_path / f"{name}.svg").read_text() for name in ("again", "drawn")]
    assert len(set(pictures)) == 1
    assert len(ET.fromstring(pictures[0]).findall(f".//{SVG}circle")) == 2 * study_mini.SNAPSHOTS
    with pytest.raises(SystemExit, match="measured with other warmup"):
        study(study_mini, *given, "--warmup=0.5")


def test_contenders_may_have_models_batches_and_ranks_of_their_own(
    tmp_path: Path, study: Callable[..., str]
) -> None:
    write_text(tmp_path / "text.txt", documents=60)
    names = ("fast", "modern-trainer")
    sizes = "--threads=2 --examples=4 --length=32 --vocabulary=300 --held-out=0.2"
    times = "--minutes=0.01 --calibrate=4 --rounds=1 --rates 1e-3"
    given = [f"--source={tmp_path}/text.txt", f"--folder={tmp_path}", *sizes.split(), *times.split()]
    study(study_mini, *given, f"--picture={tmp_path}/mini.svg", "--contenders", *names)
    last = {
        name: load(tmp_path / "result.json")["measured"][f"{name}-0.001-1"]["points"][-1] for name in names
    }
    assert [last[name]["examples"] / last[name]["step"] for name in names] == [64, 4]
    assert len({found["mask_unigram_loss"] for found in last.values()}) == 1, "judged on the same examples"
    assert all(found["mask_loss"] < 6 for found in last.values())
    assert ["nsp_accuracy" in last[name] for name in names] == [True, False]
    log = (tmp_path / "fast" / "run.log").read_text()
    assert "2 ranks" in log


def test_a_contender_is_shown_at_its_own_best_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {("ours", 1e-3): (3.0, 3.2), ("ours", 2e-3): (3.1,), ("trainer", 1e-3): (4.0,)}
    losses[("trainer", 2e-3)] = (3.5, 3.7)
    measured = {
        f"{name}-{rate:g}-{seed}": mini_run(name, rate, seed, loss)
        for (name, rate), row in losses.items()
        for seed, loss in enumerate(row, 1)
    }
    speeds = {name: {"start": 5.0, "step": 0.5} for name in ("ours", "trainer")}
    result = {"setup": {"minutes": 1.0}, "speeds": speeds, "measured": measured}
    study_mini.report(result, tmp_path / "picture.svg")
    printed = capsys.readouterr().out
    assert "| 0.002 | 3.100 | 3.500 |" in printed
    assert "| ours | 0.001 | 2 | 5.0 | 0.50 | 100 | 3.100 (3.000 to 3.200) | 50.0% | 90.0% |" in printed
    assert "| trainer | 0.002 | 2 | 5.0 | 0.50 | 100 | 3.600 (3.500 to 3.700) | 50.0% | 90.0% |" in printed
    assert "| 0.5 min | 4.500 | 4.750 |" in printed  # half-way between 6 at the start and the end


def mini_run(name: str, rate: float, seed: int, loss: float) -> dict:
    """An entry of the mini study."""
    figures = {"mask_accuracy": 0.5, "nsp_accuracy": 0.9, "mask_unigram_loss": 6.0}
    points = [{"seconds": at, "mask_loss": value, **figures} for at, value in ((0.0, 6.0), (60.0, loss))]
    return {"label": name, "contender": name, "rate": rate, "seed": seed, "steps": 100, "points": points}


def test_steps_fill_the_time_but_for_the_start() -> None:
    speed = study_mini.Speed(start=10.0, step=0.5)
    assert (speed.steps(100.0), speed.seconds(180)) == (180, 100.0)
    assert study_mini.Speed(start=200.0, step=0.5).steps(100.0) == study_mini.SNAPSHOTS


def test_a_failing_run_is_told(tmp_path: Path) -> None:
    run([sys.executable, "-c", "print('an earlier one')"], tmp_path / "log")
    with pytest.raises(Failed, match="no room") as failed:
        run([sys.executable, "-c", "raise SystemExit('no room')"], tmp_path / "log")
    assert failed.value.output == "no room\n"
    assert (tmp_path / "log").read_text() == "an earlier one\nno room\n"


def test_results_outlive_an_interruption_and_keep_to_their_set_up(tmp_path: Path) -> None:
    Results(tmp_path / "result.json", {"a": 1}).add("one", {"loss": float("inf")})
    assert Results(tmp_path / "result.json", {"a": 1}).measured == {"one": {"loss": float("inf")}}
    with pytest.raises(SystemExit, match="measured with other a"):
        Results(tmp_path / "result.json", {"a": 2})


def test_both_sides_train_in_the_precision_of_their_contender(tmp_path: Path) -> None:
    arguments = argparse.Namespace(
        layers=1, hidden=64, length=32, examples=4, eval_examples=4, warmup=0.1, dupe_factor=1
    )
    for ours, peer, precision in (("fast", "small-trainer", "fp32"), ("wide", "wide-trainer", "bf16")):
        assert f"train.precision={precision}" in run_settings(arguments, Run(ours, 1e-3, 1))
        given = peer_command(Run(peer, 1e-3, 1), arguments, [f"data.out={tmp_path}"], tmp_path, 10, 1, 1)
        assert json.loads(given[-1])["bf16"] == (precision == "bf16")
