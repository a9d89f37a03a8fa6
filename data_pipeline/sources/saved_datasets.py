"""Choose which files are read of folders that Hugging Face `datasets` wrote.

`datasets` leaves more in a folder than the data set: `.map()`, `.sort()` and `.filter()` put their caches beside the
files, and a DatasetDict holds every split. Of a folder with one of these descriptions nothing is read but

    dataset_dict.json   a saved DatasetDict: the folder of the split `train`, or of the one that data.split names
    state.json          a saved Dataset: the files that it names
    dataset_info.json   alone, the library's own cache: the files of that split, NAME-SPLIT[-NNNNN-of-NNNNN].arrow

The outermost description decides about everything below its folder. What is taken and what is left is said.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.sources.passed_over import PassedOver, some

TRAIN = "train"
"""The split that is read unless data.split names another."""
DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
LARGEST_DESCRIPTION = 64 << 20
"""Maximum bytes of a description: dataset_info.json may describe many features."""

_INDICES = ("_indices_data_files", "_indices_files")
"""Where versions before 2.0 named the rows that a selection holds."""

Read = Callable[[str, int], bytes]
"""Returns at most so many bytes of a file."""


def described_files(
    paths: Sequence[str],
    read: Read,
    *,
    split: str,
    name_of: Callable[[str], str],
    passed_over: PassedOver,
    described: Iterable[str] = (),
) -> list[str]:
    """Return those of the sorted `paths` that are read. `read` gives the content of a description, `name_of` what a
    folder is called in lines. `described`: descriptions that exist and are not among `paths`, which a glob has matched;
    then files that a description names may be missing.

    Raises UserError for a description that cannot be read, names a file that is not there, a selection of rows, or
    lacks the split."""
    chosen = _Chosen(paths, read, split or TRAIN, name_of, passed_over, partial=bool(described))
    found = [path.rpartition("/") for path in {*paths, *described}]
    kinds = (DICT, STATE, INFO)
    listed = sorted((folder + "/", kinds.index(name)) for folder, _, name in found if name in kinds)
    outer = ""
    for folder, kind in listed:  # an outer folder comes before those below it
        inside = bool(outer) and folder.startswith(outer)
        if (not inside or folder in chosen.follow) and chosen.decide(kinds[kind], folder):
            outer = outer if inside else folder
            chosen.follow.discard(folder)
    return [path for path in paths if path not in chosen.gone]


class _Chosen:
    """Decides about the files of one folder after another."""

    def __init__(
        self,
        paths: Sequence[str],
        read: Read,
        split: str,
        name_of: Callable[[str], str],
        passed_over: PassedOver,
        *,
        partial: bool,
    ) -> None:
        self._paths, self._read, self._split = paths, read, split
        self._name_of, self._passed_over, self._partial = name_of, passed_over, partial
        self.gone: set[str] = set()
        self.follow: set[str] = set()
        """Folders of chosen splits, whose own descriptions are still to be followed."""

    def decide(self, name: str, folder: str) -> bool:
        """Take from the folder what its description `name` names; False if it describes no data set."""
        start, stop = (
            bisect_left(self._paths, edge) for edge in (folder, folder[:-1] + "0")
        )  # "0" follows "/"
        below = [path for path in self._paths[start:stop] if path not in self.gone]
        beside = [path for path in below if "/" not in path.removeprefix(folder)]
        found = self._described(folder + name)
        rule = {DICT: self._dict, STATE: self._state, INFO: self._cache}[name]
        if not rule(folder, found, below):
            tables = any(path.endswith(".arrow") for path in (below if name == DICT else beside))
            if name == INFO or not (tables or folder + INFO in beside):
                return False
            raise UserError("does not describe a saved data set", where=folder + name, remedy="save it again")
        self.gone |= {path for path in below if path.rpartition("/")[2] in (DICT, STATE, INFO)}
        return True

    def _dict(self, folder: str, found: dict[str, Any], below: list[str]) -> bool:
        splits = found.get("splits")
        if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
            return False
        split, own = self._split, f"{folder}{self._split}/"
        self._check_split(folder, splits)
        if not self._partial and own + STATE not in below:
            raise UserError(
                f"names the split {split}, which is not there", where=folder + DICT, remedy="save it again"
            )
        left = [path for path in below if not path.startswith(own)]
        self.gone |= {*left}
        self.follow.add(own)
        others = [name for name in splits if name != split]
        self._say(folder, f"the split {split}" + (f", not {some(others)} (data.split)" if others else ""))
        return True

    def _state(self, folder: str, found: dict[str, Any], below: list[str]) -> bool:
        listed = found.get("_data_files")
        if not isinstance(listed, list):
            return False
        names = [file.get("filename") if isinstance(file, dict) else None for file in listed]
        if not all(isinstance(name, str) for name in names):
            return False
        wanted = {f"{folder}{name}" for name in names}
        if (missing := sorted(wanted - {*below})) and not self._partial:
            name = missing[0].removeprefix(folder)
            raise UserError(f"names {name}, which is not there", where=folder + STATE, remedy="save it again")
        if any(found.get(key) for key in _INDICES) or any(f.get("skip") or f.get("take") for f in listed):
            raise UserError(
                "the data set was saved as a selection of rows",
                where=folder.rstrip("/"),
                remedy="save it again after flatten_indices()",
            )
        self._take(folder, below, wanted, "that state.json names")
        return True

    def _cache(self, folder: str, found: dict[str, Any], below: list[str]) -> bool:
        """The library's own cache holds a file for each split and the caches of `.map()`."""
        splits = found.get("splits")
        tables = [path for path in below if path.endswith(".arrow")]
        if not isinstance(splits, dict) or not splits or not tables:
            return False
        ours = re.compile(rf"(?:.*-)?{re.escape(self._split)}(?:-\d+-of-\d+)?\.arrow")
        self._check_split(folder, list(splits))
        wanted = {path for path in tables if ours.fullmatch(path.removeprefix(folder))}
        if not wanted:
            return False
        self._take(folder, below, wanted, f"of the split {self._split}")
        return True

    def _take(self, folder: str, below: list[str], wanted: set[str], which: str) -> None:
        left = [path for path in below if path not in wanted]
        self.gone |= {*left}
        others = [p.removeprefix(folder) for p in left if p.rpartition("/")[2] not in (DICT, STATE, INFO)]
        count = len(wanted & {*below})
        self._passed_over.unlisted += len(others)
        files = f"{count:,} file{'s' * (count != 1)} {which}"
        self._say(folder, files + (f", not {len(others):,} beside: {some(others)}" if others else ""))

    def _check_split(self, folder: str, splits: list[str]) -> None:
        self._passed_over.has_splits = True
        if self._split not in splits:
            raise UserError(
                f"the data set has no split {self._split!r}",
                where=folder.rstrip("/"),
                expected=f"one of {', '.join(splits)}",
                remedy="set data.split",
            )

    def _say(self, folder: str, what: str) -> None:
        self._passed_over.saved.append(f"{self._name_of(folder.rstrip('/'))}: {what}")

    def _described(self, path: str) -> dict[str, Any]:
        data = self._read(path, LARGEST_DESCRIPTION + 1)
        try:
            found = json.loads(data) if len(data) <= LARGEST_DESCRIPTION else None
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
