"""Compute which jobs of a request are left to do, each after the previous one."""

from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from launch.cluster.pipeline import STAGES, Job, Request, prepared, with_vocabulary
from pretrain.report.status import read_status


class Chain(NamedTuple):
    """The jobs that are left to do."""

    jobs: list[Job]
    skipped: dict[str, str]
    """Stage -> why it has nothing to do."""


def chain(request: Request, stages: list[str]) -> Chain:
    """Return the jobs of these stages, each after the previous one, without those already done. Raises UserError for
    unknown stages and for an inconsistent request."""
    _check_ranks(request)
    unknown = [name for name in stages if name not in STAGES]
    if unknown or not stages:
        raise UserError(
            f"no stage {unknown[0]!r}" if unknown else "no stage",
            where="--stages",
            expected=f"some of {','.join(STAGES)}",
        )
    jobs, skipped = [], {}
    for name, stage in STAGES.items():
        if name not in stages:
            continue
        if words := stage.done(request):
            skipped[name] = words
        else:
            jobs += stage.jobs(request)
    _check_ground(request, jobs)
    return Chain(jobs, skipped)


def _check_ranks(request: Request) -> None:
    size, given = request.size, [o for o in request.overrides if o.startswith("run.ranks=")]
    if size.gpus_per_node and size.ranks_per_node and size.ranks_per_node != size.gpus_per_node:
        raise UserError(
            f"{size.ranks_per_node} ranks on a node with {size.gpus_per_node} GPUs",
            where="--ranks-per-node",
            expected="one rank a GPU",
            remedy="leave it out, or --gpus-per-node 0 to train on CPUs",
        )
    if given and request.config.run.ranks != size.ranks:
        uneven = request.config.run.ranks % size.nodes
        raise UserError(
            f"{given[-1]} {'does not divide over' if uneven else 'is not what is asked of'} {size.nodes} nodes with "
            f"{size.local_ranks} ranks each",
            where="--nodes",
            expected=f"{size.ranks} ranks",
            remedy="leave run.ranks out: Slurm starts the ranks",
        )


def _check_ground(request: Request, jobs: list[Job]) -> None:
    """Check that the inputs of the first job exist: no earlier job makes them."""
    first = jobs[0].stage if jobs else ""
    if first == "prepare" and not with_vocabulary(request):
        raise UserError(
            "no vocabulary is there", where=request.config.data.vocab, remedy="add vocab to --stages"
        )
    if first == "train" and not prepared(request):
        raise UserError(
            "no shards are there", where=request.config.data.out, remedy="add prepare to --stages"
        )
    if first == "export" and not read_status(Path(request.config.run.dir)).checkpoint:
        raise UserError(
            "there is no checkpoint to export", where=request.config.run.dir, remedy="add train to --stages"
        )
