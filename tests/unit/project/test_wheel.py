"""The package as `pip install .` and an index have it: source archive and wheel, built without a network, hold every
file of the packages and work from any folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.command_line import ROOT

PACKAGES = ("data_pipeline", "pretrain", "launch", "maskmill.py")
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, f'build_{sys.argv[1]}')(sys.argv[2])"


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).exists()}


def files_at(path: str) -> set[str]:
    """The file itself, or, where it leads to a folder elsewhere in the repository, that folder's files."""
    if not (ROOT / path).is_dir():
        return {path}
    target = os.path.relpath((ROOT / path).resolve(), ROOT)
    return {path + name.removeprefix(target) for name in tracked(target)}


def build(kind: str, source: Path, out: Path) -> Path:
    """The one file that pyproject.toml's own backend makes of `source`."""
    out.mkdir()
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, of the files that git knows, in a folder of their own: nothing else gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked("pyproject.toml", "README.md", "LICENSE", "slurm", *PACKAGES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
    return build("sdist", source, tmp_path_factory.mktemp("sdist") / "out")


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source archive makes: what is missing there is missing here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", source, folder / "out")


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as zipped:
        held = {name for name in zipped.namelist() if ".dist-info/" not in name}
        information = [name for name in zipped.namelist() if name not in held]
    assert held == {name for path in tracked(*PACKAGES) for name in files_at(path)}
    assert {"launch/recipes/demo.yaml", "launch/recipes/corpus/factbook.jsonl.zst"} <= held
    assert any(name.endswith("/LICENSE") for name in information)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed into, by pip, without what it depends on."""
    folder = tmp_path_factory.mktemp("installed") / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(wheel)], check=True)
    return folder


def run(installed: Path, folder: Path, *words: str) -> str:
    """The installed command, in another folder."""
    result = subprocess.run(
        [str(installed / "bin/maskmill"), *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_installed_command_works_from_another_folder(installed: Path, tmp_path: Path) -> None:
    assert "train.global_batch = " in run(installed, tmp_path, "settings", "train.")
    assert "parameters" in run(installed, tmp_path, "plan", "demo")
    code = "from launch.recipe import load_config; print(*load_config('demo', []).data.sources)"
    text = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert text.startswith(str(installed)), "another installation hides the wheel's"
    assert Path(text).stat().st_size > 1_000_000
