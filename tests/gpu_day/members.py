"""Shards, a vocabulary and a teacher for a short run of every objective, in a folder that can be carried elsewhere."""

import json
from pathlib import Path

from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import TINY, Maskmill, write_text
from tests.factories.members import DISENTANGLED, EUROBERT, MODERN, member_settings
from tests.factories.teachers import teacher_settings

SHAPE = [
    *(
        "vocabulary.size=500",
        "data.sequence_length=128",
        "encoder.max_positions=128",
        "data.shard_tokens=100000",
    ),
    *("data.max_predictions=0", "data.block_examples=256", "data.held_out=0.05"),
    *("encoder.hidden=128", "encoder.heads=2", "encoder.intermediate=256", "encoder.dropout=0.1"),
    *("train.global_batch=64", "train.micro_batch=16", "train.checkpoint_every=0", "train.eval_every=0"),
    "optim.lr=5e-3",
]
"""Heads of 64 and examples of 128, so that a GPU takes the kernels of larger models; else as the tests' runs."""
PLACE = "{carried}"
"""Stands for the folder in the settings."""


def prepare_members(folder: Path, maskmill: Maskmill) -> None:
    """Fill a folder for each objective, and for encoders of ModernBERT's and EuroBERT's kind; settings.json has the
    settings of each, by its name."""
    folder.mkdir()
    write_text(folder / "text.txt", documents=150)
    found = {}
    for number, member in enumerate((*OBJECTIVES, MODERN, EUROBERT, DISENTANGLED)):
        here = folder / str(number)
        here.mkdir()
        settings = [*TINY, f"data.sources={folder}/text.txt", f"data.vocab={folder}/vocabulary", *SHAPE]
        settings += [*member_settings(member, maskmill, here), f"data.out={here}/shards"]
        if f"data.vocab={here}/vocabulary" not in settings and not (folder / "vocabulary").exists():
            maskmill("vocab", "demo", *settings)
        maskmill("prepare", "demo", *settings)
        settings += teacher_settings(settings, here / "teacher")
        found[member] = [setting.replace(str(folder), PLACE) for setting in settings]
    (folder / "settings.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
