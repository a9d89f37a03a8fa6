"""How fast a GPU is, and what a model learns on it in a few minutes."""

import contextlib
import json
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu_day.runs import ROOT, Day, Failed, LeftOut, last_metrics

PIECE = 15 * 2**20
"""Bytes of a file in which a run travels back."""
BENCHMARK, PEER = (str(ROOT / "tests/benchmarks" / name) for name in ("bench_gpu.py", "bench_gpu_peer.py"))
DEEPSPEED = ("--engine", "deepspeed")
ROWS = {"base-128": (), "large-128": (), "large-512": (), "modern-1024": DEEPSPEED, "modern-8192": DEEPSPEED}
"""Rows, and which of their measurements; () are all."""
PEERS = {
    "large-512": (),
    "modern-1024": ("--micro-batch", "48", "--accumulation", "8"),
    "modern-8192": ("--micro-batch", "6", "--accumulation", "8"),
}
"""Rows, and a smaller micro-batch where the peer keeps more of each token."""
SECONDS_TO_START_AND_PACK = 75.0


def bench(day: Day, figures: dict[str, Any]) -> None:
    """Published sizes, deterministic and not, BERT's on both engines."""
    with measured(day, "bench.json", figures) as benchmark:
        for row, which in ROWS.items():  # a process each, so that memory of one is not in the way of the next
            benchmark("--row", row, *which)


def peers(day: Day, figures: dict[str, Any]) -> None:
    """The classes of transformers on the same rows."""
    try:
        day.python("-c", "import transformers")
    except Failed:
        raise LeftOut("needs transformers") from None
    with measured(day, "peers.json", figures, PEER) as benchmark:
        for row, batch in PEERS.items():
            benchmark("--row", row, *batch)


@contextlib.contextmanager
def measured(
    day: Day, name: str, figures: dict[str, Any], script: str = BENCHMARK
) -> Iterator[Callable[..., None]]:
    """While open, give what runs the script with further arguments. The figures get the rows, of a part that is cut
    short those that it had."""
    found = day.out / name
    tiny = ["--tiny", "--steps", "1", "--windows", "1"] if day.tiny else []
    try:
        yield lambda *arguments: day.python(script, *arguments, "--json", str(found), *tiny)
    finally:
        figures["rows"] = json.loads(found.read_text()) if found.is_file() else []
        found.unlink(missing_ok=True)


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


def export(day: Day, run: Path) -> None:
    """Put the model in the place of the checkpoints, a third of their bytes. They stay where this machine cannot, as
    without transformers."""
    try:
        day.python("-c", "from launch.cli import main; main()", "export", str(run))
    except Failed:
        return
    shutil.rmtree(run / "checkpoints")
