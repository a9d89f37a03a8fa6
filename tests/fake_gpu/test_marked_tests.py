"""The tests that need a CUDA device, on the pretended one: they get as far as the values, which are rubbish.

What may fail is an assert of the test itself. Any other error is one of the host code."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from failures import failed_by_values
from pretended import on_gpu

from tests.gpu_day.checks import marked_files

pytestmark = pytest.mark.fake_gpu

LEAST = 24
"""So many tests at least have the mark."""


def test_marked_tests_fail_by_values_alone(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    options = ("-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}")
    on_gpu("-m", "pytest", *map(str, marked_files()), *options, code=1)
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) >= LEAST
    assert [case.get("name") for case in cases if case.find("skipped") is not None] == []
    assert [case.get("name") for case in cases if case.find("error") is not None] == []
    for case in cases:
        failure = case.find("failure")
        message = "" if failure is None else failure.get("message", "")
        print(f"{case.get('name')}: {'ended' if failure is None else message.splitlines()[0]}")
        assert failure is None or failed_by_values(failure), failure.text
