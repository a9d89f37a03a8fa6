"""A network folder that shows each process late what others did in it, as NFS may show it to another machine.

As `sitecustomize.py`, which Python imports at its start, it changes what Python sees below LATE_FOLDER: a name that
another process made is not there until LATE_SECONDS after this one first asked for it, the files of a folder that was
renamed (but for checkpoint.json) for twice as long, and a name that is gone is still listed for as long. LATE_JOURNAL
is the file in which processes tell each other. What reads files without Python, as safetensors does, sees all at once.
"""

import builtins
import io
import os
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

OPEN, OPEN_FD, STAT, NAMES_OF, SCAN = io.open, os.open, os.stat, os.listdir, os.scandir
"""What there is without delay."""


class LateFolder:
    """Which names of the folder this process is shown."""

    def __init__(self, folder: str, seconds: float, journal: str) -> None:
        self._folder, self._seconds, self._journal = folder.rstrip("/") + "/", seconds, journal
        self._read = 0
        self._late: dict[str, float] = {}
        """What another process made, and how many times the seconds it is late."""
        self._gone: set[str] = set()
        self._asked: dict[str, float] = {}
        """When this process first asked for what is late or gone."""

    def path(self, path: Any) -> str:
        """The absolute path, if it is below the folder; else nothing."""
        if isinstance(path, int):
            return ""
        text = os.path.abspath(os.fspath(path))
        return text if isinstance(text, str) and f"{text}/".startswith(self._folder) else ""

    def is_hidden(self, path: str) -> bool:
        """Whether the path, or a folder that it is in, is not shown yet."""
        self._update()
        hidden = False
        while len(path) > len(self._folder):
            if path in self._late:
                hidden |= self._lasts(path, self._late[path])
            path = os.path.dirname(path)
        return hidden

    def listed(self, folder: str, names: Iterable[str]) -> tuple[set[str], set[str]]:
        """Which of these names a listing of the folder has, and which names of what is gone."""
        shown = {name for name in names if not self.is_hidden(os.path.join(folder, name))}
        gone = [path for path in self._gone if os.path.dirname(path) == folder and self._lasts(path, 1.0)]
        return shown, {os.path.basename(path) for path in gone} - shown

    def tell(self, path: str, *, is_gone: bool = False, late: float = 1.0) -> None:
        """This process has made the path, or removed it."""
        journal = OPEN_FD(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, f"{os.getpid()}\t{int(is_gone)}\t{late}\t{path}\n".encode())
        os.close(journal)

    def tell_renamed(self, source: str, target: str) -> None:
        """This process has renamed a file or folder."""
        if source:
            self.tell(source, is_gone=True)
        if target:
            self.tell(target)
        if target and os.path.isdir(target):
            for name in NAMES_OF(target):
                self.tell(os.path.join(target, name), late=1.0 if name == "checkpoint.json" else 2.0)

    def _lasts(self, path: str, late: float) -> bool:
        now = time.monotonic()
        return now < self._asked.setdefault(path, now) + self._seconds * late

    def _update(self) -> None:
        try:
            with OPEN(self._journal, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            pid, is_gone, late, path = line.split("\t", 3)
            self._late.pop(path, None)
            self._gone.discard(path)
            self._asked.pop(path, None)
            if int(pid) != os.getpid():
                if int(is_gone):
                    self._gone.add(path)
                else:
                    self._late[path] = float(late)


class Entries(list[Any]):
    """What os.scandir returns, as far as it is used."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def install(late: LateFolder) -> None:
    """From now on this process sees the folder so."""
    for module, name in ((os, "stat"), (os, "lstat"), (os, "open"), (io, "open"), (builtins, "open")):
        setattr(module, name, _reading(late, getattr(module, name)))
    for name in ("mkdir", "unlink", "rmdir"):
        setattr(os, name, _changing(late, getattr(os, name), is_gone=name != "mkdir"))
    for name in ("rename", "replace", "link"):
        setattr(os, name, _renaming(late, getattr(os, name), is_link=name == "link"))

    def scandir(path: Any = ".") -> Any:
        if not (folder := late.path(path)):
            return SCAN(path)
        _refuse_hidden(late, folder)
        with SCAN(path) as found:
            there = {entry.name: entry for entry in found}
        shown, stale = late.listed(folder, iter(there))
        gone = [_gone_entry(os.path.join(path, name)) for name in stale]
        return Entries([there[name] for name in there if name in shown] + gone)

    def listdir(path: Any = ".") -> list[str]:
        if not (folder := late.path(path)):
            return NAMES_OF(path)
        _refuse_hidden(late, folder)
        shown, stale = late.listed(folder, iter(NAMES_OF(path)))
        return [*shown, *stale]

    os.scandir, os.listdir = scandir, listdir


def _refuse_hidden(late: LateFolder, path: str) -> None:
    if path and late.is_hidden(path):
        raise FileNotFoundError(2, "No such file or directory (not shown yet)", path)


def _gone_entry(path: str) -> Any:
    return SimpleNamespace(
        name=os.path.basename(path),
        path=path,
        is_dir=lambda **_: "." not in os.path.basename(path).removesuffix(".partial"),
        is_symlink=lambda: False,
        is_file=lambda **_: True,
    )


def _reading(late: LateFolder, function: Callable[..., Any]) -> Callable[..., Any]:
    def read(path: Any, *arguments: Any, **options: Any) -> Any:
        where = "" if options.get("dir_fd") is not None else late.path(path)
        writes = _writes(arguments, options)
        if where and writes:
            _refuse_hidden(late, os.path.dirname(where))
            is_new = not _is_there(where)
            opened = function(path, *arguments, **options)
            if is_new:
                late.tell(where)
            return opened
        _refuse_hidden(late, where)
        return function(path, *arguments, **options)

    return read


def _is_there(path: str) -> bool:
    try:
        STAT(path)
    except FileNotFoundError:
        return False
    return True


def _writes(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    how = options.get("mode", options.get("flags", arguments[0] if arguments else "r"))
    if isinstance(how, int):
        return bool(how & os.O_CREAT)
    return isinstance(how, str) and any(letter in how for letter in "wax")


def _changing(late: LateFolder, function: Callable[..., Any], *, is_gone: bool) -> Callable[..., Any]:
    def change(path: Any, *arguments: Any, **options: Any) -> Any:
        where = "" if options.get("dir_fd") is not None else late.path(path)
        _refuse_hidden(late, os.path.dirname(where) if where else "")
        done = function(path, *arguments, **options)
        if where:
            late.tell(where, is_gone=is_gone)
        return done

    return change


def _renaming(late: LateFolder, function: Callable[..., Any], *, is_link: bool) -> Callable[..., Any]:
    def rename(source: Any, target: Any, *arguments: Any, **options: Any) -> Any:
        _refuse_hidden(late, late.path(source))
        done = function(source, target, *arguments, **options)
        late.tell_renamed("" if is_link else late.path(source), late.path(target))
        return done

    return rename


if folder := os.environ.get("LATE_FOLDER"):
    install(LateFolder(folder, float(os.environ["LATE_SECONDS"]), os.environ["LATE_JOURNAL"]))
