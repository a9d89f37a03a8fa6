"""Read the settings that a Hugging Face folder states: the encoder, what it learns, and its vocabulary.

Does not import torch: every verb reads them before anything else.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.base import Vocabulary, part_of
from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary
from data_pipeline.vocabulary.unigram import LAYOUTS
from pretrain.export.families.base import MAY_CHANGE, UNCHECKED, Family
from pretrain.export.families.entries import Config
from pretrain.export.families.registry import family_of
from pretrain.run.folder import model_folders

MAY_DIFFER = (
    *(f"encoder.{name}" for name in UNCHECKED),
    "encoder.sharing",  # whether layers that share are equal, their tensors tell
    "encoder.groups",
    *(f"encoder.{name}" for name in MAY_CHANGE),
    "objective.name",
    "objective.electra.embeddings",  # each folder has whole tables
    "data.vocab",
)
"""Settings in which a run may differ from the folder that it starts from."""
MAY_EXCEED = ("encoder.max_positions",)
"""Those in which it may be above it."""


def folder_settings(source: Path) -> dict[str, Any]:
    """Return the settings, by dotted name, that the model in `source`, or the models in its folders, state; empty for
    a folder that is not Hugging Face's. Without a vocabulary in it, data.vocab is not among them.

    Raises UserError for a model that is not known here, for a value that no encoder here has, and for a tokenizer that
    lacks special tokens or has more entries than the model."""
    found: dict[str, Any] = {}
    folders = model_folders(source)
    models = [family_of(folder) for folder in folders]
    beside = {family.name: config for family, config in models}
    for folder, (family, config) in zip(folders, models, strict=True):
        stated = family.stated(config, beside)
        _refuse_unknown(stated, family, config, folder)
        found |= stated | {"objective.name": family.objective}
        if holds_vocabulary(folder) and "data.vocab" not in found:
            found |= _vocabulary_settings(folder, config)
    return found


def _refuse_unknown(stated: Mapping[str, Any], family: Family, config: Config, folder: Path) -> None:
    unknown = [key for key, value in stated.items() if value is None]
    if unknown:
        names = [family.field_name(key.removeprefix("encoder.")) for key in unknown]
        listed = ", ".join(f"{name} is {config.get(name)!r}" for name in names)
        raise UserError(
            listed,
            where=folder / "config.json",
            expected=f"a value that {', '.join(unknown)} has (maskmill settings)",
        )


def _vocabulary_settings(folder: Path, config: Config) -> dict[str, Any]:
    vocabulary = load_vocabulary(folder)
    _refuse_incomplete(folder, vocabulary, config)
    layouts = (name for name, layout in LAYOUTS.items() if layout.specials == vocabulary.specials)
    found = {"data.vocab": str(folder), "vocabulary.kind": vocabulary.kind}
    if vocabulary.kind == "unigram" and (layout := next(layouts, None)) is not None:
        found["vocabulary.specials"] = layout
    return found


def _refuse_incomplete(folder: Path, vocabulary: Vocabulary, config: Config) -> None:
    """Raise UserError if the vocabulary has entries that the model has no vector for, or special tokens that its file
    lacks: loading a unigram vocabulary adds them."""
    size = config.get("vocab_size")
    missing = [token for token in vocabulary.specials if token not in _entries(folder, vocabulary)]
    if missing:
        raise UserError(
            f"the tokenizer lacks {', '.join(missing)}",
            where=folder,
            expected="one that has them, with the vectors of a model trained with them",
        )
    if isinstance(size, int) and vocabulary.size > size:
        raise UserError(
            f"the tokenizer has {vocabulary.size} entries, vocab_size is {size}",
            where=folder,
            expected="a vector for each entry",
        )


def _entries(folder: Path, vocabulary: Vocabulary) -> set[str]:
    """Return the entries that the folder's file itself has."""
    path = folder / "tokenizer.json"
    if vocabulary.kind != "unigram" or not path.is_file():
        return set(vocabulary.tokens)
    file = json.loads(path.read_text("utf-8"))
    pieces = {str(piece) for piece, _ in part_of(file, "model")["vocab"]}
    return pieces | {str(token.get("content")) for token in file.get("added_tokens") or []}
