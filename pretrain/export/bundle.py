"""List what of an exported folder may leave this machine, each file checked. No network here.

It is a list of known names, each checked against the hash of its export: a folder that holds more than an export
(checkpoints, logs, keys) gives none of it away.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.canonical_json import canonical_json
from data_pipeline.io.files import file_sha256
from pretrain.run.folder import EXPORT, RUN, model_folders

NOTE, CARD = "maskmill.json", "README.md"
"""A run's own export, in its folder; and the file by which a folder is known as a run's."""
CHANGED = "is missing or its bytes changed since the export"
PLACEHOLDER = "THIS_MODEL"
"""Stands in a card's snippets for the folder, or the model's name on the hub, which a push puts in."""
BELONGS = frozenset(
    (
        *(NOTE, CARD, "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("vocab.txt", "vocab.json", "merges.txt"),
    )
)
"""Names that an export may hold; nothing else is sent."""


@dataclass(frozen=True)
class Upload:
    """What is going to be sent."""

    files: Mapping[str, Path | bytes]
    left_out: tuple[str, ...]
    """Names in the folder that are no part of an export."""
    edited: bool
    """Whether the card is no longer as it was exported: people may write on it."""
    step: int
    """The step of the run at which it was exported."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: len(file) if isinstance(file, bytes) else file.stat().st_size
            for name, file in self.files.items()
        }


def exported_folders(source: Path) -> list[Path]:
    """The exported models that `source` holds, or that a run of this folder has: one, or, of an objective that leaves
    several, each in a folder of its own. Raises UserError where a run has none."""
    if (source / NOTE).is_file() or not (source / RUN).is_file():
        return model_folders(source) or [source]
    if not (source / EXPORT).is_dir():
        raise UserError("has no export yet", where=source, remedy=f"maskmill export {source}")
    return model_folders(source / EXPORT) or [source / EXPORT]


def newest_step(source: Path) -> int:
    """Return the step of the newest checkpoint of a run folder, by its name; 0 where there is none."""
    markers = source.glob("checkpoints/step-*/checkpoint.json")
    numbers = [marker.parent.name.removeprefix("step-") for marker in markers]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def changed(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """List the names of the files that are missing or have other bytes than when they were exported."""
    files = ((name, folder / Path(name).name) for name in hashes)
    return [name for name, file in files if not file.is_file() or file_sha256(file) != hashes[name]]


def gather(folder: Path, repo: str) -> Upload:
    """The files of the export in `folder`, after a check of its proof and of every hash; the card's PLACEHOLDER becomes
    the name `repo`. Raises UserError for a folder that is no export or is not as it was exported."""
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
    return Upload(dict(sorted(sent.items())), tuple(left_out), CARD in different, int(note.get("step", 0)))


def _note(folder: Path) -> dict[str, Any]:
    """maskmill.json of an export whose proof holds."""
    path = folder / NOTE
    if not path.is_file():
        raise UserError(
            "not an exported model",
            where=folder,
            expected=f"a folder with {NOTE}, which `maskmill export` writes",
            remedy="maskmill export RUN",
        )
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        hashes, proof = note["sha256"], note.get("proof", {})
        holds = [float(head["difference"]) <= float(head["allowed"]) for head in proof.values()]
        if not all(isinstance(name, str) and isinstance(value, str) for name, value in hashes.items()):
            raise ValueError("hashes")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError("malformed", where=path, remedy="export again") from None
    if not holds or not all(holds):
        raise UserError("has no proof of equal logits", where=path, remedy="export again")
    return dict(note)
