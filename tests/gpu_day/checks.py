"""What of a run a GPU must get right: its tests, equal bytes, every objective."""

import json
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu_day.runs import ROOT, Day, Failed, stop, train_command


def gpu_tests(day: Day, figures: dict[str, Any]) -> None:
    """The tests marked gpu."""
    report = day.out / "tests.xml"
    # others may import what this machine lacks
    marked = [
        str(path) for path in (ROOT / "tests/unit").rglob("*.py") if "mark.gpu" in path.read_text("utf-8")
    ]
    day.python(
        *("-m", "pytest", *marked, "-m", "gpu", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"),
        expected=(0, 1),
    )
    cases = list(ElementTree.parse(report).iter("testcase"))
    report.unlink()
    failed = [case.get("name", "") for case in cases if case.find("failure") is not None]
    failed += [case.get("name", "") for case in cases if case.find("error") is not None]
    figures.update(passed=len(cases) - len(failed), failed=failed)
    if failed or not cases:
        raise Failed(f"{len(failed)} of {len(cases)} tests: {', '.join(failed)}")


def family(day: Day, figures: dict[str, Any]) -> None:
    """Every objective trains some steps in bf16, compiled, as its runs are by default, and its loss falls."""
    members = json.loads((day.carried / "members/settings.json").read_text())
    with ThreadPoolExecutor(day.at_once) as pool:
        said = list(pool.map(lambda name: trained_member(day, name, members[name]), members))
    failed = {name: each for name, each in zip(members, said, strict=True) if each}
    figures.update(trained=len(members) - len(failed), failed=failed)
    if failed:
        raise Failed("; ".join(f"{name}: {each}" for name, each in failed.items()))


def trained_member(day: Day, name: str, settings: list[str]) -> str:
    """Train one; return what went wrong, nothing if nothing did."""
    steps, run = 4 if day.tiny else 60, day.out / f"member {name}"
    given = [each.replace("{carried}", str(day.carried / "members")) for each in settings]
    try:
        day.python(*train_command(run, "demo", *given, f"train.steps={steps}", "train.precision=bf16"))
    except (Failed, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    shutil.rmtree(run)
    if day.tiny or min(losses[-5:]) < min(losses[:5]):
        return ""
    return f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last"


DROPOUT = ["encoder.dropout=0.1", "encoder.attention_dropout=0.1"]
"""As bert_base and bert_large have it: attention then is the kernel `flash`, without dropout it is `varlen`."""


def settings_512(day: Day) -> list[str]:
    """Of a run in long examples, long enough that a kernel that adds in any order would show."""
    steps = 4 if day.tiny else 60
    batch = ["train.global_batch=4", "train.micro_batch=2"] if day.tiny else ["train.global_batch=64"]
    return [f"train.steps={steps}", "encoder.max_positions=512", "train.eval_every=0", *batch]


def weights_sha(run: Path) -> str:
    """Return the SHA-256 of the newest checkpoint's weights and moments, from its marker."""
    newest = (run / "checkpoints" / "latest").read_text().strip()
    said = json.loads((run / "checkpoints" / newest / "checkpoint.json").read_text())
    (file,) = said["files"]
    return str(file["sha256"])


def twice(day: Day, figures: dict[str, Any]) -> None:
    """The same run with dropout twice ends with the same bytes."""
    for name in ("first", "second"):
        day.train(day.out / name, "long", *settings_512(day), *DROPOUT)
        figures[name] = weights_sha(day.out / name)
    shutil.rmtree(day.out / "second")
    if figures["first"] != figures["second"]:
        raise Failed("the weights differ")


def resume(day: Day, figures: dict[str, Any]) -> None:
    """A run with dropout that is killed and goes on ends with the bytes of one that was not."""
    whole, killed = day.out / "first", day.out / "killed"
    every = 1 if day.tiny else 10
    settings = [*settings_512(day), *DROPOUT, f"train.checkpoint_every={every}"]
    if not whole.is_dir():
        day.train(whole, "long", *settings_512(day), *DROPOUT)
    kill_after(day, killed, settings, checkpoints=2)
    figures["killed after"] = (killed / "checkpoints" / "latest").read_text().strip()
    day.train(killed, "long", *settings)
    figures.update(whole=weights_sha(whole), resumed=weights_sha(killed))
    for run in (whole, killed):
        shutil.rmtree(run)
    if figures["whole"] != figures["resumed"]:
        raise Failed("the weights differ")


def kill_after(day: Day, run: Path, settings: list[str], checkpoints: int) -> None:
    """Start a run and kill it, SIGKILL to all its processes, once it has so many checkpoints."""
    shards = f"train.shards={day.carried / 'long'}"
    command = [sys.executable, "-P", *train_command(run, "bert_mini", shards, *settings)]
    with (day.out / "log.txt").open("ab") as file:
        process = subprocess.Popen(
            command, env=day.environment, stdout=file, stderr=file, start_new_session=True
        )
        while len(list(run.glob("checkpoints/step-*/checkpoint.json"))) < checkpoints:
            if process.poll() is not None:
                raise Failed(f"it ended with {process.returncode} before it could be killed")
            if time.monotonic() > day.part_ends:
                stop(process)
                raise subprocess.TimeoutExpired(command, 0.0)
            time.sleep(0.05)
        stop(process)
