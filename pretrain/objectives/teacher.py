"""Find the teacher that a run learns from, and check that it fits; without torch, before any rank starts.

A teacher is a finished model in a Hugging Face folder, named by a setting of the objective's own group; which one is in
the registry.
"""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import file_hash
from data_pipeline.vocabulary.base import Vocabulary
from pretrain.config.encoder import SWITCHES, EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Family
from pretrain.huggingface.folder import stored_shapes, weight_files
from pretrain.huggingface.registry import check_vocabulary, family_of
from pretrain.objectives.registry import registered

EQUAL = ("hidden", "heads", "intermediate", "activation")
"""Encoder settings in which a student must equal its teacher."""
AT_LEAST = ("layers", "max_positions")
"""Encoder settings in which a student may be smaller than its teacher."""


class Teacher(NamedTuple):
    """Contents of a teacher's config.json."""

    folder: Path
    family: Family
    fields: dict[str, Any]
    """Of config.json."""
    encoder: EncoderSettings
    """Without dropout."""


def has_teacher(config: RunConfig) -> bool:
    """Return whether the run's objective learns from a teacher."""
    return bool(registered(config.objective.name).teacher)


def _key(config: RunConfig) -> str:
    return registered(config.objective.name).teacher


def find_teacher(config: RunConfig) -> Teacher:
    """Read the config.json of the folder that the setting names. Raises UserError where there is none that is read
    here, or it lacks a size."""
    key = f"objective.{config.objective.name}.{_key(config)}"
    if not (named := config.objective.of_member()[_key(config)]):
        raise UserError(
            "is empty",
            where=key,
            expected="the Hugging Face folder of a finished model",
            remedy="train one and name RUN/export, or download one",
        )
    folder = Path(named)
    if not folder.is_dir():
        raise UserError("no such folder", where=folder, expected=f"the model that {key} names")
    family, fields = family_of(folder)
    stated = {name: value for name, value in family.settings(fields).items() if value is not None}
    if lacking := [name for name in (*EQUAL, *AT_LEAST) if name not in stated]:
        raise UserError(
            f"states no {', '.join(lacking)} that is known here",
            where=folder / "config.json",
            expected=f"a model for {key}",
        )
    encoder = EncoderSettings(**{**stated, "dropout": 0.0, "attention_dropout": 0.0})
    return Teacher(folder, family, fields, encoder)


def check_teacher(config: RunConfig, vocabulary: Vocabulary) -> None:
    """Raise UserError, listing all differences in one line, for a teacher that this run's student cannot learn
    from. `vocabulary`: the shards'. Of its weights only the names are read."""
    teacher, student = find_teacher(config), config.encoder
    check_vocabulary(teacher.folder, vocabulary)
    differing = [
        f"encoder.{name} is {getattr(student, name)}, the teacher's {getattr(teacher.encoder, name)}"
        for name in (*EQUAL, *SWITCHES)
        if getattr(student, name) != getattr(teacher.encoder, name)
    ]
    differing += [
        f"encoder.{name} is {getattr(student, name)}, above the teacher's {getattr(teacher.encoder, name)}"
        for name in AT_LEAST
        if getattr(student, name) > getattr(teacher.encoder, name)
    ]
    if (size := teacher.fields.get("vocab_size")) != vocabulary.size:
        differing.append(f"the vocabulary has {vocabulary.size} entries, the teacher's {size}")
    if differing:
        raise UserError(
            f"is no teacher for this student: {'; '.join(differing)}",
            where=teacher.folder,
            remedy="change the settings, or choose another teacher",
        )
    _check_head(teacher)


def _check_head(teacher: Teacher) -> None:
    """Raise UserError if the weights lack the head whose predictions are learnt; a head without a layer of its own is
    the embeddings, which every model has."""
    if not teacher.encoder.head_transform:
        return
    kinds = ("weight", "bias") if teacher.encoder.biases else ("weight",)
    try:
        wanted = {teacher.family.their_name(f"mlm_head.dense.{kind}") for kind in kinds}
    except KeyError:
        wanted = {"a head for masked words"}
    if wanted := wanted - stored_shapes(teacher.folder).keys():
        raise UserError(
            f"lacks {', '.join(sorted(wanted))}",
            where=teacher.folder,
            expected="a teacher with its head for masked words",
        )


def teacher_identity(config: RunConfig) -> dict[str, str]:
    """Hash what the student learns from, for the run's identity: {its setting: SHA-256 of its weights, in place of the
    folder's name}; empty for a run without a teacher."""
    if not has_teacher(config):
        return {}
    files = weight_files(find_teacher(config).folder)
    stats = ((path, path.stat()) for path in files)
    hashes = [file_hash(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return {_key(config): hashes[0] if len(hashes) == 1 else sha256("".join(hashes).encode()).hexdigest()}


def teacher_encoder(config: RunConfig) -> EncoderSettings:
    """Return the teacher's sizes; if none is named yet, for a forecast, those of the student with twice the layers,
    as in the published models."""
    if config.objective.of_member()[_key(config)]:
        return find_teacher(config).encoder
    return replace(config.encoder, layers=2 * config.encoder.layers, dropout=0.0, attention_dropout=0.0)
