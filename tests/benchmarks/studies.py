"""What the studies share: text in, shards out; runs of `maskmill`; results that outlive an interruption.

Text and data settings are the demo's unless told otherwise: on novels a model as small as these stays for hours where
only the frequencies of words are learnt, and there recipes cannot be compared.
"""

import argparse
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from data_pipeline.io.files import write_whole
from tests.command_line import ROOT, command, environ

RECIPE = "demo"
"""The recipe that every study extends."""


class Failed(RuntimeError):
    """A run ended with an error; `output` is what it wrote."""

    def __init__(self, command: list[str], code: int, output: str) -> None:
        super().__init__(f"exit code {code}: {' '.join(command)}\n{output[-2000:]}")
        self.output = output


def run(
    command: list[str], log: Path, environment: dict[str, str] | None = None, wait: float | None = None
) -> None:
    """Runs `command` to its end, what it writes into the file `log`. Raises Failed where it does not end well."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begins = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        done = subprocess.run(
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=environ(**environment or {}),
            timeout=wait,
            check=False,
        )
    if done.returncode:
        with log.open("rb") as file:
            file.seek(begins)
            raise Failed(command, done.returncode, file.read().decode(errors="replace"))


def study_parser(
    description: str | None, name: str, picture: Path, *, layers: int, hidden: int, rates: tuple[float, ...]
) -> argparse.ArgumentParser:
    """The options that all studies have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--source", default="", help="the text: what data.sources may name; default: the demo's"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs") / name)
    parser.add_argument("--draw", type=Path, help="a result.json: print its table and draw its picture again")
    parser.add_argument("--picture", type=Path, default=picture, help="where the SVG goes")
    parser.add_argument("--length", type=int, default=64, help="tokens of the longest sequence")
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--hidden", type=int, default=hidden)
    parser.add_argument("--vocabulary", type=int, default=4000, help="entries, learnt from the text")
    parser.add_argument("--held-out", type=float, default=0.03, help="share of the documents")
    parser.add_argument("--dupe-factor", type=int, default=3, help="maskings of each text")
    parser.add_argument("--rates", type=float, nargs="+", default=list(rates), help="learning rates")
    return parser


def data_settings(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Settings of the data, which preparation and training have in common."""
    source = arguments.source
    text = [f"data.sources={source if '://' in source else Path(source).resolve()}"] if source else []
    return [
        *text,
        f"data.vocab={folder}/vocabulary",
        f"data.out={folder}/shards",
        f"data.held_out={arguments.held_out}",
        f"data.sequence_length={arguments.length}",
        f"data.dupe_factor={arguments.dupe_factor}",
    ]


def prepare(folder: Path, settings: list[str], vocabulary: int) -> None:
    """Learns a vocabulary of so many entries and writes shards; what is there already stays."""
    log = folder / "prepare.log"
    if not (folder / "vocabulary/tokenizer.json").is_file():
        run(command("vocab", RECIPE, *settings, f"vocabulary.size={vocabulary}"), log)
    run(command("prepare", RECIPE, *settings), log)


class Results:
    """A JSON file with the set-up of a study and what was measured so far, by name."""

    def __init__(self, path: Path, setup: dict[str, Any]) -> None:
        """Goes on with what the file holds. Raises SystemExit where that was measured with another set-up."""
        self._path = path
        self._lock = threading.Lock()
        self.values: dict[str, Any] = {"setup": setup, "measured": {}}
        if path.is_file():
            self.values = load(path)
            differing = [key for key in setup if self.values["setup"].get(key) != setup[key]]
            if differing:
                raise SystemExit(f"{path}: measured with other {', '.join(differing)}: take another --folder")

    @property
    def measured(self) -> dict[str, Any]:
        return self.values["measured"]

    def add(self, name: str, value: dict[str, Any]) -> None:
        """Keeps `value`; the file is whole at any time."""
        with self._lock:
            self.measured[name] = value
            self.save()

    def save(self) -> None:
        write_whole(self._path, json.dumps(self.values, indent=1).encode())


def load(path: Path) -> dict[str, Any]:
    """What a Results file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
