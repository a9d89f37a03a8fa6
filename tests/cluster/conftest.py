"""Fixtures of the tests that train on the cluster, which each module starts as it needs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import Cluster


@pytest.fixture
def slowed(cluster: Cluster) -> Iterator[Path]:
    """While this file is there, steps take ten seconds, or as many as it says."""
    path = Path(cluster.environment["SLOWED"])
    path.touch()
    yield path
    path.unlink(missing_ok=True)
