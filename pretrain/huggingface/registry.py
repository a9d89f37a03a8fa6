"""Register the families by their class of transformers, and find the family of a folder or of a run's export.

torch is not imported, and tokenizers only where a folder's vocabulary is read.
"""

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import check_hashes
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.albert import ALBERT_FOR_PRETRAINING
from pretrain.huggingface.base import Family
from pretrain.huggingface.bert import (
    BERT_DECODER,
    BERT_FOR_MASKED_LM,
    BERT_FOR_PRETRAINING,
    DISTILBERT_FOR_MASKED_LM,
    ERNIE_FOR_PRETRAINING,
)
from pretrain.huggingface.config_json import read_config
from pretrain.huggingface.electra import ELECTRA_FOR_MASKED_LM, ELECTRA_FOR_PRETRAINING
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.modernbert import (
    MODERNBERT_DECODER,
    MODERNBERT_DISCRIMINATOR,
    MODERNBERT_FOR_MASKED_LM,
    MODERNBERT_GENERATOR,
)
from pretrain.huggingface.roberta import ROBERTA_FOR_MASKED_LM, XLM_ROBERTA_FOR_MASKED_LM
from pretrain.huggingface.xlnet import XLNET_LM

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


FAMILIES = {
    family.name: family
    for family in (
        BERT_FOR_MASKED_LM,
        BERT_FOR_PRETRAINING,
        BERT_DECODER,
        ALBERT_FOR_PRETRAINING,
        ERNIE_FOR_PRETRAINING,
        ELECTRA_FOR_PRETRAINING,
        ELECTRA_FOR_MASKED_LM,
        DISTILBERT_FOR_MASKED_LM,
        ROBERTA_FOR_MASKED_LM,
        XLM_ROBERTA_FOR_MASKED_LM,
        XLNET_LM,
        MODERNBERT_FOR_MASKED_LM,
        EUROBERT_FOR_MASKED_LM,
        MODERNBERT_DISCRIMINATOR,
        MODERNBERT_GENERATOR,
        MODERNBERT_DECODER,
    )
}
"""Name in `Objective.families` -> family. The first of a model_type reads folders of its other classes."""


def chosen_families(names: Sequence[str], run: RunConfig) -> list[Family]:
    """Choose from an objective's families those that a run's model is exported as: for each folder, the first that has
    a place for the run's encoder. Raises UserError where a folder has none."""
    chosen = []
    for folder in dict.fromkeys(FAMILIES[name].folder for name in names):
        able = [FAMILIES[name] for name in names if FAMILIES[name].folder == folder]
        reasons = [family.inexpressible(family.encoder(run)) for family in able]
        if all(reasons):
            nearest = min(reasons, key=len)
            raise UserError(
                f"no class of transformers has such an encoder: {'; '.join(nearest)}",
                where="export",
                expected=" or ".join(family.export_class for family in able),
                remedy="such a model stays a checkpoint of its run",
            )
        chosen.append(next(family for family, told in zip(able, reasons, strict=True) if not told))
    return chosen


def family_of(folder: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family that reads a folder of transformers, found by the class or else the model_type in its
    config.json, and the fields of that file. Raises UserError if there is none, or for a field of another kind."""
    check_hashes(folder, weights=False)
    path, config = folder / "config.json", read_config(folder)
    kind, named = config.get("model_type"), config.get("architectures") or ()
    readable = [family for family in FAMILIES.values() if family.model_type == kind]
    if not readable:
        known = " or ".join(dict.fromkeys(repr(family.model_type) for family in FAMILIES.values()))
        raise UserError(f"model_type is {kind!r}", where=path, expected=known)
    able = [family for family in readable if family.export_class in named and _is_marked(family, config)]
    family = max(able, key=lambda family: len(family.marks), default=readable[0])
    _check_kinds(family, config, path)
    return family, config


def _is_marked(family: Family, config: Mapping[str, Any]) -> bool:
    return all(config.get(name) == value for name, value in family.marks.items())


def _check_kinds(family: Family, config: Mapping[str, Any], path: Path) -> None:
    """Raise UserError for the first field from which, alone, a setting cannot be read, or one of another kind."""
    default = EncoderSettings()
    for key, value in config.items():
        kind = family.besides.get(key)
        wrong = kind is not None and not _is_a(kind, value)
        try:
            read = family.settings({key: value})
        except (
            TypeError,
            ValueError,
            AttributeError,
        ):  # whatever a value of another kind does to a conversion
            read, wrong = {}, True
        for name, found in read.items():
            if found is not None and not _is_a(type(getattr(default, name)), found):
                kind, wrong = type(getattr(default, name)), True
        if wrong:
            raise UserError(
                f"cannot be read: {key}={reprlib.repr(value)}",
                where=path,
                expected=_KINDS[kind] if kind else "what transformers writes there",
                remedy="correct it, or take the file that came with the weights",
            )


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _is_a(kind: type, value: object) -> bool:
    """Return whether a value of a JSON file is of this kind: true and false are no numbers, whole numbers are ones."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def check_config(folder: Path, run: RunConfig, vocabulary_size: int) -> None:
    """Raise UserError listing how the folder's config.json differs from the run's settings, except for dropout."""
    family, config = family_of(folder)
    if differences := family.differences(config, run, vocabulary_size):
        raise UserError(
            f"differs from the run's settings: {'; '.join(differences)}", where=folder / "config.json"
        )


def check_vocabulary(folder: Path, vocabulary: "Vocabulary", may_extend: bool = False) -> "Vocabulary":
    """Return the folder's vocabulary, or `vocabulary`, the shards', if it has none. Raises UserError if the two differ
    by anything but, with `may_extend`, entries of the shards' behind all of the folder's."""
    from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary  # needs tokenizers

    if not holds_vocabulary(folder):
        return vocabulary
    found = load_vocabulary(folder)
    ours, theirs = vocabulary.tokens, found.tokens
    if theirs != (ours[: len(theirs)] if may_extend else ours):
        same = sum(one == two for one, two in zip(ours, theirs, strict=False))
        remedy = f"prepare the shards with data.vocab={folder}"
        extending = f", or with what `maskmill vocab --extend {folder}` wrote" if may_extend else ""
        raise UserError(
            f"has another vocabulary: {len(theirs)} entries, of which {same} are the shards' of the same id",
            where=folder,
            remedy=remedy + extending,
        )
    return found


def export_warnings(config: RunConfig, families: Sequence[str]) -> list[str]:
    """Return a line to warn with before a run begins, with the settings that stand in the way of an export as one of
    `families`, those of the run's objective; none if transformers has a class for the run's encoder. The run may train
    all the same, as an experiment."""
    try:
        chosen_families(families, config)
    except UserError as error:
        return [f"{error.what} (known: {error.expected}); it trains, and `maskmill export` will refuse it"]
    return []
