"""Export weights to a folder that transformers loads, and only if it computes the same."""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.canonical_json import canonical_json
from data_pipeline.io.files import file_sha256, writing
from data_pipeline.records import Examples
from data_pipeline.shards.schema import VocabularyStamp
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.export.bundle import NOTE
from pretrain.export.card import Card, write_card
from pretrain.export.families.bert import to_hugging_face
from pretrain.export.families.bert_config import ACTIVATIONS, CONFIG
from pretrain.export.parity import Parity, check_parity, quiet
from pretrain.export.tokenizer import vocabulary_of, write_tokenizer
from pretrain.model.embeddings import SEGMENTS
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model, Objective
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
    """Writes config.json, model.safetensors, tokenizer files and README.md (from `card`) to the folder `out`.

    `state` maps our parameter names to float32 tensors, with or without vocabulary padding. The folder appears
    under its name only after transformers has loaded it and computed, for real examples of `held_out`, the
    same logits as our model: see `check_parity`, whose findings by head are returned. Raises UserError if it
    does not, if `out` exists (unless `overwrite`), or if state and `config` do not fit; then nothing is left.
    `proven` is called with our model, on the CPU in float32 and evaluation mode, once it has passed."""
    vocabulary = vocabulary_of(tokenizer_json)
    objective, settings = load(config), config.encoder
    model = objective.build_model(vocabulary)
    load_parameters(model, state, where="weights to export")
    with writing(out), _folder_when_whole(Path(out), overwrite) as folder, quiet():
        write_config(settings, objective, vocabulary, folder)
        write_weights(model, folder)
        write_tokenizer(tokenizer_json, folder, settings.max_positions)
        parity = check_parity(model, folder, objective.export_class, held_out, vocabulary.pad)
        proven(model)
        write_card(folder, Path(out).name, card, objective, parity)
        write_hashes(folder, parity, card.step)
        set_modes_by_umask(folder)
    return parity


def write_config(
    settings: EncoderSettings, objective: Objective, vocabulary: VocabularyStamp, folder: Path
) -> None:
    """Writes config.json."""
    transformers.BertConfig(
        **{theirs: getattr(settings, ours) for ours, theirs in CONFIG.items()},
        hidden_act=ACTIVATIONS[settings.activation],
        vocab_size=vocabulary.size,
        type_vocab_size=SEGMENTS,
        pad_token_id=vocabulary.pad,
        tie_word_embeddings=True,
        architectures=[objective.export_class],
        dtype="float32",
    ).save_pretrained(folder)


def write_weights(model: Model, folder: Path) -> None:
    """Writes model.safetensors: float32, Hugging Face names, tied tensors once, no vocabulary padding."""
    state = without_padding(model, dict(model.named_parameters()))
    tensors = {to_hugging_face(name): p.detach().to(torch.float32).contiguous() for name, p in state.items()}
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # its word for a full disk
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def write_hashes(folder: Path, parity: Mapping[str, Parity], step: int) -> None:
    """Writes maskmill.json: the SHA-256 of every other file, which `maskmill inspect` and `maskmill push` verify, the
    proof that was passed, and the step of the run."""
    hashes = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    proof = {head: asdict(found) for head, found in parity.items()}
    note = {"maskmill": version("maskmill"), "proof": proof, "sha256": hashes, "step": step}
    (folder / NOTE).write_bytes(canonical_json(note, indent=1))


def set_modes_by_umask(folder: Path) -> None:
    """Gives every file in `folder` the mode of a newly created one: safetensors makes its files 0600, whatever the
    umask is, so that a group that may read the folder could not load the model."""
    probe = folder / f".{secrets.token_hex(4)}"  # asking for the umask would set it, for all threads
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.iterdir():
        path.chmod(mode)


@contextmanager
def _folder_when_whole(out: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder beside `out` that gets its name when the block ends well, and vanishes when it does not."""
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
