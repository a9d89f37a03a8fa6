"""The command line, whose training steps take long while the file $SLOWED is there: time to disturb a run. It says how
many seconds; an empty one means SECONDS, since Slurm looks at time limits twice a minute. $SLOW_START says how many
seconds go by before a rank starts."""

import os
import sys
import time
from pathlib import Path

from launch import cli
from pretrain import train

SECONDS = 10.0

compute = train.compute


def seconds() -> float:
    try:
        return float(Path(os.environ["SLOWED"]).read_text() or SECONDS)
    except FileNotFoundError:
        return 0.0


def slowly(*arguments):  # type: ignore[no-untyped-def]
    began = time.monotonic()
    while time.monotonic() < began + seconds():
        time.sleep(0.1)
    return compute(*arguments)


if __name__ == "__main__":
    train.compute = slowly
    if sys.argv[1] == "train":  # not what the script asks for before
        time.sleep(float(os.environ.get("SLOW_START", "0")))
    cli.main()
