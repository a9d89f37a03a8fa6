"""Check for enough disk space for a run's checkpoints, without torch, so that the check is immediate."""

import shutil
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.run.human import in_bytes

BYTES_PER_WEIGHT = 12
"""Bytes per parameter in a checkpoint: the weight and both moments, fp32. At most: Muon has one moment of a matrix."""
DISK_MARGIN = 1.02
"""Bytes for the rest of a checkpoint, metrics and the report."""
MAX_PARAMETERS_PER_MATRIX_ELEMENT = 3
"""Upper bound of the ratio of all parameters to those of the encoder's matrices: biases, norms, heads, a second
model."""


def surely_has_room(config: RunConfig, vocabulary_size: int) -> bool:
    """Return whether the checkpoints fit even for the largest possible model: then no parameters need counting."""
    encoder, hidden = config.encoder, config.encoder.hidden
    products = 3 if encoder.gated else 2
    layer = 4 * hidden * hidden + products * hidden * encoder.intermediate
    width = max(hidden, encoder.embedding_width)
    matrices = encoder.layers * layer + (vocabulary_size + encoder.max_positions + 2 * hidden) * width
    wanted = (
        matrices
        * MAX_PARAMETERS_PER_MATRIX_ELEMENT
        * BYTES_PER_WEIGHT
        * DISK_MARGIN
        * (most_kept(config) + 1)
    )
    return wanted <= shutil.disk_usage(_existing(Path(config.run.dir))).free


def check_room(config: RunConfig, parameters: int) -> str:
    """Return the space needed and the space free, in words. Raises UserError if the checkpoints do not fit: as many as
    are kept, plus the next one, which is written before the oldest is deleted."""
    folder = Path(config.run.dir)
    there, made, kept = len(checkpoints(folder)), checkpoints_made(config), most_kept(config)
    size = parameters * BYTES_PER_WEIGHT * DISK_MARGIN
    wanted = size * max(1, min(made, kept + 1) - there)
    free = shutil.disk_usage(_existing(folder)).free
    if wanted > free:
        raise UserError(
            f"no room for checkpoints: {kept} of {in_bytes(size)}, and the next one before the "
            f"oldest goes: {in_bytes(wanted)} to come, {in_bytes(free)} free",
            where=folder,
            remedy="make room, choose another run.dir, or keep fewer: checkpoint.keep, checkpoint.keep_every",
        )
    most = "at most " if config.optim.name == "muon" else ""
    return f"checkpoints of {most}{in_bytes(size)}, {kept} kept; {in_bytes(free)} free"


def checkpoints_made(config: RunConfig) -> int:
    """Return the number of checkpoints that the run makes, including the one at the end of each phase, and that of the
    starting weights if it has no steps. Where it is unknown (train.minutes), as many as checkpoint.keep and keep_best
    keep of it, and the next one."""
    made = 0
    for phase in phases_of(config):
        every = phase.config.train.checkpoint_every
        if phase.first is None or phase.last is None:
            made += config.checkpoint.keep + 2 if every else 1
            continue
        every = every or phase.last or 1
        made += phase.last // every - phase.first // every + int(phase.last % every > 0)
    return max(made, 1)


def most_kept(config: RunConfig) -> int:
    """Return the maximum number of checkpoints kept."""
    settings, made = config.checkpoint, checkpoints_made(config)
    others = made // settings.keep_every if settings.keep_every else 0
    best = settings.keep_best and any(phase.config.train.eval_every for phase in phases_of(config))
    return min(made, settings.keep + others + int(best))


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return folder if folder.exists() else _existing(folder.parent)
