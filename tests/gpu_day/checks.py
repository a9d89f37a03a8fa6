"""What of a run a GPU must get right: its tests, equal bytes, every objective."""

import json
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.gpu_day.runs import ROOT, Day, Failed, metrics, stop, train_command

SEARCHED = ROOT / "tests/unit"
"""Where the tests marked gpu are. Those beside them may import what such a machine lacks."""
MARK = "mark." + "gpu"


def marked_files(folder: Path = SEARCHED) -> list[Path]:
    """Return the files in the folder with tests marked gpu."""
    return sorted(path for path in folder.rglob("*.py") if MARK in path.read_text("utf-8"))


def gpu_tests(day: Day, figures: dict[str, Any]) -> None:
    """The tests marked gpu."""
    report = day.out / "tests.xml"
    files = map(str, marked_files())
    day.python(
        *("-m", "pytest", *files, "-m", "gpu", "-p", "no:cacheprovider", "-q", f"--junitxml={report}"),
        expected=(0, 1),
    )
    judge(report, figures)
    report.unlink()


def judge(report: Path, figures: dict[str, Any]) -> None:
    """Read pytest's report. Raises Failed if a test has failed or could not begin, and if none has passed."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [*named(cases, "failure"), *named(cases, "error")]
    skipped = named(cases, "skipped")
    passed = len(cases) - len(failed) - len(skipped)
    figures.update(passed=passed, failed=failed, skipped=skipped)
    if failed or not passed:
        raise Failed(f"{len(failed)} of {len(cases)} tests: {', '.join(failed)}")


def named(cases: list[ElementTree.Element], ending: str) -> list[str]:
    """Return the names of the tests that ended so."""
    return [case.get("name", "") for case in cases if case.find(ending) is not None]


def member(day: Day, name: str) -> list[str]:
    """Return the settings of the short run of an objective, and of the encoders that have one."""
    return [each.replace("{carried}", str(day.carried / "members")) for each in members(day)[name]]


def members(day: Day) -> dict[str, list[str]]:
    """Return the settings of all short runs as they were carried."""
    return dict(json.loads((day.carried / "members/settings.json").read_text()))


def family(day: Day, figures: dict[str, Any]) -> None:
    """Every objective trains some steps in bf16, compiled, as its runs are by default, and its loss falls."""
    bf16 = "train.precision=bf16"
    all_train(
        day,
        figures,
        {name: partial(trained, day, f"member {name}", [*member(day, name), bf16]) for name in members(day)},
    )


def all_train(day: Day, figures: dict[str, Any], wanted: dict[str, Callable[[], str]]) -> None:
    """Do all, some at once; each returns what went wrong, nothing if nothing did. Raises Failed with what did."""
    with ThreadPoolExecutor(day.at_once) as pool:
        said = list(pool.map(lambda work: work(), wanted.values()))
    failed = {name: each for name, each in zip(wanted, said, strict=True) if each}
    figures.update(trained=len(wanted) - len(failed), failed=failed)
    if failed:
        raise Failed("; ".join(f"{name}: {each}" for name, each in failed.items()))


def short(day: Day) -> int:
    """Steps of a run that shows whether a loss falls."""
    return 4 if day.tiny else 60


def trained(day: Day, name: str, settings: list[str]) -> str:
    """Train the demo with other settings; return what went wrong, nothing if nothing did."""
    run = day.out / name
    try:
        day.python(*train_command(run, "demo", *settings, f"train.steps={short(day)}"))
    except (Failed, subprocess.TimeoutExpired) as error:
        return str(error)
    losses = losses_of(run)
    shutil.rmtree(run)
    return "" if day.tiny else not_fallen(losses)


def losses_of(run: Path) -> list[float]:
    """Return the loss of each step that was logged."""
    return [line["loss"] for line in metrics(run) if "loss" in line]


def not_fallen(losses: list[float]) -> str:
    """Return what a run's losses say if they have not fallen, nothing if they have."""
    if min(losses[-5:]) < min(losses[:5]):
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
    """Return the SHA-256 of the newest checkpoint's weights and moments, from its marker: of several ranks, each with a
    file of its own, that of all their SHA-256s."""
    newest = (run / "checkpoints" / "latest").read_text().strip()
    said = json.loads((run / "checkpoints" / newest / "checkpoint.json").read_text())
    each = [str(file["sha256"]) for file in sorted(said["files"], key=lambda file: str(file["file"]))]
    return each[0] if len(each) == 1 else sha256("".join(each).encode()).hexdigest()


def twice(day: Day, figures: dict[str, Any]) -> None:
    """The same run with dropout twice ends with the same bytes."""
    first, second = day.out / "first", day.out / "second"
    for run in (first, second):
        day.train(run, "long", *settings_512(day), *DROPOUT)
        figures[run.name] = weights_sha(run)
    shutil.rmtree(second)
    day.whole = first
    if figures["first"] != figures["second"]:
        raise Failed("the weights differ")


def resume(day: Day, figures: dict[str, Any]) -> None:
    """A run with dropout that is killed and goes on ends with the bytes of one that was not."""
    whole, killed = day.whole or day.out / "whole", day.out / "killed"
    every = 1 if day.tiny else 10
    settings = [*settings_512(day), *DROPOUT, f"train.checkpoint_every={every}"]
    if day.whole is None:
        day.train(whole, "long", *settings_512(day), *DROPOUT)
    kill_after(day, killed, settings, checkpoints=2)
    figures["killed after"] = (killed / "checkpoints" / "latest").read_text().strip()
    day.train(killed, "long", *settings)
    figures.update(whole=weights_sha(whole), resumed=weights_sha(killed))
    day.whole = None
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
    if process.returncode != -signal.SIGKILL:
        raise Failed(f"it ended with {process.returncode} before it could be killed")
