"""Named fragments of tensors and a JSON state <-> a checkpoint folder that any number of ranks can read.

    RUN/checkpoints/step-00000100/
        fragments-00003.safetensors    rank 3's share: 1-D pieces, named `kind/parameter@start`
        checkpoint.json                the marker, written last: state, and size and SHA-256 of every file
    RUN/checkpoints/latest             name of the newest whole checkpoint

A folder gets its final name only after its marker is on disk; one without a marker is not a checkpoint.
Weights load through safetensors, which runs no code.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from data_pipeline.errors import UserError
from pretrain.world import World

FORMAT = 1
MARKER, LATEST = "checkpoint.json", "latest"


@dataclass(frozen=True)
class Fragment:
    """Elements start..start+len(values)-1 of one flattened tensor: a weight (fp32 master) or a moment of it."""

    kind: str  # master, exp_avg or exp_avg_sq; buffers and frozen weights are masters too
    name: str
    start: int
    values: torch.Tensor  # 1-D


def save_checkpoint(
    run: Path,
    step: int,
    fragments: Iterable[Fragment],
    shapes: dict[str, list[int]],
    state: dict,
    world: World,
) -> Path:
    """Writes a checkpoint with every rank's fragments; returns its folder once it is whole and named.

    All ranks call this. `shapes`: full shape of every named tensor; `state`: JSON, kept from the first rank."""
    final = run / "checkpoints" / f"step-{step:08d}"
    partial = final.with_name(f"{final.name}.partial")
    if world.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    world.barrier()
    path = partial / f"fragments-{world.rank:05d}.safetensors"
    tensors = {f"{f.kind}/{f.name}@{f.start}": f.values.detach().cpu().contiguous() for f in fragments}
    save_file(tensors, path)
    mine = {"file": path.name, "bytes": path.stat().st_size, "sha256": _flush_and_hash(path)}
    files = world.gather(mine)
    if world.rank == 0:
        marker = {"format": FORMAT, "step": step, "shapes": shapes, "files": files, "state": state}
        _write_whole(partial / MARKER, json.dumps(marker, indent=1, sort_keys=True))
        _sync_folder(partial)
        _drop(final)  # a save of this step by an earlier life that was rolled back
        partial.rename(final)
        _sync_folder(final.parent)
        _write_whole(final.parent / LATEST, final.name)
    world.barrier()
    return final


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk. `read` gathers any piece of any tensor from the fragments that hold it."""

    folder: Path
    step: int
    state: dict[str, Any]
    shapes: dict[str, list[int]]
    files: list[dict[str, Any]]
    _table: dict[tuple[str, str], list[tuple[int, int, str, str]]] = field(default_factory=dict)

    def read(self, name: str, kind: str, start: int, length: int) -> torch.Tensor:
        """Elements start..start+length-1 of the flattened tensor `name`, fp32. Raises UserError where missing."""
        result = torch.empty(length, dtype=torch.float32)
        filled = 0
        for first, size, file, key in self._fragments().get((kind, name), []):
            low, high = max(start, first), min(start + length, first + size)
            if low < high:
                with safe_open(self.folder / file, framework="pt") as tensors:
                    result[low - start : high - start] = tensors.get_slice(key)[low - first : high - first]
                filled += high - low
        if filled != length:
            raise UserError(
                f"holds {filled} of {length} elements of {kind}/{name}",
                where=self.folder,
                expected="all of them",
            )
        return result

    def tensor(self, name: str, kind: str = "master") -> torch.Tensor:
        """The whole tensor `name`, fp32, in its shape."""
        shape = self.shapes[name]
        return self.read(name, kind, 0, int(torch.Size(shape).numel())).view(shape)

    def verify(self) -> None:
        """Raises UserError for the first file whose size or SHA-256 is not what the marker says."""
        for entry in self.files:
            path = self.folder / entry["file"]
            if not path.is_file() or path.stat().st_size != entry["bytes"] or _hash(path) != entry["sha256"]:
                raise UserError(
                    "checkpoint file is missing or its bytes changed",
                    where=path,
                    expected=f"{entry['bytes']} bytes with SHA-256 {entry['sha256'][:12]}...",
                    remedy="delete this checkpoint's folder to go on from the one before",
                )

    def _fragments(self) -> dict[tuple[str, str], list[tuple[int, int, str, str]]]:
        if not self._table:
            for entry in self.files:
                try:
                    with safe_open(self.folder / entry["file"], framework="pt") as tensors:
                        for key in tensors.keys():  # noqa: SIM118 (not a dictionary)
                            kind, _, rest = key.partition("/")
                            name, _, start = rest.rpartition("@")
                            size = tensors.get_slice(key).get_shape()[0]
                            self._table.setdefault((kind, name), []).append(
                                (int(start), size, entry["file"], key)
                            )
                except (OSError, SafetensorError, ValueError) as error:
                    raise UserError(f"cannot be read: {error}", where=self.folder / entry["file"]) from None
        return self._table


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises UserError where the marker is missing or malformed."""
    marker = folder / MARKER
    try:
        values = json.loads(marker.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise UserError(f"checkpoint format {values['format']}", where=marker, expected=str(FORMAT))
        files = [
            {"file": _plain_name(f["file"]), "bytes": int(f["bytes"]), "sha256": str(f["sha256"])}
            for f in values["files"]
        ]
        shapes = {str(name): [int(n) for n in shape] for name, shape in values["shapes"].items()}
        return Checkpoint(folder, int(values["step"]), dict(values["state"]), shapes, files)
    except OSError:
        raise UserError("not a checkpoint", where=folder, expected=f"a folder with {MARKER}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"malformed: {type(error).__name__}: {error}", where=marker) from None


def checkpoints(run: Path) -> list[Path]:
    """Folders of the whole checkpoints of a run, oldest first."""
    return sorted(path.parent for path in (run / "checkpoints").glob(f"step-????????/{MARKER}"))


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint of `run` whose files are all as its marker says; None where there is none.

    The folders decide, not `latest`, which a kill may have left one behind."""
    folders = checkpoints(run)
    if not folders:
        return None
    checkpoint = open_checkpoint(folders[-1])
    checkpoint.verify()
    return checkpoint


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that `path` names: its folder, or a run folder, whose newest one it is."""
    if (path / MARKER).is_file():
        checkpoint = open_checkpoint(path)
        checkpoint.verify()
        return checkpoint
    found = newest_checkpoint(path)
    if found is None:
        raise UserError("no checkpoint", where=path, expected="a run or checkpoint folder")
    return found


def drop_old_checkpoints(run: Path, keep: int) -> None:
    """Deletes all but the newest `keep` checkpoints: the marker first, so that no half of one looks whole."""
    for folder in checkpoints(run)[:-keep]:
        _drop(folder)


def drop_leftovers(run: Path) -> None:
    """Deletes what saves and deletions that were killed left behind: folders without a marker."""
    for folder in (run / "checkpoints").glob("step-*"):
        if folder.name.endswith(".partial") or not (folder / MARKER).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def _drop(folder: Path) -> None:
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"file name {name!r}")
    return name


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _flush_and_hash(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _hash(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
