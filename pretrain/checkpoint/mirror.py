"""Copy a run's whole checkpoints to an object store and back.

    URI/run.json, config.yaml, metrics.jsonl                  the run itself, as of the newest copy
    URI/checkpoints/step-00000100.3f2a91c0/checkpoint.json    a copy: the same files, the marker last
    URI/checkpoints/latest                                    name of the newest whole copy

Stores cannot rename, so each copy gets a unique name from the start and is valid once its marker exists. Incomplete
copies, and those that retention drops, are removed after the next copy.

Copies come back into an empty folder (`bring_back`), or where the newest checkpoint of a run folder is damaged or
missing (`checkpoint_to_resume` in training/resume.py).
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import sealed_json, write_whole, writing
from data_pipeline.io.object_store import (
    download,
    object_names,
    read_object,
    remove_object,
    upload,
    write_object,
)
from pretrain.checkpoint.retention import kept, set_aside
from pretrain.checkpoint.store import (
    PARTIAL,
    Checkpoint,
    Damaged,
    checkpoints,
    name_latest,
    open_checkpoint,
    parsed_checkpoint,
    step_of,
)
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.run.files import CHECKPOINTS, CONFIG, LATEST, MARKER, METRICS, RUN
from pretrain.run.folder import parsed_config, parsed_run, read_run, refuse_another
from pretrain.run.metrics_log import read_metrics


class Mirror:
    """The copies of one run's checkpoints under `checkpoint.mirror`."""

    def __init__(self, config: RunConfig) -> None:
        self.uri, self._config = config.checkpoint.mirror.rstrip("/"), config
        self._losses: dict[str, float | None] = {}  # of copies known to be whole: markers are read once

    def copy(self, folder: Path, world: World) -> None:
        """Copy a whole checkpoint, each rank its share of the files. All ranks call this; a failure on one is a
        UserError on all."""
        copy = f"{self.uri}/{CHECKPOINTS}/{world.broadcast(f'{folder.name}.{secrets.token_hex(4)}')}"
        world.together(lambda: self._send(folder, copy, world))
        world.together(lambda: self._end(folder, copy) if world.rank == 0 else None)

    def _send(self, folder: Path, copy: str, world: World) -> None:
        if world.rank == 0:
            self.refuse_another_run(
                folder.parents[1], self.run()
            )  # the start skips this if the store is away
        for entry in open_checkpoint(folder).files[world.rank :: world.size]:
            upload(folder / entry["file"], f"{copy}/{entry['file']}")

    def _end(self, folder: Path, copy: str) -> None:
        run = folder.parents[1]
        for name in (RUN, CONFIG, METRICS):
            if (run / name).is_file():
                write_object(f"{self.uri}/{name}", (run / name).read_bytes())
        write_object(f"{copy}/{MARKER}", (folder / MARKER).read_bytes())
        write_object(f"{self.uri}/{CHECKPOINTS}/{LATEST}", Path(copy).name.encode())
        self._drop_old(Path(copy).name)

    def _drop_old(self, newest: str) -> None:
        copies = sorted({*self._copies(), newest})
        whole = {step_of(Path(name)): name for name in copies if self._is_whole(name)}
        whole[step_of(Path(newest))] = newest  # of several copies of a step, keep the one just made
        staying = kept({step: self._losses.get(name) for step, name in whole.items()}, self._config)
        stay = {whole[step] for step in staying} | {newest}  # one of a later step may be damaged
        for name in copies:
            if name not in stay:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a copy, its marker first, so that a partial copy never looks whole."""
        self._losses.pop(name, None)
        copy = f"{self.uri}/{CHECKPOINTS}/{name}"
        for file in sorted(object_names(copy), key=lambda file: file != MARKER):
            remove_object(f"{copy}/{file}")

    def _copies(self) -> list[str]:
        """Return the names of all copies. The newest one is also known by its own object: a store may list its folder
        as it was before, and a run that found no copy there would start over."""
        names = object_names(f"{self.uri}/{CHECKPOINTS}")
        with suppress(FileNotFoundError, UnicodeDecodeError):
            names.append(read_object(f"{self.uri}/{CHECKPOINTS}/{LATEST}").decode())
        return [name for name in dict.fromkeys(names) if "/" not in name and _step_of_name(name) >= 0]

    def _is_whole(self, name: str) -> bool:
        if name not in self._losses:
            try:
                data = read_object(f"{self.uri}/{CHECKPOINTS}/{name}/{MARKER}")
                loss = parsed_checkpoint(Path(name), data).state.get("held_out_loss")
            except (FileNotFoundError, Damaged):
                return False
            self._losses[name] = loss
        return True

    def run(self) -> bytes | None:
        """Return run.json of the mirrored run; None without copies."""
        try:
            return read_object(f"{self.uri}/{RUN}")
        except FileNotFoundError:
            return None

    def refuse_another_run(self, run: Path, mirrored: bytes | None) -> None:
        """Raise UserError if these are copies of a different run than the one in the folder `run`. `mirrored`: what
        the method `run` returned; a run lost before its first whole copy does not conflict."""
        here = read_run(run)
        if mirrored is None or here is None:
            return
        there = parsed_run(mirrored, f"{self.uri}/{RUN}")
        if here["id"] != there["id"] and any(map(self._is_whole, self._copies())):
            raise UserError(
                f"mirrors another run of these settings, {there['id']} (here: {here['id']})",
                where=self.uri,
                remedy="choose another checkpoint.mirror",
            )

    def has(self, step: int) -> bool:
        """Return whether a whole copy of the checkpoint of `step` exists."""
        return any(_step_of_name(name) == step and self._is_whole(name) for name in self._copies())

    def fetch_newest(self, run: Path, above: int = -1, about: bytes = b"") -> int | None:
        """Fetch the newest whole copy of a step above `above` into `run`, with its history; return its step, or
        None. A damaged checkpoint of that step is replaced once the copy is complete.

        `about`, the run.json of a run with nothing here, is written first: if killed later, the folder belongs to
        this run and the same command fetches the rest."""
        for name in self._newest_first(above):
            if about:
                with writing(run):
                    run.mkdir(parents=True, exist_ok=True)
                write_whole(run / RUN, about)
            try:
                return self._fetch(name, run)
            except Damaged:
                continue
        return None

    def _fetch_history(self, run: Path, step: int) -> None:
        if max((line.get("step", 0) for line in read_metrics(run)), default=0) >= step:
            return  # that of the run folder leads there as well, and maybe further
        with suppress(FileNotFoundError):  # monitor.tracker=none
            write_whole(run / METRICS, read_object(f"{self.uri}/{METRICS}"))

    def _newest_first(self, above: int) -> Iterator[str]:
        newer = sorted(
            (n for n in self._copies() if _step_of_name(n) > above), key=_step_of_name, reverse=True
        )
        yield from filter(self._is_whole, newer)

    def _fetch(self, name: str, run: Path) -> int:
        """Download a checkpoint with its history, and rename it once complete. If killed, a folder with a marker is
        whole (drop_leftovers). An error leaves nothing behind, to free the space."""
        partial = run / CHECKPOINTS / f"step-{step_of(Path(name)):08d}.{secrets.token_hex(4)}{PARTIAL}"
        try:
            with writing(partial):
                partial.mkdir(parents=True)
                checkpoint, marker = self._download(name, partial)
                self._fetch_history(run, checkpoint.step)
                write_whole(partial / MARKER, marker)
                final = run / CHECKPOINTS / f"step-{checkpoint.step:08d}"
                if final.exists():
                    set_aside(final)
                partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        with suppress(OSError, UserError):  # as after a save: the folders decide
            name_latest(final)
        return checkpoint.step

    def _download(self, name: str, partial: Path) -> tuple[Checkpoint, bytes]:
        """Download and verify all files but the marker; return the marker's contents."""
        copy = f"{self.uri}/{CHECKPOINTS}/{name}"
        marker = read_object(f"{copy}/{MARKER}")
        checkpoint = parsed_checkpoint(partial, marker)
        for entry in checkpoint.files:
            try:
                download(f"{copy}/{entry['file']}", partial / entry["file"])
            except FileNotFoundError:
                raise Damaged("is missing", where=f"{copy}/{entry['file']}") from None
        checkpoint.verify()
        return checkpoint, marker


def bring_back(config: RunConfig, identity: dict[str, Any]) -> str:
    """Fill a run folder without checkpoints from its mirror; only the first rank calls this. Returns a message,
    empty if there was nothing to do. Raises UserError if the mirror belongs to another run, or is unreadable with
    nothing here to resume from."""
    folder, mirror = Path(config.run.dir), Mirror(config)
    try:
        mirrored = mirror.run()
    except UserError as error:
        if not checkpoints(folder):
            raise
        return f"maskmill: WARNING: {error}; resuming from the checkpoints here"
    if mirrored is None:
        return ""
    there = parsed_run(mirrored, f"{mirror.uri}/{RUN}")
    refuse_another(there["identity"], identity, mirror.uri, "choose another checkpoint.mirror")
    if checkpoints(folder):
        mirror.refuse_another_run(folder, mirrored)
        return ""
    step = mirror.fetch_newest(folder, about=sealed_json(there))
    if step is None:
        return ""
    return f"brought back the checkpoint of step {step:,} from {mirror.uri}"


def mirrored_config(config: RunConfig) -> RunConfig | None:
    """Return the settings of the mirrored run; None without copies. Raises UserError if the mirror cannot be read."""
    where = f"{config.checkpoint.mirror.rstrip('/')}/{CONFIG}"
    try:
        return parsed_config(read_object(where).decode(errors="replace"), where)
    except FileNotFoundError:
        return None


def _step_of_name(name: str) -> int:
    return step_of(Path(name))
