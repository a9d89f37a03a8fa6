"""Name the causes of what disturbs a run, and say what to do about each: alerts and the report have the same hints."""

import re

OUTLIER = "outlier"
"""A single slow step, which nobody is alerted to."""
SERIOUS = ("failed", "disk", "hang", "not saved")
"""Causes that end a run, are about to, or lose what it does from now on."""

HINTS = {
    "nan": "One such batch is skipped and does no harm; if they continue, lower optim.lr or use train.precision=bf16.",
    "spike": "One spike does no harm where train.on_spike skips it; if they continue, lower optim.lr or look at the "
    "data of the skipped batches (events.jsonl).",
    "data stall": "Put the shards on a faster disk or nearer to the machine, or give each rank more cores.",
    "slow rank": "Look at that rank's machine (clocks, temperature, other processes); under Slurm leave its node out "
    "with --exclude.",
    OUTLIER: "A shared machine, a slow disk, the network.",
    "damaged": "`maskmill inspect SHARDS` finds all shards that are damaged: prepare them again, or restore them.",
    "disk": "Make room now, or lower checkpoint.keep: a checkpoint that does not fit is given up, and a crash then "
    "loses the steps since the one before.",
    "not saved": "Training tries again at the next checkpoint; until one is saved, a crash loses the steps "
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
    (OUTLIER, re.compile(r"^an outlier")),
    ("damaged", re.compile(r"no example of batch \d+ can be read")),
)


def cause_of(text: str) -> str:
    """Return the key of HINTS that matches a line about skipped steps or slowdowns; empty for another line."""
    return next((cause for cause, sign in _SIGNS if sign.search(text)), "")
