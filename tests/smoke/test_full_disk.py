"""A disk that is full and a folder that may not be written to: one line, what was done stays, the same command goes on.

Real ones: a small tmpfs, in a mount namespace of its own, so that nobody else sees it and nothing is left."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT, Maskmill, setting, write_text

pytestmark = pytest.mark.slow

MAIN = """
set -eu
prepare() { "$PYTHON" -P -m launch.cli prepare demo "$@"; }
refused() { code=0; prepare "$@" 2>error.txt >/dev/null || code=$?; echo "code $code"; cat error.txt; }
"""


@pytest.fixture
def settings(tiny: list[str], tmp_path: Path) -> list[str]:
    """Enough text to fill a disk of a few megabytes."""
    write_text(tmp_path / "text.txt", documents=3000)
    return [
        *(s for s in tiny if not s.startswith(("data.sources=", "data.out=", "data.shard_tokens="))),
        f"data.sources={tmp_path}/text.txt",
        "data.shard_tokens=50000",
        "data.dupe_factor=2",
    ]


def in_namespace(script: str, settings: list[str], tmp_path: Path) -> list[str]:
    """The lines that `script` prints; it may mount what it likes. "$@" are the settings."""
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        MAIN + script,
        "bash",
        *settings,
    ]
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize(("room", "done_before"), [("200k", 0), ("1150k", 2), ("2700k", 4)])
def test_a_full_disk(
    settings: list[str], maskmill: Maskmill, tmp_path: Path, room: str, done_before: int
) -> None:
    """Full while reading, gathering, or writing the second shard; then there is room again."""
    maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/expected")
    script = f"""
    mkdir disk
    mount -t tmpfs -o size={room} tmpfs disk
    refused "$@" data.out=$PWD/disk/shards
    test ! -e disk/shards/index.json
    find disk -name '*.partial'
    find disk -path '*-done/*.json' | wc -l
    mount -o remount,size=30M disk
    prepare "$@" data.out=$PWD/disk/shards >/dev/null
    prepare "$@" data.out=$PWD/disk/shards
    rm expected/prepare.log.json disk/shards/prepare.log.json
    diff -r expected disk/shards && echo same
    """
    lines = in_namespace(script, settings, tmp_path)
    assert lines[0] == "code 2", lines
    assert lines[1].startswith("maskmill: "), lines
    assert "cannot be written: No space left on device (free some space" in lines[1]
    done, again, *_, same = lines[2:]
    assert int(done) == done_before
    assert again.startswith("already prepared")
    assert same == "same"


def test_a_full_disk_while_comparing_documents(settings: list[str], tmp_path: Path) -> None:
    """numpy's own way to write says of a full disk only that bytes are missing."""
    script = """
    mkdir disk
    mount -t tmpfs -o size=100k tmpfs disk
    refused "$@" data.out=$PWD/disk/shards data.duplicates=both
    find disk -path '*fingerprint-done/*.json' | wc -l
    """
    code, line, done = in_namespace(script, settings, tmp_path)
    assert code == "code 2", line
    assert "cannot be written: No space left on device (free some space" in line
    assert int(done) == 0


def test_a_read_only_folder(settings: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/shards")
    script = """
    mkdir disk
    mount -t tmpfs -o ro tmpfs disk
    refused "$@" data.out=$PWD/disk/shards
    refused "$@" data.out=$PWD/disk
    refused "$@" data.out=$PWD/new data.work=$PWD/disk/work
    refused "$@" data.out=$PWD/other data.tokens=$PWD/disk/tokens
    mount --bind shards disk
    mount -o remount,ro,bind disk
    prepare "$@" data.out=$PWD/disk
    """
    lines = in_namespace(script, settings, tmp_path)
    for number in range(4):
        code, line = lines[2 * number : 2 * number + 2]
        assert code == "code 2"
        assert "cannot be written: Read-only file system" in line
    assert lines[8].startswith("already prepared"), "a finished preparation writes nothing"
    assert not any("cannot be written" in line for line in lines[8:])


def test_a_name_that_is_a_file(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    line = maskmill("prepare", "demo", *tiny, f"data.out={tmp_path}/file/shards", code=2).stderr
    assert "cannot be written: Not a directory" in line
    assert setting(tiny, "data.out")
    line = maskmill("prepare", "demo", *tiny, f"data.out={tmp_path}/file", code=2).stderr
    assert "maskmill:" in line
    assert (tmp_path / "file").read_text() == "precious"
