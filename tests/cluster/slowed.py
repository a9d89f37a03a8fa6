"""The command line, whose training steps take long while the file $SLOWED is there: time to disturb a run. Slurm looks
at time limits twice a minute."""

import os
import time
from pathlib import Path

from launch import cli
from pretrain import train

SECONDS = 10.0

compute = train.compute


def slowly(*arguments):  # type: ignore[no-untyped-def]
    ends = time.monotonic() + SECONDS
    while Path(os.environ["SLOWED"]).exists() and time.monotonic() < ends:
        time.sleep(0.1)
    return compute(*arguments)


if __name__ == "__main__":
    train.compute = slowly
    cli.main()
