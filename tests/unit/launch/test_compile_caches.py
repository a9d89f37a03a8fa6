"""Where what is compiled stays: in the images beside numba's cache, and for a user without a name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli as module
from launch.cli import CACHES, compile_caches
from tests.command_line import environ

NAMELESS = 54_321


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has no name: neither in the environment nor in /etc/passwd."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", *CACHES, "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # raises KeyError, as the real one


def test_in_an_image_they_are_beside_numbas(tmp_path: Path) -> None:
    image = {"NUMBA_CACHE_DIR": str(tmp_path / ".cache/numba"), "HOME": "/nowhere"}
    assert compile_caches(image) == {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / ".cache/inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / ".cache/triton"),
    }
    assert not (tmp_path / ".cache").exists(), "whoever compiles creates them"
    assert compile_caches(image | {"TRITON_CACHE_DIR": "/mine"}).keys() == {"TORCHINDUCTOR_CACHE_DIR"}


def test_elsewhere_a_user_with_a_name_has_torchs_and_tritons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "anybody")
    assert compile_caches({"HOME": "/home/anybody"}) == {}


def test_a_user_without_a_name_has_them_below_home(nameless: None, tmp_path: Path) -> None:
    assert set(compile_caches({"HOME": str(tmp_path)}).values()) == {
        str(tmp_path / ".cache/maskmill" / name) for name in CACHES.values()
    }


def test_a_folder_that_takes_no_files_is_passed_over(
    nameless: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    refused, access = {tmp_path / "work"}, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path not in refused and access(path, mode))
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    image = {"NUMBA_CACHE_DIR": str(tmp_path / "work/.cache/numba"), "HOME": str(tmp_path / "home")}
    assert compile_caches(image)["TRITON_CACHE_DIR"] == str(tmp_path / "home/.cache/maskmill/triton")
    own = tmp_path / "tmp" / f"maskmill-{os.getuid()}"
    assert compile_caches({"HOME": str(tmp_path / "work")})["TRITON_CACHE_DIR"] == str(own / "triton")
    own.mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: NAMELESS)
    (tmp_path / "tmp" / f"maskmill-{NAMELESS}").mkdir()  # named after this user, but not of this user alone
    (tmp_path / "tmp" / f"maskmill-{NAMELESS}").chmod(0o777)
    assert compile_caches({"HOME": str(tmp_path / "work")}) == {}


COMMAND = """
import os, pwd
pwd.getpwuid = {}.__getitem__
from launch import cli
cli.app = lambda **kwargs: None
cli.main()
print(*(os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")), sep="\\n")
"""


def test_a_command_of_a_user_without_a_name_sets_them_for_its_ranks(nameless: None, tmp_path: Path) -> None:
    here = environ(HOME=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / ".cache/maskmill" / name) for name in CACHES.values()]
