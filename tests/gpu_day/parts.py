"""The parts of the first hour with a GPU, in order of their worth. Imports nothing but the standard library."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PIECE = 15 * 2**20
"""Bytes of a file in which a run travels back."""
ROOT = Path(__file__).parents[2]
BENCHMARK = str(ROOT / "tests/benchmarks/bench_gpu.py")
ROWS = ("base-128", "large-128", "large-512")
SECONDS_TO_START_AND_PACK = 75.0


class Failed(Exception):
    """A part has shown that something does not work; says what."""


@dataclass
class Day:
    """What all parts share."""

    out: Path
    carried: Path
    environment: dict[str, str]
    tiny: bool
    ends: float
    """By time.monotonic(), for all parts."""
    part_ends: float = 0.0
    """For the part that runs."""
    at_once: int = 1
    """Short runs that share the GPU, where nothing is timed."""
    _log: threading.Lock = field(default_factory=threading.Lock)

    def python(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        """Run Python with these arguments; return its output, which log.txt gets as well. Raises Failed if it ends
        with another exit code, TimeoutExpired when the part's time is over."""
        with tempfile.TemporaryFile() as file:  # its own: several run at once
            try:
                code = self._waited([sys.executable, "-P", *arguments], file)
            finally:
                file.seek(0)
                said = file.read().decode(errors="replace")
                with self._log, (self.out / "log.txt").open("a", encoding="utf-8") as log:
                    log.write(f"\n$ python {' '.join(arguments)}\n{said}")
        if code not in expected:
            last = (said.strip().splitlines() or ["no output"])[-1]
            raise Failed(f"exit code {code} of {' '.join(arguments[:3])}: {last}")
        return said

    def _waited(self, command: list[str], file: Any) -> int:
        left = max(1.0, self.part_ends - time.monotonic())
        process = subprocess.Popen(
            command, env=self.environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
            stop(process)
            raise

    def train(self, run: Path, shards: str, *settings: str) -> str:
        """Train bert_mini on carried shards, on the one GPU."""
        return self.python(
            *train_command(run, "bert_mini", f"train.shards={self.carried / shards}", *settings)
        )


def stop(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def train_command(run: Path, recipe: str, *settings: str) -> list[str]:
    """Return the arguments of Python for a run on one GPU, whose metrics stay on this machine. Of bert_mini settings
    name the shards as train.shards: they are taken as they are, whatever recipe prepared them."""
    return [
        "-c",
        "from launch.cli import main; main()",
        "train",
        recipe,
        f"run.dir={run}",
        "run.ranks=1",
        "run.restarts=0",
        "monitor.tracker=jsonl",
        *settings,
    ]


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
    """The same run twice ends with the same bytes."""
    for name in ("first", "second"):
        day.train(day.out / name, "long", *settings_512(day))
        figures[name] = weights_sha(day.out / name)
    shutil.rmtree(day.out / "second")
    if figures["first"] != figures["second"]:
        raise Failed("the weights differ")


def resume(day: Day, figures: dict[str, Any]) -> None:
    """A run that is killed and goes on ends with the bytes of one that was not."""
    whole, killed = day.out / "first", day.out / "killed"
    every = 1 if day.tiny else 10
    settings = [*settings_512(day), f"train.checkpoint_every={every}"]
    if not whole.is_dir():
        day.train(whole, "long", *settings_512(day))
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


def bench(day: Day, figures: dict[str, Any]) -> None:
    """Three published sizes, both engines, deterministic and not."""
    found = day.out / "bench.json"
    tiny = ["--tiny", "--steps", "1", "--windows", "1"] if day.tiny else []
    figures["rows"] = rows = []
    try:
        for row in ROWS:  # a process each, so that memory of one is not in the way of the next
            day.python(BENCHMARK, "--row", row, "--json", str(found), *tiny)
    finally:
        rows += json.loads(found.read_text()) if found.is_file() else []
        found.unlink(missing_ok=True)


def fp8(day: Day, figures: dict[str, Any]) -> None:
    """BERT-large with products in FP8 beside bf16, and two short runs: the same losses to a few hundredths."""
    found = day.out / "fp8.json"
    tiny = ["--tiny", "--steps", "1", "--windows", "1"] if day.tiny else []
    case = ("--row", "large-128", "--engine", "deepspeed", "--deterministic", "on", "--json", str(found))
    for precision in ("auto", "fp8"):
        day.python(BENCHMARK, *case, "--precision", precision, *tiny)
    figures["rows"] = json.loads(found.read_text())
    found.unlink()
    steps = 4 if day.tiny else 300
    for precision in ("bf16", "fp8"):
        run = day.out / precision
        day.train(run, "long", *settings_512(day), f"train.steps={steps}", f"train.precision={precision}")
        figures[f"{precision} loss"] = last_metrics(run).get("held_out_mask_loss")
        shutil.rmtree(run)


def lamb(day: Day, figures: dict[str, Any]) -> None:
    """One LAMB step beside its memory floor and its peers."""
    found = day.out / "lamb.json"
    tiny = ["--layers", "2", "--hidden", "128", "--vocabulary", "3000", "--copy-mb", "64", "--rounds", "2"]
    day.python(
        str(ROOT / "tests/benchmarks/bench_lamb.py"), "--json", str(found), *(tiny if day.tiny else [])
    )
    figures.update(json.loads(found.read_text()))
    found.unlink()


def mini(day: Day, figures: dict[str, Any]) -> None:
    """bert_mini for the time that is left."""
    minutes = max(0.2, (day.part_ends - time.monotonic() - SECONDS_TO_START_AND_PACK) / 60)
    run = day.out / "mini"
    length = ["train.steps=4", "train.global_batch=4", "train.micro_batch=2"] if day.tiny else []
    batch = ["train.global_batch=256", "train.micro_batch=0", "optim.lr=2e-3"]
    length = length or ["train.steps=0", f"train.minutes={minutes:.2f}", *batch]
    day.train(run, "short", *length, "checkpoint.keep=1", "train.checkpoint_every=0", "train.eval_every=2000")
    last = last_metrics(run)
    wanted = ("step", "held_out_mask_loss", "held_out_mask_unigram_loss", "tokens_per_s")
    figures.update({name: last[name] for name in wanted if name in last}, minutes=minutes)
    export(day, run)
    packed = day.out / "mini.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(run, "mini")
    with packed.open("rb") as file:
        for number, piece in enumerate(iter(lambda: file.read(PIECE), b"")):
            (day.out / f"mini.tar.{number}").write_bytes(piece)
    packed.unlink()
    shutil.rmtree(run)


def last_metrics(run: Path) -> dict[str, Any]:
    """Return the last value of each metric of a run."""
    last: dict[str, Any] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        last |= json.loads(line)
    return last


def export(day: Day, run: Path) -> None:
    """Put the model in the place of the checkpoints, a third of their bytes. They stay where this machine cannot, as
    without transformers."""
    try:
        day.python("-c", "from launch.cli import main; main()", "export", str(run))
    except Failed:
        return
    shutil.rmtree(run / "checkpoints")


def in_words(figures: dict[str, Any]) -> str:
    """What fits into a cell: no lists, and of a hash its beginning."""
    return "; ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {str(value)[:16]}"
        for name, value in figures.items()
        if not isinstance(value, (dict, list))
    )


class Part(NamedTuple):
    """A function that fills in its figures as it finds them, and its time."""

    work: Callable[[Day, dict[str, Any]], None]
    seconds: float
    """At most."""


PARTS = {
    "tests": Part(gpu_tests, 300.0),
    "twice": Part(twice, 240.0),
    "resume": Part(resume, 240.0),
    "family": Part(family, 240.0),
    "bench": Part(bench, 570.0),
    "fp8": Part(fp8, 240.0),
    "lamb": Part(lamb, 90.0),
    "mini": Part(mini, 570.0),
}
