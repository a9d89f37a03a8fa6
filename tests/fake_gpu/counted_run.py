"""`maskmill` with the counts of each step in a file: `python counted_run.py FOLDER train demo ...`, as a rank.

The file is FOLDER/counts-RANK.jsonl. A line of JSON a step: how many micro-batches it had, and how often their forward
and backward passes had the host wait for the device.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from counts import read_counts, show_waits

from launch import cli
from pretrain import train

if __name__ == "__main__":
    path = Path(sys.argv[1]) / f"counts-{os.environ['RANK']}.jsonl"
    compute = train.compute

    def counted(run: Any, share: Any, counts: Any) -> bool:
        """Count around train.compute: forward and backward over a step's micro-batches."""
        before = read_counts()
        accepted = compute(run, share, counts)
        line = {"micro_batches": counts.micro_batches, **read_counts().since(before)._asdict()}
        with path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        return accepted

    train.compute = counted
    if "FAKE_GPU_STACKS" in os.environ:
        show_waits()
    sys.argv = ["maskmill", *sys.argv[2:]]
    cli.main()
