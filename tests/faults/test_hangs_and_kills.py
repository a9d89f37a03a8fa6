"""A rank that hangs or is killed: the log says where, the others end, and the run goes on from its checkpoint."""

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from pretrain.checkpoint.store import checkpoints, step_of
from tests.command_line import Maskmill, command, hooked, until
from tests.factories.dockerfiles import DOCKER, IMAGES, environment_of
from tests.run_ends import assert_bit_equal

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

RUN = ["run.ranks=2", "train.steps=8", "encoder.dropout=0.1", "encoder.attention_dropout=0.1", "zero.stage=1"]
HANG = """
import os, time
from pathlib import Path

def install():
    from pretrain import train
    compute = train.compute

    def hangs(run, share, counts):
        if share.batch == 3 and run.world.rank == 1 and not Path({done!r}).exists():
            Path({done!r}).touch()
            {action}
        return compute(run, share, counts)

    train.compute = hangs

if os.environ.get("RANK"):
    install()
"""


def hanging(folder: Path, action: str) -> dict[str, str]:
    """An environment in which rank 1 does `action` in batch 3 of its first attempt."""
    return hooked(folder, HANG.format(done=str(folder / "done"), action=action))


@pytest.fixture(scope="module")
def undisturbed(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}")
    return run


def attempts(run: Path) -> int:
    return int(json.loads((run / "run.json").read_text())["attempts"])


def test_a_hang_is_told_by_every_rank_and_the_run_goes_on(
    undisturbed: Path, tiny: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [*tiny, *RUN, f"run.dir={run}", "run.step_timeout=15", "run.restart_delay=0.1"]
    done = subprocess.run(
        command("train", "demo", *settings),
        env=hanging(tmp_path, "time.sleep(600)"),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a step, an evaluation or a save took longer than run.step_timeout" in done.stderr
    assert "restart 1 of 3" in done.stderr
    for rank, where in (
        (0, "training/progress.py|distributed/engine.py|distributed"),
        (1, r"sitecustomize.py.* in hangs"),
    ):
        log = (run / "logs" / f"rank-{rank}.log").read_text()
        assert "Timeout (0:00:15)!" in log
        assert re.search(where, log), log
    assert attempts(run) == 2
    assert_bit_equal(undisturbed, run)


def test_torchrun_starts_the_ranks_again(undisturbed: Path, tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    called = [*launcher, "--max-restarts", "1", "-m", "launch.cli", "train", "demo", *tiny, *RUN]
    called.append(f"run.dir={run}")
    environment = hanging(tmp_path, "os.kill(os.getpid(), 9)")
    done = subprocess.run(called, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "done").exists()
    assert attempts(run) == 2
    assert_bit_equal(undisturbed, run)


@pytest.mark.skipif(
    Version(version("torch")) < Version("2.12"), reason="torch 2.11 kills after 30 seconds, whatever is set"
)
def test_a_signal_to_torchrun_saves_however_long_a_step_takes(
    undisturbed: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """As `docker stop` sends it, with the images' environment; this step takes longer than torchrun's own 30 s."""
    run = tmp_path / "run"
    settings = [*tiny, *RUN, f"run.dir={run}", "train.checkpoint_every=100"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    process = subprocess.Popen(
        [*launcher, "-m", "launch.cli", "train", "demo", *settings],
        env=hanging(tmp_path, "time.sleep(34)") | {name: environment_of(DOCKER / IMAGES[0])[name]},
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "done").exists, 200, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=200)
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped", said[-3000:]
    assert "SIGKILL" not in said
    assert process.returncode == 1, "torchrun has one code for all that is not success"
    (saved,) = checkpoints(run)
    assert 0 < step_of(saved) < 8
    maskmill("train", "demo", *settings)
    assert attempts(run) == 2
    assert_bit_equal(undisturbed, run)


def test_ranks_do_not_outlive_a_supervisor_that_is_killed(
    undisturbed: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [*tiny, *RUN, f"run.dir={run}"]
    process = subprocess.Popen(
        command("train", "demo", *settings),
        env=hanging(tmp_path, "time.sleep(600)"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: checkpoints(run) and (tmp_path / "done").exists(), 200, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # the folder is free at once: orphans would hold it, and this would be refused
    until(lambda: not held(run), 30, said=lambda: "ranks outlive their supervisor")
    maskmill("train", "demo", *settings)
    assert_bit_equal(undisturbed, run)


def held(run: Path) -> bool:
    from data_pipeline.errors import UserError
    from pretrain.run.folder import lock

    try:
        lock(run).close()
    except UserError:
        return True
    return False
