"""How a run of several ranks is killed: a kind, a moment and a rank in; calls that end in SIGKILL out.

What kills a rank is patched into it, in a process that a test has forked: production code knows nothing of this.
"""

import os
import random
import re
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IN_PLACE = re.compile(r"(step-\d{8}|latest|checkpoint\.json)$")
"""What a save gives its name to, in this order or another."""
KINDS = {
    "at the start": "both ranks, within a second",
    "any moment": "both ranks, at a random time of the run",
    "one rank": "SIGKILL of one rank at a random time; the other fails over it",
    "inside a save": "both ranks, 0 to 30 ms after the folder of a save was made",
    "before a flush": "both ranks, as one asks for a file or folder to be flushed to the disk",
    "before a rename": "both ranks, as a checkpoint, its marker or `latest` is to get its name",
    "after a rename": "both ranks, as soon as it has it",
    "inside a deletion": "both ranks, as an old checkpoint, already without its marker, is deleted",
}
TIMED = ("at the start", "any moment", "one rank")
"""Kinds whose moment is a time of the run; the others wait for a call in the rank itself."""


@dataclass(frozen=True)
class Kill:
    """One death: of which kind, in which rank it begins, at the how-manieth occasion or after how many seconds."""

    kind: str
    rank: int
    occasion: int
    seconds: float

    @classmethod
    def drawn(cls, rng: random.Random, kind: str, ranks: int, lasts: float) -> "Kill":
        seconds = rng.random() * {"at the start": 1.0, "inside a save": 0.03}.get(kind, lasts)
        most = {"before a flush": 12, "inside a save": 4, "inside a deletion": 2}
        occasion = rng.randint(1, most.get(kind, 6))
        # only the first rank makes folders, names and deletes them
        rank = rng.randrange(ranks) if kind in (*TIMED, "before a flush") else 0
        return cls(kind, rank, occasion, seconds)

    def install(self) -> None:
        """In the rank in which it begins, before anything else happens there."""
        left = [self.occasion]

        def occasion() -> bool:
            left[0] -= 1
            return left[0] == 0

        def die() -> None:
            os.killpg(0, signal.SIGKILL)

        def before(module: object, name: str, counts: Callable[..., bool], after: bool = False) -> None:
            original = getattr(module, name)

            def patched(*arguments, **options):  # type: ignore[no-untyped-def]
                chosen = counts(*arguments) and occasion()
                if chosen and not after:
                    die()
                result = original(*arguments, **options)
                if chosen:
                    die()
                return result

            setattr(module, name, patched)

        def named(_source, target, *_):  # type: ignore[no-untyped-def]
            return bool(IN_PLACE.search(os.fspath(target)))

        if self.kind == "inside a save":
            original = Path.mkdir

            def mkdir(path, *arguments, **options):  # type: ignore[no-untyped-def]
                original(path, *arguments, **options)
                if "step-" in path.name and occasion():
                    threading.Timer(self.seconds, die).start()

            Path.mkdir = mkdir  # type: ignore[method-assign]
        elif self.kind == "before a flush":
            before(os, "fsync", lambda *_: True)
        elif "rename" in self.kind:
            before(os, "rename", named, after="after" in self.kind)
            before(os, "replace", named, after="after" in self.kind)
        elif self.kind == "inside a deletion":
            before(
                shutil,
                "rmtree",
                lambda path, *_: re.search(r"step-\d{8}$", str(path)) and Path(path).is_dir(),
            )
