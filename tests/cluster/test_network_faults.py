"""Training over links that are cut, slow or lossy: it goes on, or is requeued and goes on, and ends with the weights of
a run that nothing disturbed."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Network
from processes import is_alive
from training_job import RUN, Job, can_be_slowed

from slurm import NODES, Cluster
from tests.command_line import Maskmill

pytestmark = pytest.mark.cluster

LIMIT = 20
"""Seconds after which a step that does not end is a hang."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if lacking := Network.lacks():
        pytest.fail(lacking)  # make test-cluster never skips
    with Network(NODES) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(network) as cluster:
        can_be_slowed(cluster, tmp_path_factory.mktemp("slowed"))
        yield cluster


@pytest.fixture(autouse=True)
def mended(network: Network, cluster: Cluster) -> Iterator[None]:
    """After a test all links are whole, and all nodes answer."""
    yield
    for node in NODES:
        network.mend(node)
    cluster._until(lambda: all(state == "idle" for state in cluster.states().values()), 120)


@pytest.fixture(scope="module")
def undisturbed(
    tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Path]:
    """Runs of two and of four ranks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for ranks in (2, 4):
        maskmill("train", "demo", *tiny, *RUN, f"run.ranks={ranks}", f"run.dir={folder / str(ranks)}")
    return {ranks: folder / str(ranks) for ranks in (2, 4)}


def started(cluster: Cluster, tiny: list[str], folder: Path, nodes: int) -> tuple[Job, list[str]]:
    """A job that is half way, and its nodes in the order of their ranks."""
    job = Job(cluster, [*tiny, f"run.step_limit={LIMIT}"], folder, f"--nodes={nodes}")
    return job, job.until_half_way()


def is_rank(pid: int) -> bool:
    """Whether this process trains: srun and the job's script have the same words in their command lines."""
    python, *words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return python == sys.executable and words[0].endswith("slowed.py")


@pytest.mark.parametrize(
    ("nodes", "disturbance"),
    [(4, {"is_cut": True}), (2, {"delay": 1.0}), (4, {"loss": 0.2})],
    ids=["cut", "slow", "lossy"],
)
def test_a_link_that_is_soon_mended_stops_nothing(
    nodes: int, disturbance: dict[str, float], cluster: Cluster, network: Network, tiny: list[str],
    undisturbed: dict[int, Path], slowed: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """For shorter than the limits of Slurm and of a step. Slow: two seconds there and back."""
    job, names = started(cluster, tiny, tmp_path, nodes)
    before = network.disturbed
    network.disturb(names[-1], **disturbance)
    slowed.unlink()
    time.sleep(6)
    network.mend(names[-1])
    assert network.disturbed > before
    job.ends_as(undisturbed[nodes])
    assert job.attempts() == 1


def test_a_link_that_stays_cut_is_a_node_that_is_lost(
    cluster: Cluster, network: Network, tiny: list[str], undisturbed: dict[int, Path], slowed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The job goes on elsewhere. The rank behind the cut ends by itself: nothing can tell it to. Here it
    is the first one, and the job's script and srun are behind the cut as well."""
    job, names = started(cluster, tiny, tmp_path, 2)
    behind = [pid for pid in cluster.processes_of(names[0]) if is_rank(pid)]
    assert len(behind) == 1
    network.disturb(names[0], is_cut=True)
    cut = time.monotonic()
    job.until(lambda: not any(map(is_alive, behind)), 120)
    assert time.monotonic() - cut < LIMIT + 60  # ten of them a slow step
    job.until(lambda: (cluster.hasten(), names[0] not in (job.nodes() or names))[1], 120)
    network.mend(names[0])
    job.until(lambda: not cluster.processes_of(names[0]), 120)  # the old attempt's script has ended
    slowed.unlink()
    job.ends_as(undisturbed[2])
    assert job.attempts() == 2
    assert "requeued: a fault" not in job.log.read_text()


def test_four_nodes_wait_for_one_that_was_lost_and_comes_back(
    cluster: Cluster,
    network: Network,
    tiny: list[str],
    undisturbed: dict[int, Path],
    slowed: Path,
    tmp_path: Path,
) -> None:
    """There is no fifth."""
    job, names = started(cluster, tiny, tmp_path, 4)
    network.disturb(names[2], is_cut=True)
    slowed.unlink()
    job.until(lambda: cluster.states()[names[2]].startswith("down"), 120)
    network.mend(names[2])
    job.ends_as(undisturbed[4])
    assert job.attempts() == 2
