"""Training over links that are cut, slow or lossy: it goes on, or is requeued and goes on, and ends with the weights of
a run that nothing disturbed.

On two cores with much other work (a load of seven) all took eleven minutes: the undisturbed runs and the cluster 91 s,
short disturbances of 2 nodes 60 s and of 4 nodes 72 s, three long ones 189 s, a node that is lost 128 s, and one that
comes back 107 s.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from network import Link, Network
from processes import is_alive
from training_job import RUN, Job, can_be_slowed

from pretrain.checkpoint.store import checkpoints, step_of
from pretrain.distributed.watchdog import STACK_SECONDS
from slurm import NODES, Cluster
from tests.command_line import Maskmill

pytestmark = pytest.mark.cluster

LIMIT = 20
"""run.step_timeout where it is what ends a training. Elsewhere it is AMPLE, so that a busy machine is no fault."""
AMPLE = 120
STEP = 4
"""Seconds of a step while a test looks for its moment; the cut of a link of SHORT lasts six."""

# A slow link comes last: TCP remembers for a while how slow it was, and then waits longer for what is lost
SHORT = {"cut": Link(is_cut=True), "lossy": Link(loss=0.2), "slow": Link(delay=1.0)}
LONG = {"slow": Link(delay=30.0), "lossy": Link(loss=0.99), "cut": Link(is_cut=True)}

GOES_ON = "goes on from the newest checkpoint"
LOST = "attempt 0 was ended by Slurm since {} failed or was cut off; this one " + GOES_ON
REQUEUED = (
    r"^requeued: a fault on some node: a step or a stage took longer than run\.step_timeout "
    rf"or run\.stage_limit, the stack of each rank is in its log; the next attempt {GOES_ON}$"
)
"""In the job's log: no rank is stuck, all wait for one another."""
HANGS = r"^maskmill: rank {} on \S+ ends: a step, .* longer than run\.step_timeout \({} s\); its stacks are above; .*"
"""In the rank's log."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if lacking := Network.lacks():
        pytest.fail(lacking)  # make test-cluster never skips
    with Network(NODES) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(network) as cluster:
        network.uncounted = cluster.ports  # what is disturbed has to be the ranks' own
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


def started(
    cluster: Cluster, settings: list[str], folder: Path, nodes: int, limit: int
) -> tuple[Job, list[str]]:
    """A job that is half way, and its nodes in the order of their ranks."""
    Path(cluster.environment["SLOWED"]).write_text(str(STEP))
    job = Job(cluster, [*settings, f"run.step_timeout={limit}"], folder, f"--nodes={nodes}")
    return job, job.until_half_way()


def saved(job: Job) -> int:
    """The step of its newest checkpoint."""
    return max(map(step_of, checkpoints(job.run)), default=0)


def end_in_time(job: Job, pids: list[int]) -> None:
    """All these ranks end by their limit: that of the step in which they are, or of the next one."""
    began = time.monotonic()
    job.until(lambda: not any(map(is_alive, pids)), 120)
    took = time.monotonic() - began
    assert took < STEP + LIMIT + STACK_SECONDS + 10, f"{took:.1f} s"  # ten of them for a busy machine


def says_that_it_hung(job: Job, rank: int | str) -> int:
    """How often this rank's log says so."""
    log = job.run / "logs" / f"rank-{rank}.log"
    return len(re.findall(HANGS.format(rank, LIMIT), log.read_text(), re.MULTILINE))


@pytest.mark.parametrize("nodes", [2, 4])
def test_links_that_are_soon_mended_stop_nothing(
    nodes: int, cluster: Cluster, network: Network, tiny: list[str], undisturbed: dict[int, Path],
    slowed: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """For shorter than the limits of Slurm and of a step, one after the other in one training, which goes on after
    each. Slow: two seconds there and back."""
    job, names = started(cluster, tiny, tmp_path, nodes, AMPLE)
    for kind, link in SHORT.items():
        before = network.disturbed
        network.disturb(names[-1], link)
        time.sleep(6)
        network.mend(names[-1])
        assert network.disturbed > before, kind
        done = saved(job)
        job.until(lambda done=done: saved(job) > done and "*" not in cluster.states()[names[-1]])
    slowed.unlink()
    job.ends_as(undisturbed[nodes])
    assert job.attempts() == 1
    assert GOES_ON not in job.log.read_text()


def test_ranks_that_lose_one_another_end_by_their_limit_and_are_requeued(
    cluster: Cluster, network: Network, tiny: list[str], undisturbed: dict[int, Path], slowed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Slow, lossy or cut for longer than a step may take, one after the other in one training. What Slurm sends comes
    through, as over a network of its own, so that nothing but the limit ends the ranks."""
    job, names = started(cluster, tiny, tmp_path, 2, LIMIT)
    for faults, (kind, link) in enumerate(LONG.items(), start=1):
        ranks, done = job.ranks_on(names), saved(job)
        assert len(ranks) == 2, kind
        network.disturb(names[-1], replace(link, spared=cluster.ports))
        end_in_time(job, ranks)
        job.until(lambda n=faults: job.log.read_text().count("\nrequeued: ") == n)
        said = re.findall(REQUEUED, job.log.read_text(), re.MULTILINE)
        assert len(said) == faults, job.said()
        job.until(
            lambda n=faults: job.log.read_text().count("no node is excluded: every rank ended by itself") == n
        )
        network.mend(names[-1])
        job.until(lambda n=faults: (cluster.hasten(), job.attempts() > n and job.nodes())[1])
        names = job.nodes()
        job.until(lambda done=done: saved(job) > done)
    slowed.unlink()
    job.ends_as(undisturbed[2])
    assert job.attempts() == 1 + len(LONG)
    assert says_that_it_hung(job, 0) == says_that_it_hung(job, 1) == len(LONG)
    assert not re.search(r"^node\d is excluded$", job.log.read_text(), re.MULTILINE)


def test_a_link_that_stays_cut_is_a_node_that_is_lost(
    cluster: Cluster, network: Network, tiny: list[str], undisturbed: dict[int, Path], slowed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The job goes on elsewhere. The rank behind the cut ends by itself: nothing can tell it to. Here it
    is the first one, and the job's script and srun are behind the cut as well."""
    job, names = started(cluster, tiny, tmp_path, 2, LIMIT)
    behind = job.ranks_on(names[:1])
    assert len(behind) == 1
    network.disturb(names[0], Link(is_cut=True))
    end_in_time(job, behind)
    assert says_that_it_hung(job, 0) == 1, job.said()
    slowed.write_text("10")  # the job is still at work when the node is back
    job.until(lambda: (cluster.hasten(), LOST.format(names[0]) in job.log.read_text())[1], 120)
    assert names[0] not in job.nodes()
    network.mend(names[0])
    job.until(lambda: not cluster.processes_of(names[0]), 120)  # the old attempt's script has ended
    slowed.unlink()
    job.ends_as(undisturbed[2])
    assert job.attempts() == 2
    assert "requeued: a fault" not in job.log.read_text()


def test_four_nodes_wait_for_one_that_was_lost_and_comes_back(
    cluster: Cluster, network: Network, tiny: list[str], undisturbed: dict[int, Path], slowed: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """There is no fifth."""
    job, names = started(cluster, tiny, tmp_path, 4, AMPLE)
    network.disturb(names[2], Link(is_cut=True))
    slowed.unlink()
    job.until(lambda: cluster.states()[names[2]].startswith("down"), 120)
    network.mend(names[2])
    job.ends_as(undisturbed[4])
    assert job.attempts() == 2
    assert LOST.format(names[2]) in job.log.read_text()
    assert "requeued: a fault" not in job.log.read_text()
