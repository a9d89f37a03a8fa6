"""Where what is compiled stays: in the images beside numba's cache, and for a user without a name."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io import caches
from data_pipeline.io.caches import CACHES, compile_caches
from launch import app, cli
from tests.command_line import command, environ

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
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
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


# Memory that ends is one line and exit code 2.


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
@pytest.mark.parametrize("kilobytes", [500_000, 900_000])
def test_too_little_address_space_is_said_before_work(verb: str, kilobytes: int, tmp_path: Path) -> None:
    arguments = command(verb, "demo", f"data.vocab={tmp_path}/vocab", f"data.out={tmp_path}/out")
    limited = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "bash", *arguments]
    done = subprocess.run(limited, env=environ(OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(
        f"maskmill: ulimit -v: allows {kilobytes * 1024 / 1e6:,.0f} MB (expected at least 1,000 MB"
    )
    assert not list(tmp_path.iterdir())


def too_large() -> None:
    np.empty(1 << 60, np.uint8)


def in_a_library() -> None:
    raise SystemError("error return without exception set")


@pytest.mark.parametrize(
    ("limit", "allowed"), [(1 << 31, "of which `ulimit -v` allows 2,147 MB "), (resource.RLIM_INFINITY, "")]
)
@pytest.mark.parametrize("ends", [too_large, in_a_library])
def test_memory_that_ends_is_one_line(
    ends, limit: int, allowed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(cli, "app", lambda **_: ends())
    monkeypatch.setattr(app.resource, "getrlimit", lambda _: (limit, limit))
    if ends is in_a_library and not allowed:
        with pytest.raises(SystemError):
            cli.main()
        return
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("maskmill: there is not enough memory")
    assert allowed in line
