"""results.json: what parts of earlier calls and of this one have found."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "results.json"
NO_TIME = "no time left"
"""The status of a part that was not begun."""
_SAME = ("gpu", "torch", "deepspeed")


def of_machine(results: dict[str, Any]) -> dict[str, str]:
    """Return what has to be the same where figures are in one table."""
    return {name: str(results["machine"][name]) for name in _SAME}


def read(folder: Path) -> dict[str, Any]:
    """Return the machine and the parts that a folder has."""
    return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))


def begun(folder: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """Return this machine with the parts that earlier calls left in the folder. Raises SystemExit where those are of
    another machine."""
    results: dict[str, Any] = {"machine": machine, "parts": {}}
    if not (folder / FILE).is_file():
        return results
    before = read(folder)
    if of_machine(before) != of_machine(results):
        raise SystemExit(
            f"{folder / FILE}: of another machine, {of_machine(before)} (expected: {of_machine(results)}; name "
            "another folder)"
        )
    return results | {"parts": before["parts"]}


def merge(parts: dict[str, Any], later: dict[str, Any]) -> None:
    """Put later parts in the place of earlier ones, unless there was no time for them."""
    for name, part in later.items():
        if part["status"] != NO_TIME or name not in parts:
            parts[name] = part


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write them at once: a machine that is taken away leaves the old or the new file."""
    partial = folder / f"{FILE}.partial"
    partial.write_text(json.dumps(results, indent=1), encoding="utf-8")
    os.replace(partial, folder / FILE)


def clear(folder: Path, names: Iterable[str]) -> None:
    """Remove the files and folders of these names, or patterns, from the folder."""
    for name in names:
        for path in folder.glob(name):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
