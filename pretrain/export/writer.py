"""Export weights to a folder that transformers loads, only if it computes the same logits."""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.canonical_json import canonical_json
from data_pipeline.io.files import file_sha256, writing
from data_pipeline.records import Examples
from pretrain.config.settings import RunConfig
from pretrain.export.bundle import NOTE
from pretrain.export.card import Card, write_card
from pretrain.export.families.base import Config, Family
from pretrain.export.families.registry import FAMILIES
from pretrain.export.parity import Parity, check_parity, quiet
from pretrain.export.tokenizer import vocabulary_of, write_tokenizer
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load


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
    title, parities = card.title or Path(out).name, {}
    with writing(out), _folder_when_whole(Path(out), overwrite) as whole, quiet():
        families = family_folders(objective.families, whole)
        folders = {folder: family.of_run(config) for folder, family in families.items()}
        for folder, family in folders.items():
            folder.mkdir(exist_ok=True)
            fields = family.config(config, vocabulary)
            write_config(family, fields, folder)
            write_weights(model, family, fields, folder)
            longest, roles = config.encoder.max_positions, family.special_ids
            write_tokenizer(tokenizer_json, folder, longest, family.model_inputs, roles, family.cls_last)
            parities[folder] = check_parity(model, folder, family, held_out, vocabulary.pad)
        proven(model)
        for folder, family in folders.items():
            named = title if folder == whole else f"{title}-{family.folder}"
            write_card(folder, replace(card, title=named), family, parities[folder])
            write_hashes(folder, parities[folder], card.step)
        set_modes_by_umask(whole)
    return {head: parity for found in parities.values() for head, parity in found.items()}


def family_folders(names: Sequence[str], out: Path) -> dict[Path, Family]:
    """Return the export folder of each family of an objective: `out` itself, or a folder in it for each of several."""
    families = [FAMILIES[name] for name in names]
    return {out / family.folder if len(families) > 1 else out: family for family in families}


def write_config(family: Family, fields: Config, folder: Path) -> None:
    """Write config.json."""
    kind = transformers.CONFIG_MAPPING[family.model_type]
    kind(**fields, architectures=[family.export_class], dtype="float32").save_pretrained(folder)


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
    if not overwrite and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            "exists already", where=out, expected="a new folder", remedy="name another or remove it"
        )
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
