""".ci/run with a stand-in for make: what becomes of the parts that run beside the tests."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.command_line import ROOT

MAKE = """\
#!/usr/bin/env bash
case $1 in
  lint)
    touch linting
    sleep "$LINTING"
    exit "$LINT"
    ;;
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
    until [[ -e $AFTER ]]; do sleep 0.05; done
    exit "$TESTS"
    ;;
  test-failed)
    echo "the failed tests, alone"
    exit "$AGAIN"
    ;;
esac
"""


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "make").write_text(MAKE)
    (folder / "make").chmod(0o755)
    usual = {"PATH": f"{folder}:{os.environ['PATH']}", "LINT": "0", "LINTING": "0", "AFTER": "daemon"}
    return subprocess.run(
        ["bash", ".ci/run"],
        cwd=folder,
        env=os.environ | usual | variables,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_it_fails_where_lint_fails_after_all_else_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="0", CLUSTER="0", TENTHS="1", LINT="2")
    assert done.returncode == 2, done.stderr
    assert all(
        f"== make {target}: " in done.stdout for target in ("lint", "docs", "test-cluster", "test-all")
    )


@pytest.mark.parametrize("cluster", ["0", "3"])
def test_it_fails_where_the_cluster_fails(tmp_path: Path, cluster: str) -> None:
    done = run(tmp_path, TESTS="0", CLUSTER=cluster, TENTHS="1")
    assert done.returncode == int(cluster), done.stderr
    assert "the cluster's log" in done.stdout
    assert "taken down" not in done.stdout
    assert "options: --reruns 1 " in done.stdout, "a test that a busy machine delayed has a second run"


def test_a_failure_leaves_nothing_running_and_shows_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="1", AGAIN="1", CLUSTER="0", TENTHS="400")
    assert done.returncode != 0
    assert "the cluster's log" in done.stdout
    assert "taken down" in done.stdout, "what it started was told to end"
    daemon = int((tmp_path / "daemon").read_text())
    assert not Path(f"/proc/{daemon}").exists()


def test_after_a_failure_nothing_more_is_started_beside(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="1", AGAIN="1", AFTER="linting", LINTING="40")
    assert done.returncode != 0
    assert "== make lint: " in done.stdout
    assert "== make docs: " not in done.stdout
    assert "the cluster's log" not in done.stdout


def test_tests_that_failed_are_run_once_more_alone_and_that_decides(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="1", AGAIN="0", CLUSTER="0", TENTHS="1")
    assert done.returncode == 0, done.stderr
    assert "the failed tests, alone" in done.stdout
    assert "== make test-browser" in done.stdout, "the parts that follow are run"


def test_no_second_pass_where_all_tests_passed(tmp_path: Path) -> None:
    assert (
        "the failed tests, alone" not in run(tmp_path, TESTS="0", AGAIN="1", CLUSTER="0", TENTHS="1").stdout
    )


TESTS = {
    "test_good.py": "def test_good(): pass",
    "test_delayed.py": """
        from pathlib import Path
        def test_delayed():
            first = not Path("seen").exists()
            Path("seen").touch()
            assert not first
    """,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Makefile and pytest's settings, with tests of their own."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests").mkdir()
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).write_text(textwrap.dedent(text))
    return tmp_path


def make(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--old-file=env", f"BIN={Path(sys.executable).parent}", target]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    return subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.slow
def test_make_test_failed_runs_the_failed_tests_only_and_names_them(project: Path) -> None:
    assert "1 failed, 1 passed" in make(project, "test-all").stdout
    again = make(project, "test-failed")
    assert again.returncode == 0, again.stdout
    assert "tests/test_delayed.py::test_delayed PASSED" in again.stdout
    assert "test_good" not in again.stdout


@pytest.mark.slow
def test_make_test_failed_fails_where_a_test_fails_twice(project: Path) -> None:
    (project / "tests/test_wrong.py").write_text("def test_wrong(): assert False")
    make(project, "test-all")
    again = make(project, "test-failed")
    assert again.returncode != 0
    assert "1 failed, 1 passed" in again.stdout


@pytest.mark.slow
def test_make_test_failed_refuses_after_an_error_of_collection(project: Path) -> None:
    """Other tests have not run then: a file that can be imported after all would hide that."""
    broken = project / "tests/test_broken.py"
    broken.write_text("import nothing_of_this_name")
    assert "error" in make(project, "test-all").stdout
    broken.write_text("def test_repaired(): pass")
    again = make(project, "test-failed")
    assert again.returncode != 0
    assert "did not end with failed tests" in again.stdout
