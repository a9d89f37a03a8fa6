"""`maskmill train` in a terminal: the panel, a rank that is killed, Ctrl-C; and in a batch log, byte for byte plain."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pretrain.run.events import LOST, read_attempts
from tests.command_line import Maskmill, command, environ

pytestmark = pytest.mark.slow

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


class Terminal:
    """A process in a terminal of its own; keeps all that it writes."""

    def __init__(self, arguments: list[str]) -> None:
        self.said = b""
        environment = environ(TERM="xterm-256color", COLUMNS="110", LINES="30")
        environment = {k: v for k, v in environment.items() if k not in ("CI", "FORCE_COLOR", "NO_COLOR")}
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command(*arguments)],
            env=environment,
            stdin=follower,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)

    def until(self, words: bytes, after: int = 0, seconds: float = 240) -> int:
        """Reads on until `words` are there behind `after`; returns where they end."""
        limit = time.monotonic() + seconds
        while (at := self.said.find(words, after)) < 0:
            assert time.monotonic() < limit, self.said[-2000:].decode(errors="replace")
            assert self.read(), self.said[-2000:].decode(errors="replace")
        return at + len(words)

    def read(self) -> bool:
        """Whether more may come."""
        ready, _, _ = select.select([self._leader], [], [], 5)
        if not ready:
            return True
        try:
            data = os.read(self._leader, 1 << 16)
        except OSError:  # the other end is closed
            return False
        self.said += data
        return bool(data)

    def press(self, key: bytes) -> None:
        os.write(self._leader, key)

    def end(self) -> int:
        """Exit code, once all is read."""
        while self.read():
            pass
        os.close(self._leader)
        return self.process.wait(60)


def first_rank(supervisor: int) -> int:
    children = subprocess.run(
        ["ps", "--ppid", str(supervisor), "-o", "pid="], capture_output=True, text=True, check=True
    )
    return int(children.stdout.split()[0])


@pytest.mark.multirank
def test_a_panel_in_a_terminal_and_lines_in_a_log(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [s for s in tiny if not s.startswith(("train.steps", "train.checkpoint_every"))]
    settings += [
        f"run.dir={run}",
        "run.ranks=1",
        "run.restarts=1",
        "run.restart_delay=0",
        "train.checkpoint_every=20",
    ]
    terminal = Terminal(["train", "demo", *settings, "train.steps=100000"])
    at = terminal.until(b"tokens/s")
    at = terminal.until(b"MB in", at)  # a checkpoint is whole
    os.kill(first_rank(terminal.process.pid), signal.SIGKILL)
    at = terminal.until(b"killed by SIGKILL", at)
    killed = terminal.said
    at = terminal.until(b"resuming from step", at)
    at = terminal.until(b"tokens/s", at)
    assert killed.rfind(SHOW) > killed.rfind(HIDE) >= 0, (
        "the supervisor shows the cursor that a killed rank hid"
    )
    terminal.press(b"\x03")
    assert terminal.end() == 3
    assert terminal.said.rfind(SHOW) > terminal.said.rfind(HIDE)
    last = terminal.said[at:].decode(errors="replace")  # rank and supervisor may cut each other short
    assert re.search(r"steps \d+ to \d+ of 100,000 in [\d a-z]+: \[MASK\] loss \d", last)
    assert "rerun the same command to resume" in last
    panel = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.said.decode(errors="replace"))
    for words in ("run  training", "of 100,000", "ms a step", "GB on the fullest rank", "in this attempt"):
        assert words in panel, words
    assert [attempt.status for attempt in read_attempts(run)] == [LOST, "stopped"]

    stop = f"run.stop_after={(read_attempts(run)[-1].last or 0) + 5}"
    log = maskmill("train", "demo", *settings, "train.steps=100000", stop)
    assert "tokens/s" in log.stdout
    assert "\x1b" not in log.stdout + log.stderr
