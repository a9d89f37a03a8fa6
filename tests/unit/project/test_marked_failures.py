"""What counts as a failure by values on the pretended GPU, by a report of pytest itself."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.fake_gpu.failures import failed_by_values

CALLED = """
def checked(x):
    assert x == 2, "not two"


def plain(x):
    assert x == 2


def close(x):
    __tracebackhide__ = True
    if x != 2:
        raise AssertionError("Tensor-likes are not close!")


def wrapped(x):
    try:
        checked(x)
    except AssertionError as error:
        raise RuntimeError("backend failed") from error


def again(x):
    try:
        raise RuntimeError("first")
    except RuntimeError:
        checked(x)
"""
TESTS = """
import called
import pytest


def helper(x):
    assert x == 2, "of a helper"


def test_value(): assert 1 == 2
def test_value_with_words(): assert 1 == 2, "words\\nof two lines"
def test_value_by_helper(): helper(1)
def test_value_by_hidden_frame(): called.close(1)
def test_value_that_does_not_raise():
    with pytest.raises(ValueError):
        called.close(2)
def test_value_after_another_error():
    try:
        called.checked(1)
    except AssertionError:
        assert 1 == 2
def test_error_in_a_check(): called.checked(1)
def test_error_in_a_plain_check(): called.plain(1)
def test_error_around_a_check(): called.wrapped(1)
def test_error_in_a_check_after_another(): called.again(1)
def test_error_of_its_own(): raise RuntimeError("assert ")
"""


def test_only_asserts_of_tests_are_values(tmp_path: Path) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_made_up.py").write_text(TESTS)
    (tmp_path / "called.py").write_text(CALLED)
    options = ["-p", "no:cacheprovider", f"--junitxml={tmp_path}/report.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/unit"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    cases = {
        case.get("name", ""): case.find("failure")
        for case in ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    }
    assert len(cases) == TESTS.count("def test_")
    for name, failure in cases.items():
        assert failure is not None, name
        assert failed_by_values(failure) == name.startswith("test_value"), f"{name}: {failure.text}"
