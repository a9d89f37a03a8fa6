"""The parts of the first hour with a GPU, in order of their worth."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.gpu_day.checks import family, gpu_tests, resume, twice
from tests.gpu_day.measurements import bench, lamb, mini, peers
from tests.gpu_day.runs import Day
from tests.gpu_day.stages import ranks, stages
from tests.gpu_day.studies import studies


class Part(NamedTuple):
    """A function that fills in its figures as it finds them, and its time."""

    work: Callable[[Day, dict[str, Any]], None]
    seconds: float
    """At most."""
    leaves: tuple[str, ...] = ()
    """Files and folders, or patterns of them, that it makes anew: what an earlier call left of them may be of other
    code."""


PARTS = {
    "tests": Part(gpu_tests, 150.0, ("tests.xml",)),
    "twice": Part(twice, 150.0, ("first", "second")),
    "resume": Part(resume, 150.0, ("whole", "killed")),
    "family": Part(family, 240.0, ("member *",)),
    "stages": Part(stages, 240.0, ("stages *",)),
    "ranks": Part(ranks, 570.0, ("ranks *",)),  # nothing where there is one GPU
    "bench": Part(bench, 540.0, ("bench.json",)),
    "peers": Part(peers, 240.0, ("peers.json",)),
    "lamb": Part(lamb, 60.0, ("lamb.json",)),
    "mini": Part(mini, 570.0, ("mini", "mini.tar*")),
    # what was measured is kept: a study goes on, and refuses what was measured with other settings
    "studies": Part(studies, 570.0, ("studies/*/runs", "studies/*/data")),
}
"""On one GPU those before `mini`, whose time is what is left, are over within a day's minutes."""
