"""Check that a run can start from what init_from names, a Hugging Face folder or a checkpoint, before a model is built.

Only small files are read, and the headers of large ones, without torch. The command line checks before it prepares
data and before any rank starts, so that a preparation of hours need not be followed by a refusal.

Of a Hugging Face folder, what tables of names tell is checked here: tensors of another kind of model, layers that lack
one, shapes that differ. The loader (initial_weights.py) checks all again, of heads and of tensors that are stored in
another form too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import shards_vocabulary
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import FILES
from pretrain.checkpoint.store import Checkpoint, named_folder, open_checkpoint
from pretrain.config.encoder import MAY_CHANGE, TRAINING_ONLY, EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Header, Part, Weight
from pretrain.huggingface.folder import stored_headers
from pretrain.huggingface.registry import check_config, check_vocabulary, family_of
from pretrain.preflight.check_run import Plan, identity_of
from pretrain.run.folder import model_folders, refuse_another

# Whether a Hugging Face folder holds the whole encoder of a run, by the headers of its files alone.

KINDS = ("", ".weight", ".bias")
BARE = ("weight", "target", "for_content", "for_position", "for_segment", "segments")
"""Last parts of our names in families' tables that are whole: of parameters that are no part of a module, or of which
a table has the weight alone."""
Shape = tuple[int, ...] | None
"""None: of a tensor that is stored in another form than ours."""


class Table(NamedTuple):
    """What a folder holds of the encoder: names of parameters, with {i} for the number of a layer, layers, entries of
    the vocabulary, and positions."""

    names: tuple[str, ...]
    layers: int
    words: int
    positions: int | None


def check_headers(config: RunConfig, folders: Iterable[Path]) -> None:
    """Raise UserError, as the loader would, for a damaged file, a tensor of another kind of model, and an encoder that
    is not whole or of other sizes than the run's. Reads no weights."""
    found: dict[str, Shape] = {}
    tables = []
    for folder in folders:
        family, fields = family_of(folder)
        family = family.of_run(config)
        for _, header, places in family.placed(stored_headers(folder), folder):
            found |= {ours: _shape(header, weight) for ours, weight in places}
        if beside := [folder / file for file in family.beside if (folder / file).is_file()]:
            stored_headers(folder, beside)
        names = tuple(name for name in family.names if name.startswith("encoder."))
        positions = family.settings(fields).get("max_positions")
        tables.append(Table(names, family.stored_layers(fields), fields["vocab_size"], positions))
    lacking = {name for table in tables for name in _lacking(table, found, config.encoder)}
    if lacking:
        raise not_whole(lacking, config.init_from)
    for table in tables:
        _check_shapes(table, found, config)


def not_whole(names: Iterable[str], where: object) -> UserError:
    """Return the error for an encoder that lacks parameters, by our names."""
    return UserError(
        f"lacks {', '.join(sorted(names)[:5])}", where=where, expected="all weights of an encoder"
    )


def other_shape(name: str, found: Iterable[int], expected: Iterable[int], where: object) -> UserError:
    """Return the error for a parameter of another shape than the run's."""
    return UserError(f"{name} has shape {list(found)}", where=where, expected=f"{list(expected)}")


def _shape(header: Header, weight: Weight | Part) -> Shape:
    if isinstance(weight, Part):
        return (header.shape[0] // weight.parts, *header.shape[1:])
    return header.shape if weight.same else None


def _lacking(table: Table, found: Mapping[str, Shape], encoder: EncoderSettings) -> Iterator[str]:
    """Yield what such an encoder has that is not there, and what a layer lacks that another one has."""
    for pattern in table.names:
        each = _places(pattern, table, encoder)
        for kind in KINDS:
            present = [f"{name}{kind}" in found for name in each]
            if any(present) or kind in _kinds(pattern, encoder):
                yield from (f"{name}{kind}" for name, there in zip(each, present, strict=True) if not there)


def _kinds(pattern: str, encoder: EncoderSettings) -> Collection[str]:
    """Return the endings of a parameter's names that an encoder of these settings has: none of a part that it lacks."""
    *_, owner, part = pattern.split(".")
    if part in ("segment", "projection"):
        has = encoder.segments if part == "segment" else encoder.embedding_width != encoder.hidden
        if not has:
            return ()
    if part in BARE:
        return ("",)
    if part == "norm" or part.endswith("_norm"):
        return (".weight", ".bias") if encoder.norm == "layer" and encoder.norm_biases else (".weight",)
    return (".weight", ".bias") if encoder.biases and owner != "embeddings" else (".weight",)


def _places(pattern: str, table: Table, encoder: EncoderSettings) -> list[str]:
    """Return the names that the pattern stands for: one for each layer that has it."""
    if "{i}" not in pattern:
        return [pattern]
    without_first = encoder.norm_place == "pre" and encoder.embedding_norm and "attention_norm" in pattern
    return [pattern.format(i=layer) for layer in range(int(without_first), table.layers)]


def _check_shapes(table: Table, found: Mapping[str, Shape], config: RunConfig) -> None:
    """Raise UserError for a parameter of another shape than the run's settings say, or where they say nothing of it,
    than in other layers."""
    encoder = config.encoder
    expected: dict[str, tuple[int, ...]] = {}
    for pattern in table.names:
        each = _places(pattern, table, encoder)
        for kind in KINDS:
            shapes = [found.get(f"{name}{kind}") for name in each]
            if first := next((shape for shape in shapes if shape), None):
                expected |= {f"{name}{kind}": first for name in each if f"{name}{kind}" in found}
    stated = _stated_shapes(table, encoder)
    for name, shape in expected.items():
        *_, owner, part, kind = name.split(".")
        weight = stated.get(f"{owner}.{part}") or stated.get(part, shape)
        shape, there = weight[:1] if kind == "bias" else weight, found[name]
        if there is not None and there != shape:
            raise other_shape(name, there, shape, config.init_from)


def _stated_shapes(table: Table, encoder: EncoderSettings) -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights that the settings state, by the last parts of their names; a bias has the first
    number of its weight's. A table of positions has as many as the folder states: the run's may have more."""
    hidden, width, inner = encoder.hidden, encoder.embedding_width, encoder.intermediate
    keys = encoder.key_heads * encoder.head_size
    positions = {} if table.positions is None else {"embeddings.position": (table.positions, width)}
    return positions | {
        "embeddings.word": (table.words, width),
        "embeddings.segment": (encoder.segments or 1, width),
        "embeddings.norm": (width,),
        "encoder.projection": (hidden, width),
        "attention.query": (hidden, hidden),
        "attention.key": (keys, hidden),
        "attention.value": (keys, hidden),
        "attention.output": (hidden, hidden),
        "feed_forward.intermediate": (inner, hidden),
        "feed_forward.gate": (inner, hidden),
        "feed_forward.output": (hidden, inner),
        **dict.fromkeys(("attention_norm", "feed_forward_norm", "final_norm"), (hidden,)),
    }


# Whether a run can start from a Hugging Face folder: its vocabulary, its settings and its headers.


def check_vocabulary_there(config: RunConfig) -> None:
    """Raise UserError, for a run whose vocabulary is to be that of the folder in init_from, if there is no such folder,
    or none that is read in it."""
    if not config.init_from or config.data.vocab or "://" in config.init_from:
        return
    source = Path(config.init_from)
    refuse_missing(source)
    if model_folders(source):
        path = repr(str(source))
        raise UserError(
            "no vocabulary in this folder",
            where=source,
            expected=" or ".join(FILES),
            remedy="of a SentencePiece model transformers makes a tokenizer.json: from transformers import"
            f" AutoTokenizer; AutoTokenizer.from_pretrained({path}).save_pretrained({path})",
        )


def refuse_missing(source: Path) -> None:
    """Raise UserError if what init_from names does not exist."""
    if not source.exists():
        raise UserError(
            "no such folder",
            where=f"init_from={source}",
            expected="a Hugging Face folder on this machine, an export, a run or a checkpoint",
            remedy="`hf download NAME --local-dir FOLDER` fetches a model of the hub",
        )


def check_hugging_face(config: RunConfig, vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary of the folder in init_from, which `vocabulary`, the run's, is or extends.

    Raises UserError if the folder is of an unknown family, differs from this run in sizes, in what its class fixes or
    in its vocabulary, or has no whole encoder of such sizes in files that load without running code."""
    source, old = Path(config.init_from), vocabulary
    if config.init_moments:
        raise UserError("a Hugging Face folder has no moments", where=source, remedy="init_moments=false")
    for folder in model_folders(source):
        old = check_vocabulary(folder, vocabulary, may_extend=True)
        check_config(folder, config, old.size)
    check_headers(config, model_folders(source))
    return old


# Whether a run can start from the model that init_from names, a Hugging Face folder or a checkpoint.

MODEL = (
    "vocabulary",
    *(
        f"encoder.{one.name}"
        for one in fields(EncoderSettings)
        if one.name not in (*TRAINING_ONLY, *MAY_CHANGE)
    ),
    "objective.electra.embeddings",
)
"""Parts of a run's identity that a model's weights depend on, or were trained for."""


def check_starting_weights(config: RunConfig, plan: Plan) -> None:
    """Raise UserError if this run cannot start from init_from. Does not read weights."""
    if not config.init_from:
        return
    source = Path(config.init_from)
    refuse_missing(source)
    if model_folders(source):
        check_hugging_face(config, shards_vocabulary(plan.index))
    else:
        refuse_another_model(open_checkpoint(named_folder(source)), plan)


def refuse_another_model(checkpoint: Checkpoint, plan: Plan) -> None:
    """Raise UserError, listing differences, if the checkpoint is of a different model than this run's."""
    ours = {key: value for key, value in identity_of(plan.phase.config, plan).items() if key in MODEL}
    theirs = checkpoint.state["identity"]
    refuse_another(theirs, ours, checkpoint.folder, "choose another init_from")
    config = plan.phase.config
    if config.init_moments and theirs.get("optim.name") == "muon" != config.optim.name:
        raise UserError(
            f"Muon keeps one moment of a matrix, optim.name={config.optim.name} needs two",
            where=checkpoint.folder,
            remedy="init_moments=false, or optim.name=muon",
        )
