"""What several tests share: the real command line, and a small corpus in shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT, TINY, Maskmill, write_text


@pytest.fixture(scope="session")
def maskmill() -> Maskmill:
    """Runs the real command; fails with its output unless it ends with the expected exit code."""

    def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-m", "launch.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            timeout=300,
            check=False,
        )
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, maskmill: Maskmill) -> list[str]:
    """Settings of a tiny run whose vocabulary and pair shards are ready; `run.dir` is the test's to choose."""
    folder = tmp_path_factory.mktemp("tiny")
    write_text(folder / "text.txt")
    settings = [
        f"data.sources={folder}/text.txt",
        f"data.vocab={folder}/vocabulary",
        f"data.out={folder}/shards",
        *TINY,
    ]
    maskmill("vocab", "demo", *settings)
    maskmill("prepare", "demo", *settings)
    return settings
