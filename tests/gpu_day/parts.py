"""The parts of the first hour with a GPU, in order of their worth."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.gpu_day.checks import family, gpu_tests, resume, twice
from tests.gpu_day.measurements import bench, fp8, lamb, mini
from tests.gpu_day.runs import Day
from tests.gpu_day.studies import studies


class Part(NamedTuple):
    """A function that fills in its figures as it finds them, and its time."""

    work: Callable[[Day, dict[str, Any]], None]
    seconds: float
    """At most."""


PARTS = {
    "tests": Part(gpu_tests, 300.0),
    "twice": Part(twice, 240.0),
    "resume": Part(resume, 240.0),
    "family": Part(family, 240.0),
    "bench": Part(bench, 570.0),
    "fp8": Part(fp8, 240.0),
    "lamb": Part(lamb, 90.0),
    "mini": Part(mini, 570.0),
    "studies": Part(studies, 570.0),
}
