"""docker/kubernetes: the manifests follow Kubernetes' own schemas, and what they start trains, is stopped and resumes.

No cluster is here. The commands and variables of the containers are given to plain processes, each node's GPUs as one
rank on this machine's CPUs.
"""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from launch.ranks import free_port
from launch.recipe import load_config
from tests.command_line import command, environ, until
from tests.factories.dockerfiles import DOCKER, environment_of

FOLDER = DOCKER / "kubernetes"
VERSIONS = ("1.30", "1.34")
"""Of Kubernetes: podFailurePolicy is no alpha feature in any that is still maintained."""
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))
JOBS = ("one-node.yaml", "several-nodes.yaml")
LONG = ["train.steps=400", "train.checkpoint_every=1000"]


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def job(name: str) -> dict[str, Any]:
    return next(found for found in objects(name) if found["kind"] == "Job")


def pod(name: str) -> dict[str, Any]:
    return dict(job(name)["spec"]["template"]["spec"])


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return dict(only)


def started(name: str, index: int, changed: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The words and variables of the pod with this index, filled in as Kubernetes does, with some variables changed."""
    found = container(name)
    variables = {entry["name"]: entry["value"] for entry in found["env"]} | changed
    if job(name)["spec"].get("completionMode") == "Indexed":
        variables["JOB_COMPLETION_INDEX"] = str(index)
    words = [*found.get("command", ["tini", "--", "maskmill"]), *found["args"]]  # the image's entry point
    filled = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in words]
    assert filled[:2] == ["tini", "--"]
    return filled[2:], variables


def here(words: list[str], settings: list[str]) -> list[str]:
    """The words as this machine runs them: with its torchrun and `maskmill`, and these settings of a tiny run."""
    before = words[: words.index("maskmill")]
    if not before:
        return command("train", "demo", *settings)
    assert before[0] == "torchrun"
    maskmill = str(Path(sys.executable).with_name("maskmill"))
    return [sys.executable, "-m", "torch.distributed.run", *before[1:], maskmill, "train", "demo", *settings]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_manifests_are_valid(name: str, version: str) -> None:
    assert len(NAMES) == 3
    for found in objects(name):
        kubernetes_validate.validate(found, version, strict=True)
    broken = objects(name)[-1]
    broken["spec"]["unheardOf"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_a_pod_has_what_a_run_needs(name: str) -> None:
    """Shared memory, the volume, probes, and time to save."""
    spec, found = pod(name), container(name)
    mounts = {mount["mountPath"]: mount["name"] for mount in found["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    (claim,) = objects("volume.yaml")
    assert volumes[mounts["/work"]]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert spec["terminationGracePeriodSeconds"] >= 110, "as long as the guide gives docker stop"
    assert float(environment_of(DOCKER / "Dockerfile")["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) > 120
    for probe in ("startupProbe", "livenessProbe"):
        assert found[probe]["exec"]["command"] == ["bash", "/usr/local/share/maskmill/healthcheck.sh"]
    words, variables = started(name, 0, {})
    verb, recipe, *overrides = words[words.index("maskmill") + 1 :]
    config = load_config(recipe, overrides)
    assert (verb, config.run.dir) == ("train", variables["HEALTH_RUN"])
    assert not Path(config.run.dir).is_absolute(), "in /work"
    gpus = int(found["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == int(variables.get("GPUS", config.run.ranks))


def test_all_nodes_find_the_first_one() -> None:
    service, found = objects("several-nodes.yaml")
    spec, name = found["spec"], found["metadata"]["name"]
    variables = started("several-nodes.yaml", 0, {})[1]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod("several-nodes.yaml")["subdomain"] == service["metadata"]["name"]
    assert variables["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}", (
        "the host name of an indexed Job's pod"
    )
    assert int(variables["MASTER_PORT"]) in [port["port"] for port in service["spec"]["ports"]]
    assert spec["completions"] == spec["parallelism"] == int(variables["NODES"])
    assert "--node-rank=3" in started("several-nodes.yaml", 3, {})[0]


def ends(name: str, code: int) -> str:
    """What the Job does after a container ended with this exit code; "Count": one fault more."""
    for rule in job(name)["spec"]["podFailurePolicy"]["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
    return "Count"


class Pods:
    """What a manifest starts, as processes here."""

    def __init__(self, name: str, nodes: int, settings: list[str], folder: Path) -> None:
        self.name, self.nodes, self.settings, self.folder = name, nodes, settings, folder

    def start(self, *more: str) -> list[subprocess.Popen[bytes]]:
        changed = {
            "NODES": str(self.nodes),
            "GPUS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        image = environment_of(DOCKER / "Dockerfile")["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
        started_here = []
        for index in range(self.nodes):
            words, variables = started(self.name, index, changed if self.nodes > 1 else {})
            with (self.folder / f"pod-{index}.log").open("ab") as log:
                process = subprocess.Popen(
                    here(words, [*self.settings, *more]),
                    env=environ(**variables, OMP_NUM_THREADS="1", TORCH_ELASTIC_SHUTDOWN_TIMEOUT=image),
                    stdout=log, stderr=log, cwd=self.folder,
                )  # fmt: skip
            started_here.append(process)
        return started_here

    def said(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("pod-*.log")
        )


def steps_of(run: Path) -> list[int]:
    """The steps of whole lines of its log."""
    path = run / "metrics.jsonl"
    *lines, _ = path.read_text().split("\n") if path.exists() else [""]
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.parametrize(("name", "nodes"), [("one-node.yaml", 1), ("several-nodes.yaml", 2)])
def test_pods_train_are_stopped_and_resume(name: str, nodes: int, tiny: list[str], tmp_path: Path) -> None:
    """The one node, or the last of several, is drained: SIGTERM to its first process."""
    run = tmp_path / "run"
    ranks = [f"run.ranks={nodes}"] if nodes == 1 else []
    pods = Pods(name, nodes, [*tiny, *LONG, *ranks, f"run.dir={run}"], tmp_path)
    processes = pods.start()
    try:
        until(lambda: steps_of(run)[2:], 240, processes[-1], pods.said)
        processes[-1].send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=240) for process in processes]
        assert json.loads((run / "summary.json").read_text())["status"] == "stopped", pods.said()
        assert all(codes), "no pod of an unfinished run has succeeded"
        assert all(ends(name, code) != "FailJob" for code in codes), codes
        if nodes == 1:
            assert (codes, ends(name, codes[0])) == ([3], "Ignore"), "stopped is no fault"
        (saved,) = (int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
        assert 0 < saved < 400
        processes = pods.start(f"run.stop_after={saved + 3}")
        assert [process.wait(timeout=240) for process in processes] == [0] * nodes, pods.said()
        assert steps_of(run) == [*range(saved + 4)]
        assert json.loads((run / "run.json").read_text())["attempts"] == 2
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_mistake_ends_the_job_of_one_node(tiny: list[str], tmp_path: Path) -> None:
    (process,) = Pods(
        "one-node.yaml", 1, [*tiny, "train.stepz=4", f"run.dir={tmp_path / 'run'}"], tmp_path
    ).start()
    assert ends("one-node.yaml", process.wait(timeout=120)) == "FailJob"
