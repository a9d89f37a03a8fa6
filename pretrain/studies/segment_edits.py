"""Change the segment embeddings of a Hugging Face folder: the settings of van der Goot et al. (LREC 2022, section 3).

The table is rewritten before fine-tuning, so that code, inputs and tokenizer stay the same; in fine-tuning it is
trained on, as the other weights are.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json, file_sha256, write_whole
from data_pipeline.io.model_folder import NOTE
from pretrain.huggingface.folder import stored_tensors, weight_files

TABLE = "token_type_embeddings.weight"
_RANDOM = re.compile(r"RAND([0-9]+)")

EDITS: dict[str, Callable[[Tensor], Tensor]] = {
    "ORIGINAL": lambda rows: rows,
    "1S": lambda rows: rows[1:2].expand_as(rows),
    "0S": lambda rows: rows[0:1].expand_as(rows),
    "AVG": lambda rows: rows.mean(0, keepdim=True).expand_as(rows),
    "NULL": torch.zeros_like,
}
"""Name -> the new rows from the old ones, (2, H). `RAND` with a seed, as RAND24, redraws them."""


def edited_folder(source: Path, edit: str, target: Path) -> Path:
    """Copy the model of `source` to the folder `target` with its segment table changed, and return it. What is there
    stays if it is of the same source and edit, by a note beside it, and is replaced otherwise. Raises UserError for an
    unknown edit and for a model without a table of two segments."""
    change, note = _change(edit), target.with_name(f"{target.name}.source.json")
    files = weight_files(source)
    origin = canonical_json({"edit": edit, "source": _hashes(source)})
    if target.is_dir() and note.is_file() and note.read_bytes() == origin:
        return target
    tensors = stored_tensors(source)
    names = [name for name in tensors if name.endswith(TABLE) and len(tensors[name]) == 2]
    if len(names) != 1:
        raise UserError(
            "has no table of two segments", where=source, expected=f"one tensor {TABLE} of two rows"
        )
    deviation = json.loads((source / "config.json").read_text("utf-8")).get("initializer_range", 0.02)
    rows = change(tensors[names[0]], deviation)
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, ignore=lambda _, found: {path.name for path in files} & set(found))
    # one file: an index of several would name the old ones, and the note of an export has their hashes
    for name in ("model.safetensors.index.json", NOTE):
        (partial / name).unlink(missing_ok=True)
    kept = {name: tensor.contiguous() for name, tensor in (tensors | {names[0]: rows.clone()}).items()}
    save_file(kept, partial / "model.safetensors", {"format": "pt"})
    note.unlink(missing_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(partial, target)
    write_whole(note, origin)
    return target


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model's folder, but of none in the folders within, as of scores."""
    return {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _change(edit: str) -> Callable[[Tensor, float], Tensor]:
    if found := _RANDOM.fullmatch(edit):
        seed = int(found[1])
        return lambda rows, deviation: _random(rows, seed, deviation)
    if edit not in EDITS:
        raise UserError(
            f"unknown {edit!r}", where="segments", expected=f"{', '.join(EDITS)} or RAND with a seed"
        )
    return lambda rows, _: EDITS[edit](rows)


def _random(rows: Tensor, seed: int, deviation: float) -> Tensor:
    """Draw rows from a normal cut at two deviations, as BERT's were before training."""
    drawn = torch.empty(rows.shape)
    generator = torch.Generator().manual_seed(seed)
    torch.nn.init.trunc_normal_(drawn, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    return drawn.to(rows.dtype)
