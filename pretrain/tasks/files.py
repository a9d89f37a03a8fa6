"""Read the files of tasks, divide their examples, write predictions, and name where the files are published.

Rows are those of tab-separated files and of JSON lines. Every message has the number of the line.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256
from pretrain.tasks.settings import EvaluationSettings

# Name where the files of each task are published.


GLUE = "GLUE (Wang et al. 2019), gluebenchmark.com/tasks"
SQUAD = "rajpurkar.github.io/SQuAD-explorer"
SOURCES: dict[str, str] = {
    **dict.fromkeys(("cola", "sst2", "qqp", "stsb", "mnli", "rte", "wnli"), GLUE),
    "mrpc": f"{GLUE}; its texts are Microsoft's paraphrase corpus (Dolan and Brockett 2005), split by GLUE's ids",
    "qnli": f"{GLUE}; the second version, of 2019, has 104,743 training examples",
    "ax": f"{GLUE}; diagnostic-full.tsv has the labels",
    "snli": "SNLI (Bowman et al. 2015), nlp.stanford.edu/projects/snli",
    "swag": "SWAG (Zellers et al. 2018), github.com/rowanz/swagaf",
    "codah": "CODAH (Chen et al. 2019), github.com/Websail-NU/CODAH",
    "squad1": f"SQuAD 1.1 (Rajpurkar et al. 2016), {SQUAD}",
    "squad2": f"SQuAD 2.0 (Rajpurkar et al. 2018), {SQUAD}",
    "conll2003": "CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), www.clips.uantwerpen.be/conll2003/ner",
    "uner": "Universal NER (Mayhew et al. 2024), www.universalner.org",
    "wnut17": "WNUT 2017 (Derczynski et al. 2017), noisy-text.github.io/2017/emerging-rare-entities.html",
    "ud": "Universal Dependencies (de Marneffe et al. 2021), universaldependencies.org",
    "blimp": "BLiMP (Warstadt et al. 2020), github.com/alexwarstadt/blimp",
}
"""Task -> publication and official page. Tasks of a user's own files have none; which release files are of is known by
their hashes."""


# Find the files of a task, and divide and draw from their examples.


SPLITS = ("train", "dev", "test")
"""Names of the splits, of which the last is scored with settings.test."""


@dataclass(frozen=True)
class Split:
    """The examples of one file."""

    name: str
    items: Sequence[Any]
    skipped: int = 0
    """Rows left out: malformed or without a label in the official file itself..."""
    unlabelled: int = 0
    """... and how many of these have no label."""
    is_carved: bool = False
    """Whether these are training examples taken from the dev file."""


def evenly_spaced(count: int, part: float) -> NDArray[np.int64]:
    """Return the indices of this share of `count` items, at least one, spread over them.

    >>> evenly_spaced(10, 0.3).tolist()
    [0, 4, 9]
    """
    return np.linspace(0, count - 1, max(1, round(part * count))).round().astype(np.int64)


def hashes(paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file that is there, by its name."""
    return {path.name: file_sha256(path) for path in paths if path.is_file()}


def not_empty(split: Split, where: Path) -> Split:
    """Return the split. Raises UserError where it has no example."""
    if not split.items:
        raise UserError("has no example", where=where, expected="at least one to train on and to score")
    return split


def carve(split: Split, share: float, groups: Sequence[str] = ()) -> tuple[Split, Split]:
    """Divide a split in two: examples to train on, and the rest to score. Which are which depends on nothing but their
    number, so that all seeds and encoders are scored on the same ones. `groups`: of each example, a name; those of one
    name stay together, and it is the names that are divided."""
    names = list(dict.fromkeys(groups)) or [str(i) for i in range(len(split.items))]
    order = np.random.Generator(np.random.PCG64(20181011)).permutation(len(names))
    chosen = {names[i] for i in order[: round(share * len(order))].tolist()}
    owners = groups or names
    train = [item for item, name in zip(split.items, owners, strict=True) if name in chosen]
    rest = [item for item, name in zip(split.items, owners, strict=True) if name not in chosen]
    return Split("train", train), replace(split, items=rest)


def one_file(folder: Path, pattern: str) -> Path:
    """Return the file of this name pattern. Raises UserError unless there is exactly one."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) != 1:
        raise UserError(
            f"has {len(found) or 'no'} files {pattern}",
            where=folder,
            expected="exactly one",
            remedy="--data names the folder with the task's files",
        )
    return found[0]


def with_training(
    train: Split | None, dev: Split, missing: Path, settings: EvaluationSettings, groups: Sequence[str] = ()
) -> tuple[Split, Split, list[str]]:
    """Return what to train on, what to score, and a note: without a training file, `dev` is divided as settings.carve
    says. Raises UserError where it says nothing, unless nothing is trained. `missing`: the training file;
    `groups` as in `carve`."""
    if train is not None:
        return train, dev, []
    if not settings.epochs:
        return Split("train", []), dev, []
    if not settings.carve:
        raise UserError(
            "no such file",
            where=missing,
            remedy=f"carve=0.5 trains on half of {dev.name} and scores the other half",
        )
    train, rest = carve(dev, settings.carve, groups)
    if not train.items or not rest.items:
        raise UserError(
            f"leaves {len(train.items)} of {len(dev.items)} examples to train on and {len(rest.items)} to score",
            where=f"carve={settings.carve:g}",
            expected="some of both",
        )
    train = replace(train, is_carved=True)
    return train, rest, [f"no {missing.name}: {settings.carve:.0%} of {dev.name} trained on, the rest scored"]


def drawn(split: Split, wanted: float, seed: int) -> Split:
    """Return so many examples of a split, or this share of them, at least one, if `wanted` is below 1; all for 0. They
    are drawn by the seed alone and in the split's order."""
    count = max(1, round(wanted * len(split.items))) if 0 < wanted < 1 else int(wanted)
    if not count or count >= len(split.items):
        return split
    order = np.random.Generator(np.random.PCG64([20181011, seed])).permutation(len(split.items))[:count]
    return replace(split, items=[split.items[i] for i in sorted(order.tolist())])


# Read rows, and write predictions as JSON lines.


Row = dict[str, str]
EXACT = 2**53
"""Below this every whole number is a float."""
SHOWN = 10
"""Names listed in a message."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ESCAPES = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL)
"""Escape sequences of JSON: two halves of a surrogate pair, one half, any other."""


@dataclass(frozen=True)
class Table:
    """The rows of a file, each with the number of its line."""

    path: Path
    rows: list[Row]
    lines: list[int]
    skipped: int = 0
    """Lines between rows that are no row: empty, or too short where the official file has such."""

    def column(self, names: Sequence[str], remedy: str = "") -> Iterator[str]:
        """Yield one column: of the first row that has any of `names` the first of these. Raises UserError where no row
        has one of them, or a row has no value."""
        first = self.rows[0] if self.rows else {}
        name = next((name for row in self.rows for name in names if name in row), None)
        if self.rows and name is None:
            raise UserError(
                f"has no column {' or '.join(names)}",
                where=at_line(self.path, self.lines[0]),
                expected=f"one of {some(list(first))}",
                remedy=remedy,
            )
        for line, row in zip(self.lines, self.rows, strict=True):
            if name not in row:
                raise UserError(
                    f"has no {name}", where=at_line(self.path, line), expected="a text or a number"
                )
            yield row[name]


def at_line(path: Path, line: int) -> str:
    """Return where a message points to."""
    return f"{path}, line {line}"


def some(names: Sequence[str]) -> str:
    """Return names in a list that is not too long to be read.

    >>> some(["0", "1"]), some("abcdefghijklm")
    ('0, 1', 'a, b, c, d, e, f, g, h, i, j and 3 more')
    """
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def read_text(path: Path) -> str:
    """Return what a UTF-8 file holds, without a byte order mark. Raises UserError for a file that is missing or not
    UTF-8."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            "no such file", where=path, remedy="--data names the folder with the task's files"
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"is not UTF-8: {error.reason} at byte {error.start}",
            where=at_line(path, line),
            remedy="convert the file to UTF-8",
        ) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Only a line feed ends one: texts hold other separators. Raises UserError as
    `read_text` does."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if not lines[-1] else lines)]


def parsed_json(text: str, path: Path, line: int = 1) -> Any:
    """Return the value of a JSON text that begins at this line of a file. Raises ValueError and RecursionError as
    json.loads does, and UserError for half a surrogate pair: it is no character, and no tokenizer takes it."""
    value = json.loads(text)
    for found in ESCAPES.finditer(text) if SURROGATE.search(text) else ():
        if found["half"]:
            raise UserError(
                f"has {found['half']}, half of a character",
                where=at_line(path, line + text.count("\n", 0, found.start())),
                expected=r"both halves, as \ud83d\ude00",
                remedy="remove it: the text was cut there",
            )
    return value


def read_tsv(path: Path, columns: list[str] | None = None, short_rows: bool = False) -> Table:
    """Return the rows of a tab-separated file, where quotes are characters like any other. `columns`: their names in a
    file without a first line of names. A row with another number of columns than there are names is an error; with
    `short_rows` one with fewer is skipped and counted: the official files of QQP have some. Empty lines between rows
    are skipped and counted."""
    lines = read_lines(path)
    while lines and not lines[-1]:
        lines.pop()
    if columns is None:
        if not lines:
            raise UserError("is empty", where=path, expected="a line with the names of the columns")
        columns, lines = _distinct(lines[0].split("\t"), path), lines[1:]
        first = 2
    else:
        first = 1
    rows, numbers, skipped = [], [], 0
    for number, line in enumerate(lines, first):
        cells = line.split("\t")
        if len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
            numbers.append(number)
        elif not line or (short_rows and len(cells) < len(columns)):
            skipped += 1
        else:
            raise UserError(
                f"has {len(cells)} columns",
                where=at_line(path, number),
                expected=f"{len(columns)}, separated by tabs: {some(columns)}",
            )
    return Table(path, rows, numbers, skipped)


def _distinct(names: list[str], path: Path) -> list[str]:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(
            f"has several columns of the same name: {some(twice)}",
            where=at_line(path, 1),
            remedy="rename all but one",
        )
    return names


def read_json_lines(path: Path) -> Table:
    """Return the objects of a JSON lines file, their texts, numbers and truth values as texts, 1.0 as 1; null, lists,
    objects, and what JSON has no number for (NaN, Infinity) are no values. Empty lines between rows are skipped and
    counted."""
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    rows, numbers = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parsed_json(line, path, number)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError("is no JSON object", where=at_line(path, number), expected='{"text": ..., ...}')
        rows.append({str(key): _text(value) for key, value in row.items() if _is_value(value)})
        numbers.append(number)
    return Table(path, rows, numbers, len(lines) - len(rows))


def predicted_lines(labels: Sequence[Any], predicted: Sequence[Any]) -> dict[str, str]:
    """Return a file of JSON lines, an object for each example in its order, and under which name.

    >>> predicted_lines(["yes"], ["no"])
    {'predictions.jsonl': '{"index": 0, "label": "yes", "predicted": "no"}\\n'}
    """
    rows = [
        {"index": i, "label": label, "predicted": said}
        for i, (label, said) in enumerate(zip(labels, predicted, strict=True))
    ]
    return {"predictions.jsonl": "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)}


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        value = int(value)  # 1 and 1.0 are one number, and one label
    return value if isinstance(value, str) else json.dumps(value)
