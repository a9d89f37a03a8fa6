"""A run on a network folder that shows each rank late what the other one wrote: it starts, saves, dies, resumes."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.command_line import Maskmill, command, hooked
from tests.run_ends import assert_bit_equal

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

RUN = ["run.ranks=2", "train.steps=8", "zero.stage=1", "run.restart_delay=0.1"]
KILL = """
def kill_in_batch_seven():
    from pretrain import train
    compute = train.compute

    def killed(run, share, counts):
        done = {done!r}
        if share.batch == 7 and run.world.rank == 1 and not _is_there(done):
            while not _is_there({newest!r}):
                time.sleep(0.05)
            OPEN(done, "w").close()
            os.kill(os.getpid(), 9)
        return compute(run, share, counts)

    train.compute = killed

if os.environ.get("RANK"):
    kill_in_batch_seven()
"""


def late(run: Path, folder: Path) -> dict[str, str]:
    """An environment in which the run's folder is late, and rank 1 is killed once the checkpoint of step 6 is there."""
    shim = Path(__file__).with_name("late_folder.py").read_text()
    kill = KILL.format(done=str(folder / "done"), newest=str(run / "checkpoints" / "step-00000006"))
    return hooked(
        folder, shim + kill, COLUMNS="300",
        LATE_FOLDER=str(run), LATE_SECONDS="2", LATE_JOURNAL=str(folder / "journal"),
    )  # fmt: skip


def trained(run: Path, tiny: list[str], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    called = command("train", "demo", *tiny, *RUN, f"run.dir={run}", *more)
    return subprocess.run(
        called, env=late(run, folder), capture_output=True, text=True, timeout=400, check=False
    )


def test_a_run_on_a_folder_that_is_late_ends_as_one_that_is_not(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={tmp_path / 'undisturbed'}")
    run = tmp_path / "run"
    done = trained(run, tiny, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 3" in done.stderr
    assert re.search(r"step-00000006/\S+ is not shown here: waiting up to 90 s for it", done.stdout)
    assert "resuming from step 6 (bit-exact)" in done.stdout
    assert "damaged" not in done.stdout + done.stderr
    assert_bit_equal(tmp_path / "undisturbed", run)


def test_a_run_that_does_not_wait_is_refused_there(tiny: list[str], tmp_path: Path) -> None:
    done = trained(tmp_path / "run", tiny, tmp_path, "run.folder_wait=0")
    assert done.returncode == 2
    assert "ranks [1] do not see what the first rank wrote" in done.stderr
