"""List the files of an export that may be uploaded, each checked against its hash. No network here.

Only known names are listed: other contents of a folder (checkpoints, logs, keys) are never uploaded.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from data_pipeline.io.model_folder import CARD, CHANGED, NOTE, changed, noted_hashes, read_json
from pretrain.huggingface.registry import FAMILIES
from pretrain.run.files import is_count
from pretrain.run.folder import EXPORT, RUN, model_folders

PLACEHOLDER = "THIS_MODEL"
"""Placeholder in a card's snippets for the folder, or for the model's name on the hub, which a push inserts."""
BELONGS = frozenset(
    (
        *(NOTE, CARD, "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("vocab.txt", "vocab.json", "merges.txt"),
        *(file for family in FAMILIES.values() for file in family.beside),
    )
)
"""Names that an export may contain; nothing else is sent."""


@dataclass(frozen=True)
class Upload:
    """The files to send."""

    files: Mapping[str, Path | bytes]
    left_out: tuple[str, ...]
    """Names in the folder that are not part of an export."""
    edited: bool
    """Whether the card differs from the exported one: people may edit it."""
    step: int
    """The run's step at export."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


def check_is_new(folder: Path) -> None:
    """Raise UserError if `folder` is there with something in it, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            "exists already", where=folder, expected="a new folder", remedy="name another or remove it"
        )


def exported_folders(source: Path) -> list[Path]:
    """Return the exported models in `source`, or of the run in this folder: one, or several in a folder each, if the
    objective exports several. Raises UserError for a run without any."""
    if (source / NOTE).is_file() or not (source / RUN).is_file():
        return model_folders(source) or [source]
    if not (source / EXPORT).is_dir():
        raise UserError("has no export yet", where=source, remedy=f"maskmill export {source}")
    return model_folders(source / EXPORT) or [source / EXPORT]


def newest_step(source: Path) -> int:
    """Return the step of the newest checkpoint of a run folder, by its name; 0 if there is none."""
    markers = source.glob("checkpoints/step-*/checkpoint.json")
    numbers = [marker.parent.name.removeprefix("step-") for marker in markers]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def gather(folder: Path, repo: str) -> Upload:
    """Collect the files of the export in `folder`, after checking its proof and every hash; the card's PLACEHOLDER is
    replaced by the name `repo`. Raises UserError for a folder that is not an export, or was changed."""
    note = _note(folder)
    hashes = dict(note["sha256"])
    if foreign := sorted(hashes.keys() - BELONGS):
        raise UserError(f"names {foreign[0]!r}, which is no part of an export", where=folder / NOTE)
    different = changed(folder, hashes)
    for name in different:
        if name != CARD or not (folder / CARD).is_file():
            raise UserError(CHANGED, where=folder / name, remedy="export again")
    files = {name: folder / name for name in hashes}
    for needed in ("config.json", "model.safetensors", CARD):
        if needed not in files:
            raise UserError(f"has no hash of {needed}", where=folder / NOTE, remedy="export again")
    card = files[CARD].read_bytes().replace(PLACEHOLDER.encode(), repo.encode())
    hashes[CARD] = hashlib.sha256(card).hexdigest()
    sent = {**files, CARD: card, NOTE: canonical_json({**note, "sha256": hashes}, indent=1)}
    left_out = sorted({path.name for path in folder.iterdir()} - sent.keys())
    return Upload(dict(sorted(sent.items())), tuple(left_out), CARD in different, note["step"])


def _note(folder: Path) -> dict[str, Any]:
    """Return maskmill.json of an export whose proof is valid."""
    path = folder / NOTE
    if not path.is_file():
        raise UserError(
            "not an exported model",
            where=folder,
            expected=f"a folder with {NOTE}, which `maskmill export` writes",
            remedy="maskmill export RUN",
        )
    note = read_json(path)
    noted_hashes(note, path)
    try:
        proof = note.get("proof", {})
        holds = [float(head["difference"]) <= float(head["allowed"]) for head in proof.values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("malformed", where=path, remedy="export again") from None
    note["step"] = step if is_count(step := note.get("step", 0)) else 0
    if not holds or not all(holds):
        raise UserError("has no proof of equal logits", where=path, remedy="export again")
    return note
