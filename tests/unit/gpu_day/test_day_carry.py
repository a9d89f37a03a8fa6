"""What `make gpu-day` packs: wheels in the versions of this environment, and no more than a machine takes."""

import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.gpu_day import carry

MIB = 2**20


def sized(path: Path, count: int) -> None:
    """A file of so many bytes that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(count)


def packed(monkeypatch: pytest.MonkeyPatch, out: Path, wheels: int, shards: int, *more: str) -> None:
    """Pack wheels and shards of so many bytes in place of real ones."""
    monkeypatch.setattr(carry, "fetch_wheels", lambda folder, python: sized(folder / "a.whl", wheels))
    monkeypatch.setattr(carry, "prepare", lambda folder, source: sized(folder / "short/a.tar", shards))
    monkeypatch.setattr(carry, "prepare_members", lambda folder, maskmill: sized(folder / "settings.json", 0))
    monkeypatch.setattr("sys.argv", ["carry", f"--out={out}", *more])
    carry.main()


@pytest.mark.parametrize(
    ("wheels", "shards", "fits"),
    [
        (24 * MIB, 40 * MIB, True),
        (24 * MIB + 1, 40 * MIB, False),
        (1, 45_000_000, True),
        (1, 45_000_001, False),
    ],
)
def test_no_more_is_left_than_a_machine_takes(
    wheels: int, shards: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fits:
        packed(monkeypatch, tmp_path / "out", wheels, shards)
    else:
        with pytest.raises(SystemExit, match=r"^more than 64 MiB, or 45 MB of shards: take less text$"):
            packed(monkeypatch, tmp_path / "out", wheels, shards)


def test_what_studies_read_counts_and_an_earlier_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sized(tmp_path / "out/wheels/old.whl", 65 * MIB)
    sized(tmp_path / "mine/CoLA/dev.tsv", 2 * MIB)
    packed(monkeypatch, tmp_path / "out", 3 * MIB, 5 * MIB, f"--tasks={tmp_path}/mine")
    assert capsys.readouterr().out == f"{tmp_path}/out: 10.0 MiB, of it 7.3 MB shards\n"
    assert (tmp_path / "out/tasks/CoLA/dev.tsv").is_file()


def test_every_wheel_has_the_version_that_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    carry.fetch_wheels(tmp_path / "wheels", "3.12")
    wheel, download = commands
    assert wheel[:3] == [sys.executable, "-m", "pip"]
    assert str(carry.ROOT) in wheel
    asked = [word for word in wheel + download if "==" in word and not word.startswith("-")]
    assert asked == [f"{name}=={version(name)}" for name in (*carry.PURE, *carry.COMPILED)]
    pins = dict(each.split("==") for each in asked)
    for name in ("maskmill", *pins):
        for needed in map(Requirement, requires(name) or []):
            carried = pins.get(canonicalize_name(needed.name))
            if carried and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
                assert needed.specifier.contains(carried), f"{name} needs {needed}"
    assert "--python-version=3.12" in download


def test_a_package_that_is_missing_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "PURE", ["no-such-package"])
    with pytest.raises(SystemExit, match=r"^no-such-package: is not installed here"):
        carry.fetch_wheels(tmp_path / "wheels", "3.12")
