"""Settings that turn the demo into a run of any objective."""

from pathlib import Path

from pretrain.objectives.registry import registered
from tests.command_line import TINY, Maskmill, write_text

VARIANTS = {"embedding_size": 16, "sharing": "all"}
"""Encoders that differ from BERT's in kind, for the members that have a place for them."""


def member_settings(objective: str, maskmill: Maskmill, folder: Path) -> list[str]:
    """Return settings with which every verb is about this objective; in `folder` a vocabulary of the kind it needs."""
    known = registered(objective)
    settings = [f"objective.name={objective}", f"data.masking={known.masking[0]}"]
    settings += [f"{key}={values[0]}" for key, values in known.needs.items()]
    settings += [f"encoder.{key}={value}" for key, value in VARIANTS.items() if key in known.encoder]
    if "vocabulary.kind" not in known.needs:
        return settings
    write_text(folder / "text.txt")
    settings += [f"data.vocab={folder}/vocabulary", "vocabulary.lowercase=true"]
    maskmill("vocab", "demo", *TINY, *settings, f"data.sources={folder}/text.txt")
    return settings
