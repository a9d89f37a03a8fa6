"""Compiled code, which is executed as it is loaded, is kept only where nobody but its user may write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.io.caches import choose_cache, compile_caches, make_private, not_private
from tests.command_line import ROOT, environ

is_root = pytest.mark.skipif(os.getuid() != 0, reason="gives folders to another user")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "volume" / "cache"
    folder.mkdir(parents=True)
    return folder


def test_a_folder_of_this_user_alone_is_private(cache: Path) -> None:
    assert not_private(cache) == ""
    assert not_private(cache / "new" / "newer") == "", "which has yet to be created"
    (cache / "module.nbi").write_bytes(b"")
    assert not_private(cache) == ""


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o733])
def test_a_folder_that_others_may_write_to_is_not(cache: Path, mode: int) -> None:
    cache.chmod(mode)
    assert not_private(cache) == f"others may write to {cache}"
    assert not_private(cache / "new") == f"others may write to {cache}"


def test_nor_is_one_below_a_folder_that_others_may_write_to(cache: Path) -> None:
    cache.parent.chmod(0o777)
    assert not_private(cache) == f"others may write to {cache.parent}", "they may rename it"
    cache.parent.chmod(0o1777)
    assert not_private(cache) == "", "as in /tmp, they may not"


def test_nor_is_one_with_a_file_that_others_may_write_to(cache: Path) -> None:
    (cache / "module.nbi").write_bytes(b"")
    (cache / "module.nbi").chmod(0o666)
    assert not_private(cache) == f"others may write to {cache / 'module.nbi'}"


def test_a_link_is_as_private_as_what_it_leads_to(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cache)
    assert not_private(tmp_path / "link") == ""
    cache.chmod(0o777)
    assert not_private(tmp_path / "link") == f"others may write to {cache}"


@is_root
@pytest.mark.parametrize("which", ["cache", "parent", "inside"])
def test_a_folder_of_somebody_else_is_not_private(cache: Path, which: str) -> None:
    inside = cache / "module.nbi"
    inside.write_bytes(b"")
    place = {"cache": cache, "parent": cache.parent, "inside": inside}[which]
    os.chown(place, 54_321, 54_321)
    assert not_private(cache) == f"{place} belongs to user 54321"


def test_the_next_place_is_taken_and_the_reason_kept(cache: Path, tmp_path: Path) -> None:
    cache.chmod(0o777)
    chosen = choose_cache([cache, tmp_path / "own"])
    assert chosen is not None
    assert chosen.folder == tmp_path / "own"
    assert chosen.why == f"not in {cache}: others may write to {cache}"
    make_private(chosen.folder)
    assert chosen.folder.stat().st_mode & 0o777 == 0o700
    assert choose_cache([cache]) is None


@pytest.mark.parametrize("name", ["NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_each_cache_moves_with_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("USER", "anybody")
    cache.chmod(0o777)
    said: list[str] = []
    found = compile_caches({name: str(cache), "HOME": str(tmp_path / "home")}, say=said.append)
    assert found[name].startswith(str(tmp_path / "home/.cache/maskmill"))
    assert said == [f"compiled code is kept in {found[name]}, not in {cache}: others may write to {cache}"]
    assert (
        compile_caches({name: str(tmp_path / "own"), "HOME": str(tmp_path / "home")}, say=said.append).get(
            name
        )
        is None
    )


LOAD = "import data_pipeline.jit as jit; print(jit._COMPILED)"


def test_numba_takes_a_private_folder_and_says_so_once(cache: Path, tmp_path: Path) -> None:
    cache.chmod(0o777)
    here = environ(NUMBA_CACHE_DIR=str(cache), HOME=str(tmp_path / "home"))
    again = f"{LOAD}; import subprocess, sys; subprocess.run([sys.executable, '-c', {LOAD!r}], check=True)"
    # as installed by the system: the folder beside the modules takes no files
    closed = (
        "import os; real = os.access; os.access = lambda p, m: '__pycache__' not in str(p) and real(p, m); "
    )
    done = subprocess.run(
        [sys.executable, "-c", closed + again], env=here, cwd=ROOT, capture_output=True, text=True, check=True
    )
    folder = tmp_path / "home/.cache/maskmill"
    assert done.stderr == (
        f"maskmill: compiled code is kept in {folder}, not in {cache}: others may write to {cache}\n"
    )
    assert all(line.startswith(str(folder)) for line in done.stdout.splitlines())
    assert list(cache.iterdir()) == []
