"""A day without a GPU whose trainings are written down beforehand: what a part makes of them is real."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu_day.runs import Day

CLI = """
import json, os, sys, time
from pathlib import Path

def main():
    given = dict(each.split("=", 1) for each in sys.argv if "=" in each)
    run = Path(given["run.dir"])
    again, script = run.exists(), json.loads(Path(os.environ["SCRIPT"]).read_text())
    said = {"sha": ["a"], "losses": list(range(20, 0, -1)), "checkpoints": [10], **script.get(run.name, {})}
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps({"name": run.name, "again": again, **given}) + "\\n")
    run.mkdir(exist_ok=True)
    held_out = {"held_out_mask_loss": said["held_out"]} if "held_out" in said else {}
    with open(run / "metrics.jsonl", "a") as lines:
        for loss in said.get("later", []) if again else said["losses"]:
            line = {"loss": loss, "examples_per_s": 100 * int(given["run.ranks"]), **held_out}
            lines.write(json.dumps(line) + "\\n")
    for step in said["checkpoints"]:
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "latest").write_text(folder.name)
        files = [{"file": str(number), "sha256": sha} for number, sha in enumerate(said["sha"])]
        (folder / "checkpoint.json").write_text(json.dumps({"files": files}))
    print(said.get("says", "") if again else "")
    if said.get("hangs") and not again:
        time.sleep(100)
"""


@dataclass
class Script:
    """A day, and what its trainings do and did."""

    day: Day
    path: Path
    calls: Path

    def write(self, **runs: dict[str, Any]) -> None:
        """Say what runs do, by their names: `sha` of each rank's file, `losses`, of the attempts after the first
        `later`, the `held_out` loss of each line, the steps of `checkpoints`, what it `says` as it goes on; whether the
        first attempt `hangs`."""
        self.path.write_text(json.dumps(runs))

    def done(self) -> list[dict[str, Any]]:
        """Return the settings of each attempt, with the run's `name` and whether it was there before (`again`)."""
        return [json.loads(line) for line in self.calls.read_text().splitlines()]


def scripted_day(folder: Path) -> Script:
    """Return a day in this folder whose `maskmill train` is CLI."""
    package, out, carried = folder / "code/launch", folder / "out", folder / "carried/members"
    for each in (package, out, carried):
        each.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(CLI)
    (carried / "settings.json").write_text(json.dumps({"bert": ["a.b={carried}/bert"], "mlm": ["a.b=c"]}))
    files = {"SCRIPT": str(folder / "script.json"), "CALLS": str(folder / "calls.jsonl")}
    environment = {**os.environ, "PYTHONPATH": str(package.parent), **files}
    soon = time.monotonic() + 100
    day = Day(out, carried.parent, environment, tiny=False, ends=soon, part_ends=soon)
    found = Script(day, Path(files["SCRIPT"]), Path(files["CALLS"]))
    found.write()
    return found
