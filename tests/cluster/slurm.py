"""A real Slurm cluster of four nodes on one host, with daemons of its own, for tests of what it runs.

    with Cluster() as cluster:
        job = cluster.submit("script.sbatch", "argument")
        assert cluster.wait(job) == "COMPLETED"

Needs root, and Debian's slurm-wlm and munge: its slurmd takes `-N name`, so that one host is several nodes. Every
command of Slurm runs under a time limit: on a cluster that is not well they wait for ever.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType

from network import HERE, Network
from processes import end, of_node, send, with_descendants

from tests.command_line import command, environ, until

NODES = tuple(f"node{number}" for number in range(1, 5))
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL")

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}({control})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={lab}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={lab}/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,batch_sched_delay=1
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool/%n
SlurmctldPidFile={lab}/run/slurmctld.pid
SlurmdPidFile={lab}/run/slurmd-%n.pid
SlurmctldLogFile={lab}/log/slurmctld.log
SlurmdLogFile={lab}/log/slurmd-%n.log
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=3600
SlurmctldTimeout=30
SlurmdTimeout={lost}
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node[1-4] NodeHostname={host} NodeAddr={nodes} Port=[{first}-{last}] CPUs=16 RealMemory=16000 \
Gres=gpu:h100:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
{srun}"""
GRES = "AutoDetect=off\nNodeName=node[1-4] Name=gpu Type=h100 File={lab}/dev/nvidia[0-7]\n"


SRUN_PORTS = 100
"""Where sruns are reached, on a cluster with a network, so that their traffic can be told from that of ranks."""


class ClusterError(Exception):
    """The cluster did not start, or does not do what it was told."""


class Cluster:
    """munged, slurmctld and four slurmd in a folder that goes when they end, on ports of their own; with a network,
    each slurmd is in its node's namespace."""

    def __init__(self, network: Network | None = None) -> None:
        self.network = network
        # not one of pytest's folders: those are for one user, which munged refuses, and long for a socket's name
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self._configuration = self.folder / "etc/slurm.conf"
        self.environment = environ(
            SLURM_CONF=str(self._configuration),
            MASKMILL=shlex.join(command()),
            OMP_NUM_THREADS="1",
        )
        """What its commands, and so its jobs, start with."""
        self.ports = range(0)
        """Those of its daemons, and with a network those of srun."""
        if network is None:
            self.environment["MASTER_ADDR"] = "127.0.0.1"  # the nodes are one host

    def __enter__(self) -> "Cluster":
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        signal.signal(signal.SIGTERM, self._before)

    def start(self) -> None:
        """Starts the daemons. Raises ClusterError where it cannot, AssertionError unless all nodes are idle within a
        minute."""
        lacking = [program for program in PROGRAMS if shutil.which(program) is None]
        if lacking or os.geteuid() != 0:
            raise ClusterError(
                f"needs root, and slurm-wlm and munge; missing: {', '.join(lacking) or 'root'}"
            )
        self._write_configuration()
        lab = self.folder
        self._run(
            ["munged", f"--socket={lab}/munge/socket", f"--key-file={lab}/munge/key",
             f"--pid-file={lab}/run/munged.pid", f"--log-file={lab}/log/munged.log",
             f"--seed-file={lab}/munge/seed", "--num-threads=2"]
        )  # fmt: skip
        self._run(["slurmctld", "-c"])
        for node in NODES:
            self.start_node(node)
        self._until(lambda: self.states() == dict.fromkeys(NODES, "idle"), 60)

    def start_node(self, node: str) -> None:
        """Starts the node's slurmd."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._run([*(self.network.inside(node) if self.network else []), "slurmd", "-N", node])

    def states(self) -> dict[str, str]:
        """Each node's state, as sinfo says it: idle, alloc, mix, down, ...; `*`: it does not answer."""
        lines = self._run(["sinfo", "--noheader", "--Node", "--format=%N %t"]).splitlines()
        return dict(line.split() for line in lines)

    def submit(self, script: Path | str, *arguments: str, options: Sequence[str] = ()) -> str:
        """sbatch; returns the job's number."""
        return self._run(["sbatch", "--parsable", *options, str(script), *arguments]).strip().split(";")[0]

    def jobs(self) -> dict[str, tuple[str, str]]:
        """State and name of every job that Slurm remembers, by its number; an array's tasks as `12_3`."""
        form = "--Format=JobArrayID:|,State:|,Name:|"
        lines = self._run(["squeue", "--noheader", "--states=all", "--array", form]).splitlines()
        rows = [[field.strip() for field in line.split("|")] for line in lines]
        return {number: (state, name) for number, state, name, *_ in rows}

    def wait(self, job: str, seconds: float = 120) -> str:
        """The state in which `job` (of an array: all of it) ended: COMPLETED, or the first other one. Ends the hold
        that a requeued job is under. Raises AssertionError if it takes longer."""

        looks = 0

        def ended() -> bool:
            nonlocal looks
            self.hasten()
            found = self._states_of(job)
            looks = looks + 1 if found and all(state in ENDED for state in found) else 0
            return looks == 3  # a job that is requeued seems to have ended for a moment

        self._until(ended, seconds)
        return next((state for state in self._states_of(job) if state != "COMPLETED"), "COMPLETED")

    def hasten(self) -> None:
        """Lets requeued jobs start in three seconds; Slurm holds them for two minutes, and not for nothing: the
        credential of an attempt that starts in the second in which the one before ended counts as revoked with it."""
        form = "--Format=JobID:|,Reason:|,EligibleTime:|"
        for line in self._run(["squeue", "--noheader", "--states=PENDING", form]).splitlines():
            number, reason, begins, *_ = (field.strip() for field in line.split("|"))
            held = reason == "BeginTime" and datetime.fromisoformat(begins) - datetime.now()
            if held and held > timedelta(seconds=30):
                self._run(["scontrol", "update", f"jobid={number}", "StartTime=now+3seconds"], check=False)

    def nodes_of(self, job: str) -> list[str]:
        """The nodes on which the job's running tasks are."""
        command = ["squeue", "--noheader", "--array", "--states=RUNNING", f"--jobs={job}", "--format=%N"]
        return self._run(command, check=False).split()

    def kill_node(self, node: str) -> None:
        """kill -9 of the node's slurmd, its steps and all that they started: as a power cut."""
        daemon = self._pid(f"slurmd-{node}")
        send([*([daemon] if daemon else []), *self.processes_of(node)], signal.SIGKILL)

    def processes_of(self, node: str) -> list[int]:
        """The node's step daemons, and all that they started."""
        return of_node(node, self._configuration)

    def log(self) -> str:
        """The ends of the daemons' logs, for a message about what went wrong."""
        logs = sorted((self.folder / "log").glob("*.log"))
        return "\n".join(f"== {p.name}\n" + "\n".join(p.read_text().splitlines()[-15:]) for p in logs)

    def stop(self) -> None:
        """Ends all jobs and daemons; what does not end by itself is killed."""
        if self._pid("slurmctld"):
            with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
                self._run(["scancel", "--user=root"])
        names = [*(f"slurmd-{node}" for node in NODES), "slurmctld", "munged"]
        daemons = [pid for pid in map(self._pid, names) if pid]
        everything = with_descendants([*daemons, *(pid for node in NODES for pid in self.processes_of(node))])
        send(daemons, signal.SIGTERM)
        end(everything, seconds=10)
        shutil.rmtree(self.folder)

    def _write_configuration(self) -> None:
        lab = self.folder
        for name in ("etc", "munge", "run", "log", "spool", "state", "dev"):
            (lab / name).mkdir(parents=True, exist_ok=True)
        for place in (lab / "munge", lab / "run", lab / "log"):
            place.chmod(0o755)  # munged insists
        key = lab / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(256))
        for number in range(8):
            os.mknod(lab / f"dev/nvidia{number}", 0o666 | 0o020000, os.makedev(1, 3))
        ports = _free_ports(len(NODES) + SRUN_PORTS + 1)
        self.ports = range(ports[0], ports[-1] + 1)
        host = socket.gethostname().partition(".")[0]
        control, nodes, srun, lost = "127.0.0.1", "127.0.0.1", "", 10
        if self.network:
            control, nodes = self.network.address(HERE), ",".join(map(self.network.address, NODES))
            srun = f"SrunPortRange={ports[len(NODES)]}-{ports[-2]}\n"
            # a node is asked three times in it: of a cut of six seconds it notices one time at most
            lost = 20
        values = {
            "lab": lab,
            "host": host,
            "port": ports[-1],
            "first": ports[0],
            "last": ports[len(NODES) - 1],
        }
        values |= {"control": control, "nodes": nodes, "srun": srun, "lost": lost}
        self._configuration.write_text(CONFIGURATION.format(**values))
        (lab / "etc/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (lab / "etc/gres.conf").write_text(GRES.format(lab=lab))

    def _run(self, command: list[str], *, check: bool = True) -> str:
        # daemons keep their output open for ever, so it goes to a file, not to a pipe
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run(
                command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, timeout=30, check=False
            )
            log.seek(0)
            text = log.read()
        if check and done.returncode:
            raise ClusterError(f"{' '.join(command)}: {text.strip()}\n{self.log()}")
        return text

    def _states_of(self, job: str) -> list[str]:
        return [state for number, (state, _) in self.jobs().items() if number.split("_")[0] == job]

    def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        until(holds, seconds, said=lambda: f"{self.jobs()}\n{self.states()}\n{self.log()}", every=0.3)

    def _pid(self, name: str) -> int | None:
        try:
            return int((self.folder / "run" / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None


def _interrupt(*_: object) -> None:
    """Whoever ends the tests ends the daemons as well; told twice, they are ended once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _free_ports(count: int) -> list[int]:
    """So many free ports in a row, above those where the ranks of the first jobs meet, below those of clients."""
    for first in sorted(range(21000, 32000, count), key=lambda _: secrets.randbits(32)):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + number))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise ClusterError("no free ports")
