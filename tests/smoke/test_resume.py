"""A run that is killed or stopped, and started again with the same command, ends with the same weights."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import Maskmill, command, environ, until
from tests.run_ends import assert_bit_equal, final

RUN = ["run.ranks=2", "train.steps=8", "encoder.dropout=0.1", "encoder.attention_dropout=0.1", "zero.stage=1"]


@pytest.fixture(scope="module")
def undisturbed(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}")
    return run


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Training in a process group of its own, so that a kill takes all its ranks."""
    return subprocess.Popen(
        command("train", *arguments), env=environ(), stdout=subprocess.DEVNULL, start_new_session=True
    )


@pytest.mark.multirank
def test_killed_and_resumed_is_bit_equal(
    undisturbed: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(["demo", *tiny, *RUN, f"run.dir={run}"])
    until((run / "checkpoints" / "step-00000002").exists, process=process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "checkpoints" / "step-00000008").exists(), "too late to show anything"
    resumed = maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}")
    assert "bit-exact" in resumed.stdout
    assert_bit_equal(undisturbed, run)
    steps = [line["step"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    assert steps == [0, *range(1, 9), 8], "the history holds each step once, and the evaluations at both ends"


@pytest.mark.slow
@pytest.mark.multirank
def test_a_signal_saves_and_stops_all_ranks_together(
    undisturbed: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(["demo", *tiny, *RUN, f"run.dir={run}"])
    until((run / "checkpoints" / "step-00000002").exists, process=process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # an impatient second one changes nothing
    code = process.wait(timeout=120)
    assert code in (3, 0), "3: saved and stopped; 0: it was done before the signal came"
    if code == 3:
        assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}")
    assert_bit_equal(undisturbed, run)


@pytest.mark.slow
@pytest.mark.multirank
def test_another_world_and_stage_goes_on_within_rounding(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    without_dropout = [*tiny, "train.steps=8", "encoder.dropout=0", "encoder.attention_dropout=0"]
    one, two = tmp_path / "one", tmp_path / "two"
    maskmill("train", "demo", *without_dropout, "run.ranks=1", "zero.stage=0", f"run.dir={one}")
    first = [*without_dropout, "run.ranks=2", "zero.stage=1", "run.stop_after=4", f"run.dir={two}"]
    maskmill("train", "demo", *first)
    second = [*without_dropout, "run.ranks=3", "zero.stage=3", "train.micro_batch=2", f"run.dir={two}"]
    resumed = maskmill("train", "demo", *second)
    assert "ranks 2 -> 3" in resumed.stdout
    assert "zero.stage 1 -> 3" in resumed.stdout
    a, b = final(one, 8), final(two, 8)
    total = sum(float((a.tensor(n).double() - b.tensor(n).double()).square().sum()) for n in a.shapes) ** 0.5
    size = sum(float(a.tensor(n).double().square().sum()) for n in a.shapes) ** 0.5
    assert total <= 1e-6 * size
    for name in a.shapes:
        difference = float((a.tensor(name) - b.tensor(name)).abs().max())
        rms = float(a.tensor(name).square().mean()) ** 0.5
        bound = 1e-5 if name.endswith("attention.key.bias") else 1e-6 + 1e-5 * rms
        assert difference <= bound, f"{name}: {difference:.2e} > {bound:.2e}"


@pytest.mark.slow
@pytest.mark.multirank
def test_ranks_that_torchrun_started_are_joined(undisturbed: Path, tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "launch.cli", "train", "demo", *tiny, *RUN, f"run.dir={run}"]
    subprocess.run([*launcher, *arguments], env=environ(), check=True, capture_output=True, timeout=300)
    assert_bit_equal(undisturbed, run)


def test_the_option_of_deepspeeds_launcher_is_understood() -> None:
    called = command("--local_rank=0", "settings", "run.dir")
    environment = environ(RANK="0", WORLD_SIZE="1")
    found = subprocess.run(called, env=environment, check=True, capture_output=True, text=True)
    assert "run.dir" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "launched", [False, True], ids=["maskmill starts the ranks", "another launcher does"]
)
def test_a_stopped_training_ends_with_the_code_of_its_settings(
    launched: bool, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """For schedulers that start again only what ended with a code above 128."""
    run = tmp_path / "run"
    settings = [*tiny, f"run.dir={run}", "train.steps=100000", "run.stopped_exit_code=143"]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    process = subprocess.Popen(
        command("train", "demo", *settings),
        env=environ(**(rank if launched else {})),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = run / "metrics.jsonl"
    until(lambda: metrics.is_file() and '"kind": "train"' in metrics.read_text(), 200, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said[-2000:]
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"
    assert list((run / "checkpoints").glob("step-*/checkpoint.json"))
    stopped = json.loads(maskmill("status", str(run), "--json").stdout)
    assert stopped["health"] == "saved and stopped"
