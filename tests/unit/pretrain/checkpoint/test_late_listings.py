"""A network folder that lists new entries late, or in another order: the newest checkpoint is found all the same."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.store import LATEST, checkpoints, newest_checkpoint
from tests.factories.checkpoints import is_right, save


class Entries(list[Any]):
    """What os.scandir returns, as far as it is used."""

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@contextmanager
def listed(folder: Path, names: list[str]) -> Iterator[None]:
    """Listings of `folder` have these names, in this order, whatever is there."""
    scan, names_of = os.scandir, os.listdir

    def is_it(path: Any) -> bool:
        return not isinstance(path, int) and Path(path) == folder

    def scandir(path: Any = ".") -> Any:
        if not is_it(path):
            return scan(path)
        there = {entry.name: entry for entry in scan(path)}
        return Entries(there[name] for name in names if name in there)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        patch.setattr(os, "listdir", lambda path=".": [*names] if is_it(path) else names_of(path))
        yield


@pytest.mark.parametrize("names", [[], ["step-00000005"], ["latest", "step-00000005"]])
def test_a_checkpoint_that_is_not_listed_yet_is_found(names: list[str], tmp_path: Path) -> None:
    save(tmp_path, 5)
    with listed(tmp_path / "checkpoints", names):
        save(tmp_path, 10)
        found = newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, is_right(found)) == (10, True)


def test_the_order_of_a_listing_is_of_no_importance(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step)
    names = [f"step-{step:08d}" for step in (10, 15, 5)]
    with listed(tmp_path / "checkpoints", names):
        assert [path.name for path in checkpoints(tmp_path)] == sorted(names)


@pytest.mark.parametrize("text", ["", "step-00000099", "../step-00000005", "x", "/etc"])
def test_what_latest_names_counts_only_if_it_is_whole(text: str, tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / "checkpoints" / LATEST).write_text(text)
    (tmp_path / "step-00000005").symlink_to(tmp_path / "checkpoints" / "step-00000005")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005"]
