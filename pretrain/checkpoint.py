"""Named fragments of tensors and a JSON state <-> a checkpoint folder that any number of ranks can read.

    RUN/checkpoints/step-00000100/
        fragments-00003.safetensors    rank 3's share: 1-D pieces, named `kind/parameter@start`
        checkpoint.json                the marker, written last: state, size and SHA-256 of every file, and its own
    RUN/checkpoints/latest             name of the newest whole checkpoint
    RUN/checkpoints/step-00000100.damaged    one whose bytes changed, set aside by a resume

A folder is filled under a name that no other life uses and gets its final name only after its marker is on disk; one
without a marker is not a checkpoint. Weights load through safetensors, which runs no code.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from data_pipeline.errors import UserError
from data_pipeline.storage import write_whole, writing
from pretrain.fragments import Fragment, parsed_key, write_fragments
from pretrain.world import World

FORMAT = 2
MARKER, LATEST, FOLDER = "checkpoint.json", "latest", "checkpoints"
PARTIAL, DAMAGED = ".partial", ".damaged"
_STEP = re.compile(r"step-(\d{8,})")


class Damaged(UserError):
    """A checkpoint whose bytes are not those that were written."""


def save_checkpoint(
    run: Path,
    step: int,
    fragments: Iterable[Fragment],
    shapes: dict[str, list[int]],
    state: dict,
    world: World,
) -> Path:
    """Writes a checkpoint with every rank's fragments; returns its folder once it is whole and named.

    All ranks call this. `shapes`: full shape of every named tensor; `state`: JSON, kept from the first rank. What
    keeps one rank from writing is a UserError on every rank; what was there before is then as it was."""
    final = run / FOLDER / f"step-{step:08d}"
    partial = final.with_name(world.broadcast(f"{final.name}.{secrets.token_hex(4)}{PARTIAL}"))
    first = world.rank == 0
    try:
        world.together(lambda: _begin(partial) if first else None)
        path = partial / f"fragments-{world.rank:05d}.safetensors"
        files = world.together(lambda: _write(path, fragments))
        marker = {"format": FORMAT, "step": step, "shapes": shapes, "files": files, "state": state}
        world.together(lambda: _commit(partial, final, marker) if first else None)
    except Exception:
        if first:
            shutil.rmtree(partial, ignore_errors=True)  # the room is needed
        raise
    return final


def _write(path: Path, fragments: Iterable[Fragment]) -> dict[str, str | int]:
    with writing(path):
        return write_fragments(path, fragments)


def _begin(partial: Path) -> None:
    partial.parent.mkdir(exist_ok=True)  # not its parents: a run folder that vanished is not made anew
    partial.mkdir()


def _commit(partial: Path, final: Path, marker: dict[str, Any]) -> None:
    history = final.parents[1] / "metrics.jsonl"
    if history.is_file():
        _sync(history)  # what led here is on the disk before it is said that one may go on from here
    write_whole(partial / MARKER, sealed(marker))
    _sync(partial)
    _drop(
        final
    )  # a save of this step by an earlier life that was rolled back; killed here, see drop_leftovers
    partial.rename(final)
    _sync(final.parent)
    write_whole(final.parent / LATEST, final.name.encode())


def sealed(marker: dict[str, Any]) -> bytes:
    """The text of a marker, with a SHA-256 of all else that it says."""
    return json.dumps(marker | {"sha256": _seal(marker)}, indent=1, sort_keys=True).encode()


def _seal(marker: dict[str, Any]) -> str:
    said = {key: value for key, value in marker.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


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
            raise Damaged(
                f"holds {filled} of {length} elements of {kind}/{name}",
                where=self.folder,
                expected="all of them",
            )
        return result

    def tensor(self, name: str, kind: str = "master") -> torch.Tensor:
        """The whole tensor `name`, fp32, in its shape."""
        shape = self.shapes[name]
        return self.read(name, kind, 0, int(torch.Size(shape).numel())).view(shape)

    def verify(self, files: Sequence[dict[str, Any]] | None = None) -> None:
        """Raises Damaged for the first of the files (all) whose size or SHA-256 is not what the marker says."""
        for entry in self.files if files is None else files:
            path = self.folder / entry["file"]
            if not path.is_file() or path.stat().st_size != entry["bytes"] or _hash(path) != entry["sha256"]:
                raise Damaged(
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
                            kind, name, start = parsed_key(key)
                            size = tensors.get_slice(key).get_shape()[0]
                            self._table.setdefault((kind, name), []).append((start, size, entry["file"], key))
                except (OSError, SafetensorError, ValueError) as error:
                    raise Damaged(f"cannot be read: {error}", where=self.folder / entry["file"]) from None
        return self._table


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises Damaged where the marker is not what was written, UserError where there is
    none, or one of another version of this program."""
    try:
        data = (folder / MARKER).read_bytes()
    except OSError:
        raise UserError("not a checkpoint", where=folder, expected=f"a folder with {MARKER}") from None
    return parsed_checkpoint(folder, data)


def parsed_checkpoint(folder: Path, data: bytes) -> Checkpoint:
    """The checkpoint whose files are, or will be, in `folder` and whose marker is `data`; errors as above."""
    marker = folder / MARKER
    try:
        values = json.loads(data)
        if values["format"] != FORMAT:
            raise UserError(f"checkpoint format {values['format']}", where=marker, expected=str(FORMAT))
        if values["sha256"] != _seal(values):
            raise ValueError("its SHA-256 does not hold")
        files = [
            {"file": _plain_name(f["file"]), "bytes": int(f["bytes"]), "sha256": str(f["sha256"])}
            for f in values["files"]
        ]
        shapes = {str(name): [int(n) for n in shape] for name, shape in values["shapes"].items()}
        return Checkpoint(folder, int(values["step"]), dict(values["state"]), shapes, files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"malformed: {type(error).__name__}: {error}", where=marker) from None


def checkpoints(run: Path) -> list[Path]:
    """Folders of the whole checkpoints of a run, oldest first."""
    found = [path.parent for path in (run / FOLDER).glob(f"step-*/{MARKER}")]
    return sorted((path for path in found if _STEP.fullmatch(path.name)), key=step_of)


def step_of(folder: Path) -> int:
    """The step that the name of a checkpoint's folder tells."""
    found = _STEP.match(folder.name)
    assert found is not None
    return int(found[1])


def damage_of(folder: Path, world: World) -> str:
    """In words, what is wrong with a checkpoint; empty where all bytes are as written. All ranks call this, and each
    hashes its share of the files: at an unchanged world size, what it is going to read."""

    def found() -> str:
        try:
            checkpoint = open_checkpoint(folder)
            checkpoint.verify(checkpoint.files[world.rank :: world.size])
        except Damaged as error:
            return str(error)
        return ""

    return next(filter(None, world.together(found)), "")


def newest_checkpoint(
    run: Path, world: World | None = None, passed_over: Callable[[Path, str], None] | None = None
) -> Checkpoint | None:
    """The newest checkpoint of `run` whose files are all as its marker says; None where there is none. All ranks of
    `world` (one) call this. The folders decide, not `latest`, which a kill may have left one behind.

    `passed_over` is told of damaged ones before it. Raises UserError where all are damaged."""
    world = world or World()
    names = world.broadcast([folder.name for folder in checkpoints(run)])
    found = ""
    for name in reversed(names):
        folder = run / FOLDER / name
        if not (found := damage_of(folder, world)):
            return open_checkpoint(folder)
        if passed_over is not None:
            passed_over(folder, found)
    if found:
        raise UserError(
            f"all {len(names)} checkpoints are damaged; of the oldest: {found}",
            where=run / FOLDER,
            remedy="restore one, or delete the run folder to begin anew",
        )
    return None


def find_checkpoint(path: Path, world: World | None = None) -> Checkpoint:
    """The checkpoint that `path` names: its folder, or a run folder, whose newest one it is. All ranks of `world` (one)
    call this. Raises Damaged where that very one is: who names a model is not handed another."""
    whole = [path] if (path / MARKER).is_file() else checkpoints(path)
    if not whole:
        raise UserError("no checkpoint", where=path, expected="a run or checkpoint folder")
    if found := damage_of(whole[-1], world or World()):
        raise Damaged(found)
    return open_checkpoint(whole[-1])


def set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint, so that it is no longer one, but can still be looked at."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    return aside


def drop_checkpoints(folders: Iterable[Path]) -> None:
    """Deletes checkpoints: the marker first, so that no half of one looks whole."""
    for folder in folders:
        _drop(folder)


def drop_leftovers(run: Path) -> None:
    """Ends what saves and deletions that were killed left: a whole checkpoint that lacked only its name gets it;
    other folders without a marker, or under a name of their own, go."""
    for folder in sorted((run / FOLDER).glob("step-*")):
        whole = (folder / MARKER).is_file()
        if folder.name.endswith(PARTIAL):
            final = folder.with_name(f"step-{step_of(folder):08d}") if _STEP.match(folder.name) else None
            if whole and final is not None and not (final / MARKER).is_file():
                shutil.rmtree(final, ignore_errors=True)
                folder.rename(final)
            else:
                shutil.rmtree(folder, ignore_errors=True)
        elif not whole:
            shutil.rmtree(folder, ignore_errors=True)


def _drop(folder: Path) -> None:
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"file name {name!r}")
    return name


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
