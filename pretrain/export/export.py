"""Export weights, or a run's checkpoint, to a folder that transformers loads, only if it computes the same logits."""

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.errors import UserError, redact
from data_pipeline.io.files import canonical_json, check_is_new, file_sha256, writing
from data_pipeline.io.model_folder import NOTE
from data_pipeline.records import Examples
from data_pipeline.settings import SEPARATORS, DataSettings
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader
from pretrain.checkpoint.store import Checkpoint, find_checkpoint
from pretrain.config.phases import phase_at, phases_of
from pretrain.config.renamed import with_new_keys
from pretrain.config.settings import RunConfig
from pretrain.export.card import Card, card_of, language_of, write_card
from pretrain.export.fill import Sample, decoded, fill_samples
from pretrain.export.parity import Parity, check_parity
from pretrain.export.tokenizer import vocabulary_of, write_tokenizer
from pretrain.huggingface.base import Config, Family
from pretrain.huggingface.load import quiet
from pretrain.huggingface.registry import chosen_families
from pretrain.model.encoder import add_up
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load, registered
from pretrain.run.files import CONFIG, EXPORT
from pretrain.run.folder import read_config, read_run


def export(
    state: Mapping[str, Tensor],
    config: RunConfig,
    tokenizer_json: str,
    out: str | Path,
    held_out: Examples,
    card: Card,
    overwrite: bool = False,
    proven: Callable[[Model], None] = lambda model: None,
) -> dict[str, Parity]:
    """Write config.json, model.safetensors, tokenizer files and README.md (from `card`) to the folder `out`; for an
    objective of several families, to a folder in it for each family.

    `state` maps our parameter names to float32 tensors, with or without vocabulary padding. The folder gets its name
    only after transformers has loaded each model and computed the same logits as ours on real examples of `held_out`
    (see `check_parity`); returns the results by head. Raises UserError if the logits differ, if `out` exists (unless
    `overwrite`), or if `state` and `config` do not fit; then nothing is left. `proven` is called with our model, on the
    CPU in float32 and evaluation mode, once all have passed."""
    vocabulary, objective = vocabulary_of(tokenizer_json), load(config)
    model = objective.build_model(vocabulary)
    load_parameters(model, state, where="weights to export")
    add_up(model)
    title, parities = card.title or Path(out).name, {}
    with writing(out), _folder_when_whole(Path(out), overwrite) as whole, quiet():
        folders = write_without_weights(config, tokenizer_json, whole)
        for folder, family in folders.items():
            write_weights(model, family, family.config(config, vocabulary), folder)
            parities[folder] = check_parity(model, folder, family, held_out, vocabulary.pad)
        proven(model)
        for folder, family in folders.items():
            named = title if folder == whole else f"{title}-{family.folder}"
            write_card(folder, replace(card, title=named), family, parities[folder])
            write_hashes(folder, parities[folder], card.step)
        set_modes_by_umask(whole)
    return {head: parity for found in parities.values() for head, parity in found.items()}


def write_without_weights(config: RunConfig, tokenizer_json: str, out: Path) -> dict[Path, Family]:
    """Write config.json and the tokenizer of each model that a run exports to `out`, or to folders in it, and return
    each folder's family."""
    vocabulary = vocabulary_of(tokenizer_json)
    families = family_folders(chosen_families(load(config).families, config), out)
    folders = {folder: with_own_inputs(family.of_run(config), config) for folder, family in families.items()}
    separators = config.data.separators if config.data.separators in SEPARATORS else SEPARATORS[0]
    for folder, family in folders.items():
        folder.mkdir(exist_ok=True)
        fields = {**family.config(config, vocabulary), **_input_format(config.data)}
        write_config(family, fields, folder)
        write_tokenizer(
            tokenizer_json,
            folder,
            config.encoder.max_positions,
            family.model_inputs,
            family.special_ids,
            family.cls_last,
            separators,
        )
    return folders


def with_own_inputs(family: Family, config: RunConfig) -> Family:
    """Return the family without segment ids among its inputs where the model has no segments, since the table that
    transformers needs then has a single row."""
    if not family.segment_table or family.encoder(config).segments:
        return family
    own = tuple(name for name in family.model_inputs if name != "token_type_ids")
    return replace(family, model_inputs=own)


def _input_format(data: DataSettings) -> Config:
    """Return the fields of config.json which state that a model was trained on other pairs than [CLS] A [SEP] B [SEP]:
    pretrain/tasks/encoders.py reads them."""
    if data.separators not in SEPARATORS[1:]:
        return {}
    return {"separators": data.separators, "separator_gap": data.separator_gap}


def family_folders(families: Sequence[Family], out: Path) -> dict[Path, Family]:
    """Return the export folder of each family of a run: `out` itself, or a folder in it for each of several."""
    return {out / family.folder if len(families) > 1 else out: family for family in families}


def write_config(family: Family, fields: Config, folder: Path) -> None:
    """Write config.json, with fields that transformers keeps in another place and older versions read in this one."""
    kind = transformers.CONFIG_MAPPING[family.model_type]
    kind(**fields, architectures=[family.export_class], dtype="float32").save_pretrained(folder)
    path = folder / "config.json"
    stated = json.loads(path.read_text("utf-8"))
    if lost := {name: value for name, value in fields.items() if name not in stated and value is not None}:
        path.write_text(json.dumps(stated | lost, indent=2, sort_keys=True) + "\n", "utf-8")


def write_weights(model: Model, family: Family, fields: Config, folder: Path) -> None:
    """Write model.safetensors, and heads that the class lacks to files beside it: float32, Hugging Face names, tied
    tensors once, no vocabulary padding."""
    state = without_padding(model, {n: p.detach().float() for n, p in model.named_parameters()})
    files = {"model.safetensors": family.to_hugging_face(state, fields)}
    for file, head in family.beside.items():
        if own := {name: tensor for name, tensor in state.items() if name.startswith(head)}:
            files[file] = own
    try:
        for file, tensors in files.items():
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, folder / file, metadata={"format": "pt"})
    except SafetensorError as error:  # its message for a full disk
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def write_hashes(folder: Path, parity: Mapping[str, Parity], step: int) -> None:
    """Write maskmill.json: the SHA-256 of every other file, which `maskmill inspect` and `maskmill push` verify, the
    parity proof, and the step of the run."""
    hashes = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    proof = {head: asdict(found) for head, found in parity.items()}
    note = {"maskmill": version("maskmill"), "proof": proof, "sha256": hashes, "step": step}
    (folder / NOTE).write_bytes(canonical_json(note, indent=1))


def set_modes_by_umask(folder: Path) -> None:
    """Give every file under `folder` the mode of a newly created one. safetensors always creates its files with mode
    0600, so a group that may read the folder could not load the model."""
    probe = folder / f".{secrets.token_hex(4)}"  # reading the umask would set it, for all threads
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


@contextmanager
def _folder_when_whole(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder beside `out` that is renamed to `out` if the block succeeds, and deleted if not."""
    if not overwrite:
        check_is_new(out)
    mark = secrets.token_hex(4)
    partial, old = (out.with_name(f".{out.name}.{mark}.{kind}") for kind in ("partial", "old"))
    partial.mkdir(parents=True)
    try:
        yield partial
        if out.exists():
            os.rename(out, old)
        os.rename(partial, out)
    except BaseException:
        if old.exists() and not out.exists():
            os.rename(old, out)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


# The export of a run or checkpoint folder, with its model card and parity proof.


class Exported(NamedTuple):
    """The result of an export and its source."""

    model: Path
    run: Path
    checkpoint: Checkpoint
    proof: str
    """A line with the result of the parity check."""
    samples: list[Sample]
    """Blanks that the model filled."""
    held_out: bool
    """Whether their text is held out."""
    left_out: str
    """A line about files of the model that training started from; empty without any."""


def export_run(source: Path, out: str, license: str = "") -> Exported:
    """Export the newest checkpoint of a run, or the checkpoint in `source`. `license`: for the model card, overrides
    export.license. Raises UserError, and leaves nothing, if the two models differ, or if config.yaml or tokenizer.json,
    from which both are built, are not what the checkpoint, run.json and index.json say that it was trained with."""
    checkpoint = find_checkpoint(source)
    run = source if (source / CONFIG).is_file() else checkpoint.folder.resolve().parent.parent
    whole = read_config(run)
    config = phase_at(whole, checkpoint.state).config
    known = read_run(run)
    _check_settings(run, whole, known["identity"] if known else {}, config, checkpoint)
    index = Index.load(config.train.shards or config.data.out)
    if known is None or known["identity"]["vocabulary"] != index.vocabulary.sha256:
        raise UserError("its vocabulary is not that of its shards", where=run, expected=index.folder)
    target = Path(out) if out else run / EXPORT
    card = card_of(run, checkpoint, index, whole, config)
    examples, tokenizer = proof_examples(index), index.tokenizer_json().decode("utf-8")
    if not card.languages:
        card = replace(card, spoken=language_of(decoded(examples, tokenizer)))
    samples: list[Sample] = []
    parity = export(
        {name: checkpoint.tensor(name) for name in checkpoint.shapes},
        config,
        tokenizer,
        target,
        examples,
        replace(card, license=license) if license else card,
        overwrite=not out,  # the run's own export may be replaced; a path that the user names must be new
        proven=lambda model: samples.extend(fill_samples(model, examples, tokenizer, index.vocabulary.mask)),
    )
    heads = ", ".join(
        f"{head} {p.difference:.1e} (allowed {p.allowed:.1e}; in float32 {p.difference_float32:.1e})"
        for head, p in parity.items()
    )
    proof = f"proof: largest difference to transformers' logits in float64: {heads}"
    left_out = card.parent.warning if card.parent else ""
    return Exported(target, run, checkpoint, proof, samples, bool(index.held_out.examples), left_out)


RESOLVED = ("phases", "train.precision", "train.replay", "data.dynamic_masking", "data.streams")
"""Settings that a run's identity has as what they came to."""


def _check_settings(
    run: Path, whole: RunConfig, about: Mapping[str, Any], config: RunConfig, checkpoint: Checkpoint
) -> None:
    """Raise UserError, with the settings that differ, if config.yaml, of which the model is built that is compared with
    transformers', says something else of what decides the weights than the checkpoint's marker and run.json, which are
    sealed. `config`: the settings of the checkpoint's phase."""
    differing = _differing(config, checkpoint.state.get("identity", {}))
    for phase in phases_of(whole):
        others = [f"{other.name}." for other in phases_of(whole) if other.name != phase.name]
        own = {
            key.removeprefix(f"{phase.name}."): value
            for key, value in about.items()
            if not any(key.startswith(other) for other in others)
        }
        differing |= _differing(phase.config, own)
    if differing:
        raise UserError(
            f"says {', '.join(differing.values())}",
            where=run / CONFIG,
            expected="the settings that the checkpoint was trained with",
            remedy="put them back; the same maskmill train writes the file again",
        )


def _differing(config: RunConfig, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return for each setting of a run's identity that is another one in `config`, by its name, what both are."""
    name, found = config.objective.name, {}
    resolved = {
        *RESOLVED,
        f"objective.{name}.{registered(name).teacher}",
    }  # of a teacher it has the weights' hash
    for key, trained in with_new_keys(identity).items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part, _NONE)
        is_setting = key not in resolved and value is not _NONE and not is_dataclass(value)
        if is_setting and _plain(value) != _plain(trained):
            found[key] = f"{key}={_shown(value)}, trained with {_shown(trained)}"
    return found


_NONE = object()


def _plain(value: object) -> object:
    """Return a setting as JSON and as config.yaml have it, where nothing secret is left of URIs."""
    return redact(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return redact(str(value))[:80]


def proof_examples(index: Index) -> Examples:
    """Return real examples, short and long: the first held-out block, or a training block if nothing was held out."""
    split = index.held_out if index.held_out.examples else index.train
    return next(BlockReader(index, split).read([(0, 0)]))
