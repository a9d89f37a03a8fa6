""".ci/run with a stand-in for make: what becomes of the tests on the cluster, which run beside the others."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command_line import ROOT

MAKE = """\
#!/usr/bin/env bash
case $1 in
  test-cluster)
    echo "the cluster's log"
    sleep 60 & # a daemon that it has started
    echo "$!" >daemon
    trap 'kill "$(cat daemon)"; wait || true; echo "taken down"; exit 1' TERM
    for _ in $(seq "$TENTHS"); do sleep 0.1; done
    kill "$(cat daemon)"
    exit "$CLUSTER"
    ;;
  test-all)
    echo "options: $PYTEST_ADDOPTS"
    until [[ -e daemon ]]; do sleep 0.05; done
    exit "$TESTS"
    ;;
esac
"""


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "make").write_text(MAKE)
    (folder / "make").chmod(0o755)
    return subprocess.run(
        ["bash", ".ci/run"],
        cwd=folder,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | variables,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("cluster", ["0", "3"])
def test_it_fails_where_the_cluster_fails(tmp_path: Path, cluster: str) -> None:
    done = run(tmp_path, TESTS="0", CLUSTER=cluster, TENTHS="1")
    assert done.returncode == int(cluster), done.stderr
    assert "the cluster's log" in done.stdout
    assert "taken down" not in done.stdout
    assert "options: --reruns 1 " in done.stdout, "a test that a busy machine delayed has a second run"


def test_a_failure_leaves_nothing_running_and_shows_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="1", CLUSTER="0", TENTHS="400")
    assert done.returncode != 0
    assert "the cluster's log" in done.stdout
    assert "taken down" in done.stdout, "what it started was told to end"
    daemon = int((tmp_path / "daemon").read_text())
    assert not Path(f"/proc/{daemon}").exists()
