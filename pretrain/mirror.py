"""A run's whole checkpoints in; copies of them in an object store, and from there back into an empty folder, out.

    URI/run.json, config.yaml, metrics.jsonl                  the run itself, as of the newest copy
    URI/checkpoints/step-00000100.3f2a91c0/checkpoint.json    a copy: the same files, the marker last
    URI/checkpoints/latest                                    name of the newest whole copy

Stores cannot rename, so each copy has a name of its own from the start, and is one once its marker is there; copies
that were cut short, and those that retention lets go, are removed after the next.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.remote import download, object_names, read_object, remove_object, upload, write_object
from data_pipeline.storage import write_whole, writing
from pretrain.checkpoint import (
    FOLDER,
    LATEST,
    MARKER,
    PARTIAL,
    checkpoints,
    open_checkpoint,
    parsed_checkpoint,
    step_of,
)
from pretrain.config import RunConfig
from pretrain.marker import Damaged
from pretrain.monitor import METRICS, read_metrics
from pretrain.retention import kept
from pretrain.run_folder import CONFIG, RUN, parsed_run, read_run, refuse_another
from pretrain.tidying import set_aside
from pretrain.world import World


class Mirror:
    """The copies of one run's checkpoints under `checkpoint.mirror`."""

    def __init__(self, config: RunConfig) -> None:
        self.uri, self._config = config.checkpoint.mirror.rstrip("/"), config
        self._losses: dict[str, float | None] = {}  # of copies known to be whole: markers are read once

    def copy(self, folder: Path, world: World) -> None:
        """Copies a whole checkpoint, every rank its share of the files. All ranks call this; what fails on one is a
        UserError on all."""
        copy = f"{self.uri}/{FOLDER}/{world.broadcast(f'{folder.name}.{secrets.token_hex(4)}')}"
        world.together(lambda: self._send(folder, copy, world))
        world.together(lambda: self._end(folder, copy) if world.rank == 0 else None)

    @staticmethod
    def _send(folder: Path, copy: str, world: World) -> None:
        for entry in open_checkpoint(folder).files[world.rank :: world.size]:
            upload(folder / entry["file"], f"{copy}/{entry['file']}")

    def _end(self, folder: Path, copy: str) -> None:
        run = folder.parents[1]
        for name in (RUN, CONFIG, METRICS):
            if (run / name).is_file():
                write_object(f"{self.uri}/{name}", (run / name).read_bytes())
        write_object(f"{copy}/{MARKER}", (folder / MARKER).read_bytes())
        write_object(f"{self.uri}/{FOLDER}/{LATEST}", Path(copy).name.encode())
        self._drop_old(Path(copy).name)

    def _drop_old(self, newest: str) -> None:
        found = self._copies()
        whole = {step_of(Path(name)): name for name in sorted(found) if self._is_whole(name)}
        whole[step_of(Path(newest))] = newest  # of several copies of a step the one just made
        staying = kept({step: self._losses[name] for step, name in whole.items()}, self._config)
        for name in found:
            if name not in {whole[step] for step in staying}:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """The marker first, so that no half of a copy looks whole."""
        self._losses.pop(name, None)
        copy = f"{self.uri}/{FOLDER}/{name}"
        for file in sorted(object_names(copy), key=lambda file: file != MARKER):
            remove_object(f"{copy}/{file}")

    def _copies(self) -> list[str]:
        return [name for name in object_names(f"{self.uri}/{FOLDER}") if _step_of_name(name) >= 0]

    def _is_whole(self, name: str) -> bool:
        if name not in self._losses:
            try:
                data = read_object(f"{self.uri}/{FOLDER}/{name}/{MARKER}")
                loss = parsed_checkpoint(Path(name), data).state.get("held_out_loss")
            except (FileNotFoundError, Damaged):
                return False
            self._losses[name] = loss
        return True

    def run(self) -> dict[str, Any] | None:
        """run.json of the run whose copies these are; None where there are none yet."""
        try:
            return parsed_run(read_object(f"{self.uri}/{RUN}"), f"{self.uri}/{RUN}")
        except FileNotFoundError:
            return None

    def fetch_newest(self, run: Path, above: int = -1) -> int | None:
        """Brings the newest whole copy of a step beyond `above` into `run`, and the history that led to it; returns
        its step, None where there is none. A damaged one of that step is replaced once the copy is there, whole."""
        for name in self._newest_first(above):
            partial = run / FOLDER / f"step-{step_of(Path(name)):08d}.{secrets.token_hex(4)}{PARTIAL}"
            try:
                with writing(partial):
                    partial.mkdir(parents=True)
                    step = self._fetch(name, partial)
            except Damaged:
                shutil.rmtree(partial)
                continue
            self._fetch_history(run, step)  # first: a start that finds the checkpoint asks for nothing more
            final = run / FOLDER / f"step-{step:08d}"
            if final.exists():
                set_aside(final)
            partial.rename(final)
            return step
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

    def _fetch(self, name: str, partial: Path) -> int:
        copy = f"{self.uri}/{FOLDER}/{name}"
        marker = read_object(f"{copy}/{MARKER}")
        checkpoint = parsed_checkpoint(partial, marker)
        for entry in checkpoint.files:
            try:
                download(f"{copy}/{entry['file']}", partial / entry["file"])
            except FileNotFoundError:
                raise Damaged("is missing", where=f"{copy}/{entry['file']}") from None
        checkpoint.verify()
        write_whole(partial / MARKER, marker)
        return checkpoint.step


def bring_back(config: RunConfig, identity: dict[str, Any]) -> str:
    """Fills a run folder that has no checkpoint from its mirror; the first rank calls this. Returns a line that says
    so, empty where there was nothing to do. Raises UserError where the mirror is another run's."""
    folder, mirror = Path(config.run.dir), Mirror(config)
    theirs = mirror.run()
    if theirs is None:
        return ""
    refuse_another(theirs["identity"], identity, mirror.uri, "choose another checkpoint.mirror")
    if checkpoints(folder):
        here = read_run(folder)
        if here is not None and here["id"] != theirs["id"]:
            raise UserError(
                f"mirrors another run of these settings, {theirs['id']} (here: {here['id']})",
                where=mirror.uri,
                remedy="choose another checkpoint.mirror",
            )
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(
        folder / RUN, json.dumps(theirs, indent=1).encode()
    )  # first: killed, the folder is known as the run's
    step = mirror.fetch_newest(folder)
    if step is None:
        return ""
    return f"brought back the checkpoint of step {step:,} from {mirror.uri}"


def _step_of_name(name: str) -> int:
    return step_of(Path(name))
