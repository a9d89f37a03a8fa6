"""A training job on the test cluster, whose steps can be made slow, and the end that it has to come to."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pretrain.checkpoint.store import checkpoints
from slurm import Cluster
from tests.command_line import ROOT, until
from tests.run_ends import assert_same_tensors, final

STEPS = 24
RUN = [
    f"train.steps={STEPS}",
    "train.checkpoint_every=2",
    "encoder.dropout=0.1",
    "encoder.attention_dropout=0.1",
]
OPTIONS = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1", "--exclusive"]


def can_be_slowed(cluster: Cluster, folder: Path) -> None:
    """Let the steps of the cluster's jobs take long while a file is there (the fixture `slowed`)."""
    cluster.environment["MASKMILL"] = f"{sys.executable} {ROOT}/tests/cluster/slowed.py"
    cluster.environment["SLOWED"] = str(folder / "slowed")


class Job:
    """A training job of two nodes."""

    def __init__(self, cluster: Cluster, settings: list[str], folder: Path, *options: str) -> None:
        self.cluster, self.run, self.logs, self.log = cluster, folder / "run", folder / "logs", folder / "log"
        cluster.environment["LOGS"] = str(self.logs)
        self.number = cluster.submit(
            ROOT / "slurm/train.sbatch",
            *("demo", *settings, *RUN, f"run.dir={self.run}"),
            options=[*OPTIONS, f"--output={self.log}", *options],
        )

    def until_half_way(self) -> list[str]:
        """Its nodes, once it has a checkpoint and is still at work."""
        self.until(lambda: checkpoints(self.run) and self.cluster.nodes_of(self.number))
        return self.nodes()

    def nodes(self) -> list[str]:
        """Those on which it runs, in the order of its ranks; none while it waits."""
        listed = self.cluster.nodes_of(self.number)
        return self.cluster._run(["scontrol", "show", "hostnames", *listed]).split() if listed else []

    def ranks_on(self, nodes: list[str]) -> list[int]:
        """The processes that train on these nodes; srun and the job's script have the same words on their lines."""
        pids = [pid for node in nodes for pid in self.cluster.processes_of(node)]
        words = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}
        return [
            p
            for p, (python, *rest) in words.items()
            if python == sys.executable and rest[0].endswith("slowed.py")
        ]

    def until(self, holds: Callable[[], object], seconds: float = 180) -> None:
        until(holds, seconds, said=lambda: f"{self.said()}\n{self.cluster.log()}", every=0.1)

    def limit(self, minutes: int) -> None:
        """Changes its time limit."""
        self.cluster._run(["scontrol", "update", f"jobid={self.number}", f"TimeLimit={minutes}"])

    def attempts(self) -> int:
        path = self.run / "run.json"
        return json.loads(path.read_text())["attempts"] if path.exists() else 0

    def said(self) -> str:
        logs = [self.log, *sorted(self.logs.glob("*"))]
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in logs if p.exists())

    def ends_as(self, undisturbed: Path) -> None:
        """Waits for its end, and compares weights and moments."""
        assert self.cluster.wait(self.number, 300) == "COMPLETED", self.said() + self.cluster.log()
        assert_same_tensors(final(undisturbed, STEPS), final(self.run, STEPS))
