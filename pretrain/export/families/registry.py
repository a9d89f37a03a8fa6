"""Register the families by their transformers class, and find the family of a folder, without torch."""

import json
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.files import FILES as VOCABULARY_FILES
from data_pipeline.vocabulary.files import Vocabulary, load_vocabulary
from pretrain.config.settings import RunConfig
from pretrain.export.families.albert import ALBERT_FOR_PRETRAINING
from pretrain.export.families.base import Family
from pretrain.export.families.bert import BERT_FOR_MASKED_LM, BERT_FOR_PRETRAINING
from pretrain.export.families.bert_decoder import BERT_DECODER
from pretrain.export.families.distilbert import DISTILBERT_FOR_MASKED_LM
from pretrain.export.families.electra import ELECTRA_FOR_MASKED_LM, ELECTRA_FOR_PRETRAINING
from pretrain.export.families.ernie import ERNIE_FOR_PRETRAINING
from pretrain.export.families.roberta import ROBERTA_FOR_MASKED_LM, XLM_ROBERTA_FOR_MASKED_LM
from pretrain.export.families.xlnet import XLNET_LM

FAMILIES = {
    family.export_class: family
    for family in (
        BERT_FOR_PRETRAINING,
        BERT_FOR_MASKED_LM,
        BERT_DECODER,
        ALBERT_FOR_PRETRAINING,
        ERNIE_FOR_PRETRAINING,
        ELECTRA_FOR_PRETRAINING,
        ELECTRA_FOR_MASKED_LM,
        DISTILBERT_FOR_MASKED_LM,
        ROBERTA_FOR_MASKED_LM,
        XLM_ROBERTA_FOR_MASKED_LM,
        XLNET_LM,
    )
}
"""Name in `Objective.families` -> family. The first of a model_type reads folders of its other classes."""


def family_of(folder: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family that reads a folder of transformers, found by the class or else the model_type in its
    config.json, and the fields of that file. Raises UserError if there is none."""
    path = folder / "config.json"
    try:
        config = dict(json.loads(path.read_text("utf-8")))
        kind, named = config.get("model_type"), list(config.get("architectures") or ())
    except (OSError, ValueError, TypeError) as error:
        raise UserError("cannot be read", where=path, expected="a Hugging Face config.json") from error
    readable = [family for family in FAMILIES.values() if family.model_type == kind]
    if not readable:
        known = " or ".join(dict.fromkeys(repr(family.model_type) for family in FAMILIES.values()))
        raise UserError(f"model_type is {kind!r}", where=path, expected=known)
    return next((family for family in readable if family.export_class in named), readable[0]), config


def check_config(folder: Path, run: RunConfig, vocabulary_size: int) -> None:
    """Raise UserError listing how the folder's config.json differs from the run's settings, except for dropout."""
    family, config = family_of(folder)
    if differences := family.differences(config, run, vocabulary_size):
        raise UserError(
            f"differs from the run's settings: {'; '.join(differences)}", where=folder / "config.json"
        )


def check_vocabulary(folder: Path, vocabulary: Vocabulary) -> None:
    """Raise UserError if the folder's vocabulary differs from `vocabulary`, the shards'."""
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        ours, theirs = vocabulary.tokens, load_vocabulary(folder).tokens
        if ours != theirs:
            same = sum(one == two for one, two in zip(ours, theirs, strict=False))
            raise UserError(
                f"has another vocabulary: {len(theirs)} entries, of which {same} are the shards' of the same id",
                where=folder,
                remedy=f"prepare the shards with data.vocab={folder}",
            )


def weight_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files. Raises UserError if it has none."""
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        remedy = (
            "pytorch_model.bin can run code when it is loaded: convert it with transformers' save_pretrained"
        )
        raise UserError("no weights", where=folder, expected="model.safetensors", remedy=remedy)
    return paths
