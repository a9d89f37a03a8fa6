"""Read the weights of a Hugging Face folder of any family, and its settings: encoder, objective and vocabulary.

Weights are read from safetensors alone, whose loading runs no code. torch is imported only where tensors are read:
every verb reads the settings before anything else.
"""

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import check_hashes, is_plain, read_json
from data_pipeline.vocabulary.base import Vocabulary, part_of
from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary
from data_pipeline.vocabulary.unigram import LAYOUTS
from pretrain.config.encoder import (
    MAY_CHANGE,
    MAY_GROW,
    SHARED,
    TRAINING_ONLY,
    VARIANTS,
    EncoderSettings,
    half_of,
    in_layer,
    layer_and_rest,
    owner_of,
)
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Config, Family, equal
from pretrain.huggingface.registry import check_config, family_of
from pretrain.run.folder import model_folders

if TYPE_CHECKING:
    from torch import Tensor


def weight_files(folder: Path) -> list[Path]:
    """Return the folder's safetensors files, as transformers chooses them: model.safetensors, or those that an index
    names. Raises UserError if it has none, or for an index that names others."""
    index, one = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if one.is_file():
        return [one]
    if index.exists():
        names = read_json(index).get("weight_map")
        listed = sorted(set(names.values()), key=str) if isinstance(names, dict) else []
        for name in listed:
            if not is_plain(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
                raise UserError(
                    f"names {reprlib.repr(name)}", where=index, expected="*.safetensors files beside it"
                )
        paths = [folder / name for name in listed]
    else:
        paths = [path for path in sorted(folder.glob("model*.safetensors")) if path.is_file()]
    if not paths:
        pickled = any(folder.glob("pytorch_model*.bin"))
        remedy = f"elsewhere, since pytorch_model.bin can run code: {_conversion(folder)}" if pickled else ""
        raise UserError("no weights", where=folder, expected="model.safetensors", remedy=remedy)
    return paths


def _conversion(folder: Path) -> str:
    """Return the two lines of Python, joined to one, that write the folder's weights as safetensors."""
    family, config = family_of(folder)
    classes = config.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else ""
    name = named if named.isidentifier() else family.export_class
    path = str(folder)
    return f"from transformers import {name}; {name}.from_pretrained({path!r}).save_pretrained({path!r})"


# Read names and shapes of tensors from the headers of the files, without torch. A header says how long its file is, so
# that a file that was cut off, or is none, shows here.


POINTER = b"version https://git-lfs"
"""How the small text begins that stands for a large file in a repository that was cloned without them."""


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Raise UserError for what safetensors finds wrong with the file that is read meanwhile."""
    try:
        yield
    except SafetensorError as error:
        pointer = path.read_bytes()[: len(POINTER)] == POINTER if path.stat().st_size < 1024 else False
        remedy = "it is Git LFS's pointer to one: `git lfs pull` in its folder" if pointer else ""
        raise UserError(
            f"is damaged: {error}", where=path, expected="a whole safetensors file", remedy=remedy
        ) from error


def stored_shapes(folder: Path, paths: Sequence[Path] = ()) -> dict[str, tuple[int, ...]]:
    """Read the headers of all weight files of the folder, or of `paths` in it: names of tensors -> shapes. Raises
    UserError if it has none, or one is damaged."""
    headers: dict[str, tuple[int, ...]] = {}
    for path in paths or weight_files(folder):
        with whole(path), safe_open(path, "numpy") as file:
            headers |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return headers


# Read the tensors themselves, by their names in the files, and convert them to our names.


def stored_tensors(folder: Path, paths: Sequence[Path] = ()) -> "dict[str, Tensor]":
    """Read all weight files of the folder, or `paths` in it. Raises UserError if it has none, or one is damaged."""
    from safetensors.torch import load_file  # imports torch, which light commands do without

    check_hashes(folder)
    stored: dict[str, Tensor] = {}
    for path in paths or weight_files(folder):
        with whole(path):
            stored |= load_file(path)
    for name, tensor in stored.items():
        if name.endswith(".weight") and not tensor.is_floating_point():
            raise UserError(
                f"{name} holds {str(tensor.dtype).removeprefix('torch.')}",
                where=folder,
                expected="weights as floating-point numbers",
            )
    return stored


def without_values(folder: Path, paths: Sequence[Path] = ()) -> "dict[str, Tensor]":
    """Return what `stored_tensors` does, on the meta device: only the headers of the files are read."""
    import torch

    return {name: torch.empty(shape, device="meta") for name, shape in stored_shapes(folder, paths).items()}


def other_shape(name: str, shape: Iterable[int], expected: Iterable[int], where: object) -> UserError:
    """Return the error for a parameter of another shape than the run's."""
    return UserError(f"{name} has shape {list(shape)}", where=where, expected=f"{list(expected)}")


def read_weights(
    source: Path, run: RunConfig, vocabulary_size: int, headers_only: bool = False
) -> "dict[str, Tensor]":
    """Return the weights of the model in `source`, or of all models in its folders, by our names: float32, without
    vocabulary padding; heads missing in the source are missing in the result. `headers_only`: on the meta device, by
    the headers of the files alone.

    Raises UserError if no family reads it, its config.json differs from the settings of `run`, or layers that share
    parameters in `run` have different ones there."""
    read = without_values if headers_only else stored_tensors
    state: dict[str, Tensor] = {}
    for folder in model_folders(source) or [source]:
        check_config(folder, run, vocabulary_size)
        family, config = family_of(folder)
        tensors = family.of_run(run).from_hugging_face(read(folder), config, folder)
        table, positions = tensors.get(family.positions), family.settings(config).get("max_positions")
        if table is not None and positions is not None and len(table) != positions:
            raise other_shape(family.positions, table.shape, (positions, *table.shape[1:]), source)
        if beside := [folder / file for file in family.beside if (folder / file).is_file()]:
            tensors |= read(folder, beside)
        for name, tensor in tensors.items():
            if not equal(state.setdefault(name, tensor), tensor):
                raise UserError(
                    f"{name} differs between its folders", where=source, expected="one model's weights in all"
                )
    return merge_shared(state, run.encoder, source)


def merge_shared(
    state: "Mapping[str, Tensor]", settings: EncoderSettings, where: Path
) -> "dict[str, Tensor]":
    """Keep one copy of the tensors that layers share, under the name of the layer that owns them. Raises UserError if
    two copies differ."""
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, place = name, layer_and_rest(name)
        if place and place[0] < settings.layers:
            layer, rest = place
            owner = in_layer(owner_of(settings, layer, half_of(rest)), rest)
        if not equal(merged.setdefault(owner, tensor), tensor):
            raise UserError(
                f"{name} differs from {owner}",
                where=where,
                expected=f"equal tensors where encoder.sharing={settings.sharing}"
                f" with encoder.groups={settings.groups} has one",
                remedy="choose the sharing that it was trained with",
            )
    return merged


# Read the settings that a folder states: the encoder, what it learns, and its vocabulary.


MAY_DIFFER = (
    *(f"encoder.{name}" for name in (*TRAINING_ONLY, *MAY_CHANGE)),
    *(
        f"encoder.{name}" for name in VARIANTS[SHARED]
    ),  # whether layers that share are equal, their tensors tell
    "objective.name",
    "objective.electra.embeddings",  # each folder has whole tables
    "data.vocab",
)
"""Settings in which a run may differ from the folder that it starts from."""


def contradicts(key: str, given: Any, stated: Any) -> bool:
    """Return whether a run with the value `given` cannot start from a folder that states another one."""
    if key in MAY_DIFFER:
        return False
    return bool(given < stated) if key.removeprefix("encoder.") in MAY_GROW else bool(given != stated)


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
