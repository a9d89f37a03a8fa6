"""Save and load checkpoint folders (named tensor fragments and a JSON state) that any number of ranks can read.

    RUN/checkpoints/step-00000100/
        fragments-00003.safetensors    rank 3's share: 1-D pieces, named `kind/parameter@start`
        checkpoint.json                the marker, written last: state, size and SHA-256 of every file, and its own
    RUN/checkpoints/latest             name of the newest whole checkpoint
    RUN/checkpoints/step-00000100.damaged    one whose bytes changed, set aside by a resume

A folder is filled under a name that no other attempt uses and gets its final name only after its marker is on disk; one
without a marker is not a checkpoint. Weights load through safetensors, which runs no code.

torch, which takes seconds to import, is imported only where tensors are written or read: whoever lists checkpoints does
without.
"""

import hashlib
import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256, own_folder, sync, write_whole, writing
from pretrain.run.files import CHECKPOINTS, LATEST, MARKER, METRICS, is_count, number, table, wait_until_shown
from pretrain.run.folder import OTHER_VERSION

if TYPE_CHECKING:
    import torch

    from pretrain.distributed.world import World
    from pretrain.optim.flat_layout import Fragment


# Write and read a checkpoint's marker, which a SHA-256 protects.


FORMAT = 3
"""Version of the marker and its state: incremented when a key is renamed."""


class Damaged(UserError):
    """Raised for a checkpoint whose bytes differ from those written."""


class Marker(NamedTuple):
    """Contents of a marker."""

    step: int
    state: dict[str, Any]
    """JSON, as pretrain/training/resume.py composes it: position, loader, scaler, identity, conditions, settings."""
    shapes: dict[str, list[int]]
    """Full shape of every named tensor."""
    files: list[dict[str, Any]]
    """`file`, `bytes` and `sha256` of every file beside the marker."""


def marked(marker: Marker) -> bytes:
    """Return the text of a marker."""
    return sealed({"format": FORMAT, **marker._asdict()})


def sealed(values: dict[str, Any]) -> bytes:
    """Serialise `values` as JSON, with a SHA-256 of their contents."""
    return json.dumps(values | {"sha256": _seal(values)}, indent=1, sort_keys=True).encode()


def parsed_marker(data: bytes, where: object) -> Marker:
    """Parse the bytes of a marker. Raises Damaged if they differ from what was written, UserError if another
    version of this program wrote them."""
    try:
        values = json.loads(data)
        # first: a flipped bit in the version is damage, and costs one checkpoint, not the run
        if values["sha256"] != _seal(values):
            raise ValueError("its SHA-256 does not hold")
        if values["format"] != FORMAT:
            other = str(values["format"])[:20]
            raise UserError(
                f"checkpoint of format {other}",
                where=where,
                expected=f"format {FORMAT}",
                remedy=OTHER_VERSION,
            )
        files = [
            {"file": _plain_name(f["file"]), "bytes": _count(f["bytes"]), "sha256": str(f["sha256"])}
            for f in values["files"]
        ]
        shapes = {str(name): [_count(n) for n in shape] for name, shape in values["shapes"].items()}
        return Marker(_count(values["step"]), dict(values["state"]), shapes, files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"malformed: {type(error).__name__}: {str(error)[:200]}", where=where) from None


def _seal(values: dict[str, Any]) -> str:
    content = {key: value for key, value in values.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _count(value: object) -> int:
    if not is_count(value):
        raise ValueError(f"{str(value)[:40]!r} is no count")
    assert isinstance(value, int)
    return value


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"file name {name!r}")
    if len(name.encode()) > 255:
        raise ValueError(f"file name {name!r}")
    return name


# Save checkpoints, find them in a run folder, and read them.


PARTIAL, DAMAGED = ".partial", ".damaged"
_STEP = re.compile(r"step-(\d{8,})")


def save_checkpoint(
    run: Path,
    step: int,
    fragments: "Iterable[Fragment]",
    shapes: dict[str, list[int]],
    state: dict,
    world: "World",
    wait: float = 0.0,
) -> Path:
    """Write a checkpoint with every rank's fragments; return its folder once it is complete and renamed.

    All ranks call this. `shapes`: full shape of every named tensor; `state`: JSON, kept from the first rank; `wait`:
    seconds that a rank waits for the folder that the first one makes. A write error on one rank is a UserError on every
    rank, and leaves existing checkpoints unchanged."""
    final = run / CHECKPOINTS / f"step-{step:08d}"
    partial = final.with_name(world.broadcast(f"{final.name}.{secrets.token_hex(4)}{PARTIAL}"))
    first = world.rank == 0
    try:
        world.together(lambda: _begin(partial) if first else None)
        path = partial / f"fragments-{world.rank:05d}.safetensors"
        files = world.together(lambda: _write(path, fragments, wait))
        marker = Marker(step, state, shapes, files)
        world.together(lambda: _commit(partial, final, marker) if first else None)
    except Exception:
        if first:
            shutil.rmtree(partial, ignore_errors=True)  # free the space
        raise
    return final


def _write(path: Path, fragments: "Iterable[Fragment]", wait: float) -> dict[str, str | int]:
    from pretrain.checkpoint.fragments import write_fragments

    wait_until_shown(lambda: None if path.parent.is_dir() else path.parent, wait)
    with writing(path):
        return write_fragments(path, fragments)


def _begin(partial: Path) -> None:
    own_folder(partial.parent)  # not its parents: do not recreate a deleted run folder
    partial.mkdir()


def _commit(partial: Path, final: Path, marker: Marker) -> None:
    history = final.parents[1] / METRICS
    if history.is_file():
        sync(history)  # the history must be on disk before the checkpoint can be resumed from
    write_whole(partial / MARKER, marked(marker))
    sync(partial)
    drop(
        final
    )  # a save of this step by an earlier attempt that was rolled back; killed here, see drop_leftovers
    partial.rename(final)
    sync(final.parent)


def name_latest(folder: Path) -> None:
    """Write `latest` next to a whole checkpoint, for people and for a folder that is listed late. Raises UserError or
    OSError if it cannot; the checkpoint is still valid."""
    write_whole(folder.parent / LATEST, folder.name.encode())


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk. `read` gathers any piece of any tensor from the fragments that hold it."""

    folder: Path
    step: int
    state: dict[str, Any]
    shapes: dict[str, list[int]]
    files: list[dict[str, Any]]
    _table: dict[tuple[str, str], list[tuple[int, int, str, str]]] = field(default_factory=dict)

    def read(self, name: str, kind: str, start: int, length: int) -> "torch.Tensor":
        """Read elements start..start+length-1 of the flattened tensor `name`, fp32. Raises Damaged if missing."""
        pieces, at = [], start
        for first, size, file, key in self._fragments().get((kind, name), []):
            if first <= at < min(start + length, first + size):
                end = min(start + length, first + size)
                pieces.append((file, key, at - first, end - first))
                at = end
        if at != start + length:  # before allocating memory for a size that a file may only claim
            raise Damaged(
                f"holds {at - start} of {length} elements of {kind}/{name}",
                where=self.folder,
                expected="all of them",
            )
        import torch

        result, filled = torch.empty(length, dtype=torch.float32), 0
        for file, key, low, high in pieces:
            with safe_open(self.folder / file, framework="pt") as tensors:
                result[filled : filled + high - low] = tensors.get_slice(key)[low:high]
            filled += high - low
        return result

    def tensor(self, name: str, kind: str = "master") -> "torch.Tensor":
        """Read the whole tensor `name`, fp32, in its shape."""
        shape = self.shapes[name]
        return self.read(name, kind, 0, math.prod(shape)).view(shape)

    def verify(self, files: Sequence[dict[str, Any]] | None = None) -> None:
        """Raise Damaged for the first of the files (all) whose size or SHA-256 differs from the marker."""
        for entry in self.files if files is None else files:
            path = self.folder / entry["file"]
            if (
                not path.is_file()
                or path.stat().st_size != entry["bytes"]
                or file_sha256(path) != entry["sha256"]
            ):
                raise Damaged(
                    "checkpoint file is missing or its bytes changed",
                    where=path,
                    expected=f"{entry['bytes']} bytes with SHA-256 {entry['sha256'][:12]}...",
                    remedy="delete this checkpoint's folder to resume from the one before",
                )

    def _fragments(self) -> dict[tuple[str, str], list[tuple[int, int, str, str]]]:
        """Map (kind, name) to its pieces, ordered by start: (start, length, file, name in the file)."""
        from pretrain.checkpoint.fragments import named_pieces

        if not self._table:
            for entry in self.files:
                try:
                    for kind, name, start, size, key in named_pieces(self.folder / entry["file"]):
                        piece = (start, size, entry["file"], key)
                        self._table.setdefault((kind, name), []).append(piece)
                except (OSError, SafetensorError, ValueError) as error:
                    raise Damaged(f"cannot be read: {error}", where=self.folder / entry["file"]) from None
            for pieces in self._table.values():
                pieces.sort()
        return self._table


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the checkpoint in `folder`. Raises Damaged if the marker was changed, UserError if it is missing or from
    another version of this program."""
    try:
        data = (folder / MARKER).read_bytes()
    except OSError:
        raise UserError("not a checkpoint", where=folder, expected=f"a folder with {MARKER}") from None
    return parsed_checkpoint(folder, data)


def parsed_checkpoint(folder: Path, data: bytes) -> Checkpoint:
    """Build the checkpoint whose files are, or will be, in `folder` and whose marker is `data`; raises as
    open_checkpoint."""
    marker = parsed_marker(data, folder / MARKER)
    return Checkpoint(folder, marker.step, marker.state, marker.shapes, marker.files)


def checkpoints(run: Path) -> list[Path]:
    """List the folders of a run's whole checkpoints, oldest first. The newest one is also known by `latest`: a network
    folder may list itself as it was before, and a run that found no checkpoint there would start over."""
    folders = {path.parent for path in (run / CHECKPOINTS).glob(f"step-*/{MARKER}")}
    newest = latest_folder(run)
    folders |= {newest} if newest is not None and (newest / MARKER).is_file() else set()
    return sorted((path for path in folders if _STEP.fullmatch(path.name)), key=step_of)


def latest_folder(run: Path) -> Path | None:
    """Return the folder that `latest` names, there or not; None if it names no checkpoint or cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        name = (run / CHECKPOINTS / LATEST).read_text("utf-8")
        return run / CHECKPOINTS / name if _STEP.fullmatch(name) else None
    return None


class SavedCheckpoint(NamedTuple):
    """What the marker of a complete checkpoint says: its step, size and quality."""

    name: str
    step: int
    bytes: int
    held_out_loss: float | None = None
    conditions: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    """Settings under which a resumed run is bit-exact."""


def saved_checkpoints(run: Path) -> list[SavedCheckpoint]:
    """Describe a run's complete checkpoints, oldest first, from their markers alone; malformed ones are left out."""
    saved = []
    for folder in checkpoints(run):
        with suppress(ValueError, KeyError, TypeError, OverflowError):  # the last: of Infinity
            saved.append(_saved(folder.name, table(folder / MARKER)))
    return saved


def _saved(name: str, marker: dict[str, Any]) -> SavedCheckpoint:
    size, state = sum(int(entry["bytes"]) for entry in marker["files"]), marker.get("state")
    state = state if isinstance(state, dict) else {}
    conditions = state.get("conditions")
    conditions = conditions if isinstance(conditions, dict) else {}
    return SavedCheckpoint(name, int(marker["step"]), size, number(state.get("held_out_loss")), conditions)


def step_of(folder: Path) -> int:
    """Parse the step from a checkpoint folder's name; -1 for any other name."""
    match = _STEP.match(folder.name)
    return int(match[1]) if match else -1


def damage_of(folder: Path, world: "World") -> str:
    """Describe what is wrong with a checkpoint; empty if all bytes are as written. All ranks call this, and each
    hashes its share of the files: at an unchanged world size, those it will read."""

    def damage_here() -> str:
        try:
            checkpoint = open_checkpoint(folder)
            checkpoint.verify(checkpoint.files[world.rank :: world.size])
        except Damaged as error:
            return str(error)
        return ""

    return next(filter(None, world.together(damage_here)), "")


def newest_whole(
    run: Path, world: "World", wait: Callable[[Path], None] | None = None
) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """Find the newest checkpoint of `run` whose files all match its marker, or None, and the newer damaged ones,
    each with its damage. All ranks call this, and `wait` with the newest one's folder before they look into it.
    `latest` only adds a folder that is not listed yet: after a kill it may be one behind."""
    damaged: list[tuple[Path, str]] = []
    for name in reversed(world.broadcast([folder.name for folder in checkpoints(run)])):
        folder = run / CHECKPOINTS / name
        if wait is not None and not damaged:
            world.together(partial(wait, folder))
        if not (damage := damage_of(folder, world)):
            return open_checkpoint(folder), damaged
        damaged.append((folder, damage))
    return None, damaged


def newest_checkpoint(
    run: Path, world: "World | None" = None, wait: Callable[[Path], None] | None = None
) -> Checkpoint | None:
    """Find the newest whole checkpoint of `run`, or None. All ranks of `world` (one) call this; `wait` as in
    `newest_whole`. Raises UserError if all are damaged."""
    checkpoint, damaged = newest_whole(run, world or _alone(), wait)
    if checkpoint is None and damaged:
        raise all_damaged(run, damaged)
    return checkpoint


def all_damaged(run: Path, damaged: Sequence[tuple[Path, str]]) -> UserError:
    """Return the message for a run without a whole checkpoint."""
    return UserError(
        f"all {len(damaged)} checkpoints are damaged; of the oldest: {damaged[-1][1]}",
        where=run / CHECKPOINTS,
        remedy="restore one, or delete the run folder to start over",
    )


def named_folder(path: Path) -> Path:
    """Return the folder of the checkpoint that `path` names: itself, or a run's newest one. Raises UserError."""
    if not (newest := _newest_named(path)):
        raise _no_checkpoint(path)
    return Path(newest)


def _newest_named(path: Path) -> str:
    whole = [path] if (path / MARKER).is_file() else checkpoints(path)
    return str(whole[-1]) if whole else ""


def _no_checkpoint(path: Path) -> UserError:
    return UserError("no checkpoint", where=path, expected="a run or checkpoint folder")


def find_checkpoint(path: Path, world: "World | None" = None) -> Checkpoint:
    """Open the checkpoint that `path` names: its folder, or a run folder for its newest one. All ranks of `world`
    (one) call this. Raises Damaged if that one is damaged, rather than fall back to another."""
    world = world or _alone()
    newest = world.broadcast(_newest_named(path))  # an active run may save one meanwhile
    if not newest:
        raise _no_checkpoint(path)
    if damage := damage_of(Path(newest), world):
        raise Damaged(damage)
    return open_checkpoint(Path(newest))


def drop(folder: Path) -> None:
    """Delete a checkpoint, its marker first, so that a partial one never looks whole."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _alone() -> "World":
    from pretrain.distributed.world import World

    return World()


# Wait for a checkpoint that a network folder shows late. With a file taken for missing it would count as damaged; a run
# whose newest one is not shown would go on from the one before, or start over.


def wait_for_newest(run: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, for at most so many seconds, until this machine sees all files of the checkpoint that `latest` names,
    unless that was set aside; and first for `latest` itself, which only the first save lacks. `say` gets a line
    if there is something to wait for. What then still lacks is for the reader to judge as damage."""
    give_up, latest = time.monotonic() + seconds, run / CHECKPOINTS / LATEST
    wait_until_shown(lambda: None if latest.is_file() or not checkpoints(run) else latest, seconds, say)
    folder = latest_folder(run)
    if folder is not None and not folder.with_name(folder.name + DAMAGED).exists():
        wait_for_files(folder, max(0.0, give_up - time.monotonic()), say)


def wait_for_files(folder: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Wait, as `wait_for_newest` does, until this machine sees all files of the checkpoint in `folder`."""
    wait_until_shown(lambda: _not_shown(folder), seconds, say)


def _not_shown(folder: Path) -> Path | None:
    """Return the first file of a checkpoint that is not there, or shorter than its marker says; None if there is none,
    or if the marker is damaged or of another version, which no waiting mends."""
    marker = folder / MARKER
    try:
        files = parsed_checkpoint(folder, marker.read_bytes()).files
    except OSError:  # among them ESTALE
        return marker
    except UserError:
        return None
    return next((path for f in files if _size_shown(path := folder / f["file"]) < f["bytes"]), None)


def _size_shown(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # among them ESTALE, of a file that the server has replaced
        return -1
