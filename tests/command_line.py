"""The real command line for tests: a small text, a tiny run, and what `maskmill` is called with."""

import contextlib
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
VOCABULARY = ROOT / "tests/golden/vocab/bert-base-uncased-vocab.txt"

WORDS = """the sea ship a captain sailed over dark water and found an island where old kings slept under stone while
birds sang of rain wind summer she said nothing but walked along river to mill he opened door window letter lamp garden
winter morning night road horse carriage village church bell""".split()  # noqa: SIM905

BUCKET = "mill"
"""The bucket of the S3 server that tests start."""

SECRETS = [
    "data.sources=[s3://AKIA:canary/of+a@key@host/b/*.txt,https://canary@host/c.txt]",
    "checkpoint.mirror=s3://bucket/run?X-Amz-Signature=canary&sig=canary;canary",
]
"""Settings with what must never be shown; each value holds the word canary."""

TINY = [  # a model and a run that take seconds
    "vocabulary.size=300",
    "data.sequence_length=32",
    "data.masked_lm_prob=0.15",
    "data.duplicates=keep",
    "data.max_predictions=5",
    "data.held_out=0.2",
    "data.block_examples=16",
    "data.shard_tokens=2000",
    "data.workers=1",
    "encoder.hidden=32",
    "encoder.heads=2",
    "encoder.intermediate=64",
    "train.global_batch=12",
    "train.micro_batch=4",
    "train.log_every=1",
    "train.eval_every=0",
    "train.checkpoint_every=2",
    "train.steps=4",
    "run.threads=1",
    "monitor.peak_tflops=0.1",  # or each rank of each run measures it for a fifth of a second
    "optim.name=lamb",
    "optim.lr=1e-2",
]


def write_text(path: Path, documents: int = 40, seed: int = 0) -> None:
    """Documents of a few sentences of common words, apart by blank lines."""
    rng = random.Random(seed)

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(4, 14))).capitalize() + "."

    texts = [" ".join(sentence() for _ in range(rng.randint(3, 12))) for _ in range(documents)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


Maskmill = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str) -> list[str]:
    """The command line `maskmill ARGUMENTS`, where `environ` is its environment."""
    return [sys.executable, "-P", "-m", "launch.cli", *arguments]


def environ(**more: str) -> dict[str, str]:
    """This process's environment, in which Python finds this very checkout from any folder; and `more`."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@contextlib.contextmanager
def as_only_rank() -> Iterator[None]:
    """`maskmill train` is this process, as if a launcher had started it as the only rank."""
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        with patch.dict(os.environ, one):
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        disarm()


def hooked(folder: Path, text: str, **more: str) -> dict[str, str]:
    """An environment in which Python runs `text` at its start: the production code has no hooks for tests."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(text, encoding="utf-8")
    return environ(PYTHONPATH=f"{folder / 'hook'}:{ROOT}", OMP_NUM_THREADS="1", **more)


def disarm() -> None:
    """Stop the timers of a training in this process, whose watchdog lasts until a process ends."""
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)


def running(pid: int) -> bool:
    """Whether the process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(
    holds: Callable[[], object],
    seconds: float = 120,
    process: subprocess.Popen | None = None,
    said: Callable[[], object] = str,
    every: float = 0.02,
) -> None:
    """Waits; fails with what `said()` tells after so many seconds, or as soon as `process` has ended."""
    limit = time.monotonic() + seconds
    while not holds():
        assert process is None or process.poll() is None, f"it ended before that: {said()}"
        assert time.monotonic() < limit, f"it never came to that: {said()}"
        time.sleep(every)


def setting(settings: list[str], key: str) -> str:
    """The value of `key` among `settings`."""
    return next(s.partition("=")[2] for s in settings if s.startswith(f"{key}="))


def described(maskmill: Maskmill, path: Path | str) -> dict:
    """What `maskmill inspect --json` says of `path`."""
    return json.loads(maskmill("inspect", str(path), "--json").stdout)
