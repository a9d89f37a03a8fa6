"""The command line, whose training steps take a second each while the file $SLOWED is there: time to disturb a run."""

import os
import time
from pathlib import Path

from launch import cli
from pretrain import train

SECONDS = 1.0

compute = train.compute


def slowly(*arguments):  # type: ignore[no-untyped-def]
    if Path(os.environ["SLOWED"]).exists():
        time.sleep(SECONDS)
    return compute(*arguments)


if __name__ == "__main__":
    train.compute = slowly
    cli.main()
