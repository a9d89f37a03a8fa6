"""Settings that turn the demo into a run of any objective."""

from pathlib import Path

from pretrain.objectives.registry import registered
from tests.command_line import TINY, Maskmill, write_text
from tests.factories.teachers import teacher_settings

MODERN = "mlm of a ModernBERT"
"""A member whose encoder has all that makes a ModernBERT of a BERT."""
_MODERN = [
    *("norm_place=pre", "norm_biases=false", "biases=false", "gated=true", "activation=gelu", "segments=0"),
    *("positions=rope", "layers=3", "global_every=2", "local_attention=8", "attention_output_dropout=0.1"),
]
EUROBERT = "mlm of a EuroBERT"
"""A member whose encoder has the other switches: those of a EuroBERT."""
_EUROBERT = [
    *("norm_place=pre", "norm=rms", "norm_biases=false", "biases=false", "gated=true", "activation=silu"),
    *("segments=0", "positions=rope", "embedding_norm=false", "head_transform=false", "kv_heads=1"),
]
_FASTER = ["optim.name=adamw", "optim.lr=3e-2"]
"""Its embeddings are not normed and the head adds no layer: LAMB moves them too little in a few steps."""
DISENTANGLED = "electra of a ModernBERT, disentangled"
"""The same of ELECTRA, whose discriminator adds to the generator's embeddings."""
SHARED, SEPARATE = (f"electra of a ModernBERT, {how}" for how in ("shared", "separate"))
"""The same with embeddings that both models have, or each its own."""
_EMBEDDINGS = {member: member.rpartition(" ")[2] for member in (DISENTANGLED, SHARED, SEPARATE)}
_BODIES = {MODERN: _MODERN, EUROBERT: _EUROBERT}
VARIANTS = {"embedding_size": 16, "sharing": "all"}
"""Encoders that differ from BERT's in kind, for the members that have a place for them."""


def member_settings(objective: str, maskmill: Maskmill, folder: Path) -> list[str]:
    """Return settings with which every verb is about this objective; in `folder` a vocabulary of the kind it needs."""
    if objective in _EMBEDDINGS:
        settings = [
            one for one in member_settings("electra", maskmill, folder) if "embedding_size" not in one
        ]
        settings += [f"encoder.{one}" for one in _MODERN]
        own = (f"embeddings={_EMBEDDINGS[objective]}", "generator_layers=2", "generator_share=1")
        return [*settings, *(f"objective.electra.{one}" for one in own)]
    if objective in _BODIES:
        settings = [
            *member_settings("mlm", maskmill, folder),
            *(f"encoder.{one}" for one in _BODIES[objective]),
        ]
        return [*settings, *(_FASTER if objective == EUROBERT else [])]
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


def prepared_member(objective: str, tiny: list[str], maskmill: Maskmill, folder: Path) -> list[str]:
    """Return settings of a run on two ranks whose shards, and teacher if it has one, are ready in `folder`."""
    settings = [*tiny, *member_settings(objective, maskmill, folder), f"data.out={folder}/shards"]
    settings += ["run.ranks=2", "train.checkpoint_every=0", "encoder.dropout=0.1"]
    maskmill("prepare", "demo", *settings)
    return settings + teacher_settings(settings, folder / "teacher")
