"""A valid config.json of every family, of a small model."""

from typing import Any

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.registry import FAMILIES

WORDS = 100
"""Entries of its vocabulary."""
SMALL = {"layers": 4, "hidden": 32, "heads": 2, "intermediate": 64, "max_positions": 66}
ALONE = tuple(name for name, family in FAMILIES.items() if family.folder != "generator")
"""Families whose folder stands alone."""
NEWER = {
    "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
"""Fields of ModernBERT that took the place of older ones."""


def valid_config(name: str) -> dict[str, Any]:
    """The fields, with those of a published one that are no settings of ours."""
    family = FAMILIES[name]
    encoder = EncoderSettings(**{**SMALL, "segments": 0, **family.implied})
    if family.model_type.startswith("modernbert"):
        encoder.global_every = 3
    run = RunConfig(encoder=encoder)
    fields = family.config(run, VocabularyStamp("", WORDS, cls=2, sep=3, mask=4, pad=0, unk=1))
    newer = NEWER if family.model_type.startswith("modernbert") else {}
    named = {"architectures": [family.export_class], "model_type": family.model_type}
    return {**named, **fields, **newer, "torch_dtype": "float32", "use_cache": True}
