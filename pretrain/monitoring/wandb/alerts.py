"""Turn problems of a run into alerts: the cause, what to do, and whether one is due.

Per cause, at most one alert is sent in `monitor.alert_every` seconds, over all attempts of a run: a run that crashes
every minute sends only one. The times are kept in wandb_alerts.json in the run folder.
"""

import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pretrain.run.files import replace_file
from pretrain.run.files import number, table

SENT = "wandb_alerts.json"
SERIOUS = ("failed", "disk", "hang", "not saved")
"""Causes that end a run, are about to, or lose what it does from now on."""
CHECKPOINTS_OF_ROOM = 2
"""The disk counts as nearly full if fewer than this many checkpoints fit."""

ADVICE = {
    "nan": "One such batch is skipped and does no harm; if they continue, lower optim.lr or use train.precision=bf16.",
    "spike": "One spike does no harm where train.on_spike skips it; if they continue, lower optim.lr or look at the "
    "data of the skipped batches (events.jsonl).",
    "data stall": "Put the shards on a faster disk or nearer to the machine, or give each rank more cores.",
    "slow rank": "Look at that rank's machine (clocks, temperature, other processes); under Slurm leave its node out "
    "with --exclude.",
    "damaged": "Prepare the named shard again, or restore it; `maskmill inspect SHARDS` finds all that are damaged.",
    "disk": "Make room now, or lower checkpoint.keep: a checkpoint that does not fit is given up, and a crash then "
    "loses the steps since the one before.",
    "not saved": "Training goes on and tries again at the next checkpoint; until one is saved, a crash loses the steps "
    "since the newest one. Make room, or look at the disk that the line names.",
    "not mirrored": "The checkpoint is whole in the run folder; the next one, or the next start, tries the copy again. "
    "Look at the object store, its credentials and the network.",
    "hang": "Every rank has written its stack to logs/rank-N.log: the one whose stack is not in a collective is the "
    "cause. The run goes on from its newest checkpoint where run.restarts or the job starts it again; if it recurs, "
    "leave that machine out, or raise the limit that the line names.",
    "restart": "It resumes by itself from the newest checkpoint; if it recurs, read logs/rank-N.log in the run "
    "folder.",
    "failed": "Read the line above and logs/rank-N.log in the run folder; rerun the same command to resume from the "
    "newest checkpoint.",
}
"""What to do about each cause."""

_SIGNS = (
    ("nan", re.compile(r"gradient of batch \d+ is not finite")),
    ("spike", re.compile(r"loss of batch \d+ is a spike")),
    ("data stall", re.compile(r"^waiting for data")),
    ("slow rank", re.compile(r"^rank \d+ is \S+ slower")),
    ("damaged", re.compile(r"no example of batch \d+ can be read")),
)


class Alert(NamedTuple):
    """The message that a person gets."""

    title: str
    text: str
    serious: bool


def cause_of(text: str) -> str:
    """Return the key of ADVICE that matches a line about skipped steps or slowdowns; empty if it needs no alert, such
    as a single slow step."""
    return next((cause for cause, sign in _SIGNS if sign.search(text)), "")


class Alerts:
    """Decide which alerts of one run are due."""

    def __init__(self, folder: Path, name: str, every: float, clock: Callable[[], float] = time.time) -> None:
        self._path, self._name, self._clock = folder / SENT, name, clock
        self.every = every
        """Seconds between two alerts of one cause; 0: no alerts."""
        self._sent = _read(self._path)

    def due(self, cause: str, text: str) -> Alert | None:
        """Return the alert to send now; None for an unknown cause, one that was sent recently, or with alerts switched
        off."""
        now = self._clock()
        if not text or cause not in ADVICE or not self.every:
            return None
        last = self._sent.get(cause)
        if last is not None and 0 <= now - last < self.every:  # negative: the clock was set back since
            return None
        self._sent[cause] = now
        with suppress(OSError):  # the full disk may be the cause
            replace_file(self._path, json.dumps(self._sent))
        return Alert(f"{self._name}: {cause}", f"{text}\n{ADVICE[cause]}", cause in SERIOUS)


def disk_nearly_full(folder: Path, checkpoint_bytes: float) -> str:
    """Return a warning about the disk of `folder`; empty if there is enough space."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # gone for a while: the checkpoint's own line reports it
        return ""
    if free >= CHECKPOINTS_OF_ROOM * checkpoint_bytes:
        return ""
    return f"{folder}: {free / 1e9:,.2f} GB free, and a checkpoint takes {checkpoint_bytes / 1e9:,.2f} GB"


def _read(path: Path) -> dict[str, float]:
    return {cause: at for cause, value in table(path).items() if (at := number(value)) is not None}
