"""Real runs against a stand-in for W&B's server: one run for one training, and what becomes of it when the network is
not there, or goes away."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from omegaconf import OmegaConf

from pretrain.config.settings import MonitorSettings, RunConfig
from pretrain.monitoring import tracker as monitor
from pretrain.monitoring.wandb_dashboard import keys_of, sections
from pretrain.monitoring.wandb_run import point_of
from pretrain.run import metrics_log
from pretrain.run.files import MARKER
from pretrain.run.metrics_log import PROBE_PREFIX
from tests.command_line import ROOT, Maskmill, environ
from tests.factories.tasks import FILES, write
from tests.wandb_server import ENTITY, Standin, serving

pytestmark = pytest.mark.slow

KEY = "f00dfeed" * 5
WANDB = Path(sys.executable).with_name("wandb")
TRACKED = ["monitor.tracker=wandb", "monitor.trust_ratios_every=2", "train.eval_every=2"]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with a key, and W&B's own folders out of the way."""
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_MODE", "WANDB_ENTITY", "WANDB_PROJECT"):
            patch.delenv(name, raising=False)
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("NETRC", str(folder / "none"))
        patch.setenv("WANDB_API_KEY", KEY)
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        yield folder


def reach(state: Standin, patch: pytest.MonkeyPatch) -> None:
    """Leads this process, whose wandb remembers the server before, and those that it starts, to this server."""
    patch.setenv("WANDB_BASE_URL", state.url)
    wandb.teardown()


@pytest.fixture(scope="module")
def tracked(
    elsewhere: Path, tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Standin, Path, str]]:
    """What the server has of a training that was stopped and went on, from prepare to export; its folder, and its
    index's hash."""
    folder = tmp_path_factory.mktemp("crew")
    run = folder / "sea"
    state = Standin()
    with serving(state), pytest.MonkeyPatch.context() as patch:
        reach(state, patch)
        write(folder / "RTE", FILES["rte"])
        probe = ["train.probe=rte", f"train.probe_data={folder}", "train.probe_every=2"]
        places = [f"run.dir={run}", f"data.out={folder}/shards"]
        settings = [*tiny, *TRACKED, "monitor.artifacts=all", *probe, *places]
        prepared = maskmill("prepare", "demo", *settings, cwd=folder)
        maskmill("train", "demo", *settings, "run.stop_after=2")
        trained = maskmill("train", "demo", *settings)
        maskmill("export", str(run))
        quick = ["epochs=1", "max_length=32", "batch=2", "threads=1"]
        maskmill("evaluate", str(run), "rte", "--data", str(folder), *quick)
        assert prepared.stderr == trained.stderr == ""
        assert state.errors == []
        yield state, run, json.loads((run / "run.json").read_text())["identity"]["data"]


def test_one_training_is_one_run_over_its_attempts(tracked: tuple[Standin, Path, str]) -> None:
    state, run, _ = tracked
    known = json.loads((run / "run.json").read_text())
    of_train = {name: one for name, one in state.runs.items() if one.settings["jobType"] == "train"}
    assert list(of_train) == [known["id"]]
    lines = metrics_log.read_metrics(run)
    assert [p["step"] for p in state.points(known["id"])] == [line["step"] for line in lines]
    assert len(lines) == 4 + 2 + 3 + 3, "steps, trust ratios, evaluations, probes"
    assert of_train[known["id"]].exit_code == 0


def test_stages_are_a_group_with_config_code_and_data(tracked: tuple[Standin, Path, str]) -> None:
    state, run, index = tracked
    jobs = {one.settings["jobType"]: one for one in state.runs.values()}
    assert set(jobs) == {"prepare", "train", "export", "evaluate"}
    assert {one.settings["groupName"] for one in jobs.values()} == {"sea"}
    config = jobs["train"].config
    assert config["data_index"] == {"data": index}
    assert config["train"]["steps"] == 4
    assert config["code"]["version"]
    assert jobs["prepare"].config["data_index"] == {"data": index}
    assert jobs["export"].config["exported_from"]["step"] == 4
    assert jobs["prepare"].summary["sha256"] == index
    scores = json.loads((run / "evaluation" / "rte" / "result.json").read_text())
    assert (
        jobs["evaluate"].summary["evaluation/rte/accuracy"] == scores["scores"]["dev"]["accuracy"]["median"]
    )
    assert "evaluation/rte/accuracy_not_pretrained" in jobs["evaluate"].summary


def test_artifacts_tell_what_was_made_from_what(tracked: tuple[Standin, Path, str]) -> None:
    state, run, index = tracked
    jobs = {one.settings["jobType"]: name for name, one in state.runs.items()}
    artifacts = {(one.type, one.metadata.get("step")): one for one in state.artifacts.values()}
    data, marker, model = (artifacts[k] for k in (("dataset", None), ("checkpoint", 4), ("model", 4)))
    assert (data.made_by, set(data.used_by)) == ([jobs["prepare"]], {jobs["train"]})
    assert (marker.made_by, marker.used_by) == ([jobs["train"]], [jobs["export"]])
    assert model.made_by == [jobs["export"]]
    assert data.metadata["sha256"] == index
    assert set(data.manifest["contents"]) == {"index.json", "tokenizer.json"}
    assert set(marker.manifest["contents"]) == {MARKER}, "names and hashes, no weights"
    exported = {
        str(path.relative_to(run / "export")) for path in (run / "export").rglob("*") if path.is_file()
    }
    assert set(model.manifest["contents"]) == exported


def test_only_what_is_meant_reaches_the_server(tracked: tuple[Standin, Path, str]) -> None:
    state, run, _ = tracked
    assert KEY.encode() not in state.received, "the key travels in its header alone"
    assert not any(name.endswith("wandb-metadata.json") for name in state.files), "it has the command line"
    assert state.alerts == [], "nothing was wrong"
    assert not any(KEY.encode() in path.read_bytes() for path in run.rglob("*") if path.is_file())


def test_the_dashboard_names_what_a_run_logs(tracked: tuple[Standin, Path, str]) -> None:
    state, run, _ = tracked
    logged = {
        key for point in state.points(json.loads((run / "run.json").read_text())["id"]) for key in point
    }
    assert logged == {key for line in metrics_log.read_metrics(run) for key in point_of(line)}
    of_many_ranks = {"slowest_rank", "slowest_rank_ratio"}
    assert keys_of(sections("bert")) - of_many_ranks <= logged
    patterns = {panel.pattern for section in sections("bert") for panel in section.panels if panel.pattern}
    of_ranks = {pattern for pattern in patterns if r"rank_\d+" in pattern}
    assert len(of_ranks) == 2
    assert {pattern.replace(r"\d+", "0") for pattern in of_ranks} <= logged
    [of_probes] = patterns - of_ranks
    shown = {key for key in logged if re.fullmatch(of_probes, key)}
    assert shown == {f"{PROBE_PREFIX}rte_accuracy", f"{PROBE_PREFIX}rte_trivial"}


def test_a_server_that_goes_away_half_way(
    elsewhere: Path,
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training goes on, ends as it should, and `maskmill sync` sends what is missing."""
    state, run = Standin(), tmp_path / "run"
    settings = [*tiny, "monitor.tracker=wandb", f"run.dir={run}"]
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "3")
    with serving(state, leaves_after="UpsertBucket"):
        reach(state, monkeypatch)
        done = maskmill("train", "demo", *settings)
    assert "W&B did not take all of the run in time: `maskmill sync" in done.stdout
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert list(state.runs) == [json.loads((run / "run.json").read_text())["id"]]
    assert [point for one in state.runs.values() for point in one.points] == []
    monkeypatch.delenv("WANDB_FINISH_TIMEOUT")
    with serving(state):
        reach(state, monkeypatch)
        assert "sent 6 lines" in maskmill("sync", str(run)).stdout
        assert "sent 0 lines" in maskmill("sync", str(run)).stdout
    steps = [point["step"] for point in state.points(next(iter(state.runs)))]
    assert steps == [0, 1, 2, 3, 4, 4], "and the evaluations at both ends"


def test_a_firewall_that_drops_packets(
    elsewhere: Path,
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing hangs, nothing is lost: an offline run, which `wandb leet` shows and `wandb sync` sends."""
    run, state = fresh_run(tmp_path / "run"), Standin()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never says a word
        state.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        reach(state, monkeypatch)
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
        log_steps(run)
    assert "W&B cannot be reached, continuing offline" in capsys.readouterr().out
    (offline,) = (run / "wandb").glob("offline-run-*")
    assert [path.name for path in offline.glob("run-*.wandb")] == ["run-abc.wandb"], "what leet reads"
    shown = json.loads(_wandb("leet", "inspect", "--summary", "--json", str(offline), WANDB_MODE="offline"))
    assert shown["summary"]["loss"] == 1.5
    monkeypatch.delenv("WANDB_INIT_TIMEOUT")
    with serving(state):
        reach(state, monkeypatch)
        _wandb("sync", str(offline))
        assert [p["step"] for p in state.points("abc")] == [1, 2, 3]
        assert "sent 0 lines" in maskmill("sync", str(run)).stdout, "the server has them already"
    assert (state.runs["abc"].settings["groupName"], state.errors) == ("run", [])


def test_a_machine_without_a_network(elsewhere: Path, tmp_path: Path) -> None:
    """With a key, and not even an interface: the same."""
    without_network = ["unshare", "--user", "--map-root-user", "--net"]
    run = fresh_run(tmp_path / "run")
    wandb.teardown()  # or the other process would take ours for its own
    code = "import sys; from pathlib import Path; from tests.smoke.test_wandb import *; log_steps(Path(sys.argv[1]))"
    done = subprocess.run(
        [*without_network, sys.executable, "-c", code, str(run)],
        capture_output=True,
        text=True,
        env=environ(WANDB_INIT_TIMEOUT="3", WANDB_BASE_URL="https://api.wandb.ai"),
        timeout=120,
        check=True,
    )
    assert "continuing offline" in done.stdout
    assert len(metrics_log.read_metrics(run)) == 3
    assert len(list((run / "wandb").glob("offline-run-*/run-abc.wandb"))) == 1


def test_a_killed_offline_run_is_sent_whole(
    elsewhere: Path, maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `maskmill sync`, from metrics.jsonl: W&B's own file of a killed attempt lacks what its process held back."""
    run, state, count = fresh_run(tmp_path / "run"), Standin(), 203
    code = (
        "import os, sys; from pathlib import Path; from tests.smoke.test_wandb import *\n"
        "tracker = monitor.open_tracker(Path(sys.argv[1]), MonitorSettings(tracker='wandb'), 'abc', {}, True)\n"
        f"for step in range(1, {count + 1}): tracker.log({{'kind': 'train', 'step': step, 'loss': 1.5}})\n"
        "os.kill(os.getpid(), 9)"
    )
    wandb.teardown()
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], env=environ(WANDB_MODE="offline"), timeout=120, check=False
    )
    assert done.returncode == -9
    with serving(state):
        reach(state, monkeypatch)
        assert f"sent {count} lines" in maskmill("sync", str(run)).stdout
        assert [p["step"] for p in state.points("abc")] == list(range(1, count + 1))
        assert "sent 0 lines" in maskmill("sync", str(run)).stdout


@pytest.mark.parametrize(
    ("status", "said"), [(401, "refuses the key (401, wrong or missing)"), (403, "(403)")]
)
def test_a_refused_key_is_called_that(
    status: int,
    said: str,
    elsewhere: Path,
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, state = fresh_run(tmp_path / "run"), Standin()
    state.refuses = status
    with serving(state):
        reach(state, monkeypatch)
        log_steps(run)
        shown = capsys.readouterr().out
        (line,) = [line for line in shown.splitlines() if "WARNING" in line]
        assert "W&B was reached and refused, continuing offline" in line
        assert said in line
        done = maskmill("sync", str(run), code=2)
        (line,) = done.stderr.splitlines()
        assert said in line
        assert "cannot be reached" not in line
        assert "nothing is lost" in line
        state.refuses = 0
        wandb.teardown()
        assert "sent 3 lines" in maskmill("sync", str(run)).stdout


def fresh_run(folder: Path) -> Path:
    """A run folder as it is before its first step."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": 2, "identity": {}, "id": "abc", "attempts": 1}))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(RunConfig)))
    return folder


def log_steps(run: Path) -> None:
    """Three steps of an attempt of this run."""
    tracker = monitor.open_tracker(run, MonitorSettings(tracker="wandb", project="maskmill"), "abc", {}, True)
    for step in (1, 2, 3):
        tracker.log({"kind": "train", "step": step, "loss": 1.5})
    tracker.close()


def _wandb(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [str(WANDB), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dashboard_on_the_server(
    tracked: tuple[Standin, Path, str], maskmill: Maskmill, tmp_path: Path
) -> None:
    state, run, _ = tracked
    said = maskmill("dashboard", str(run)).stdout
    assert state.errors == []
    kinds = {view["type"]: view for view in state.views.values()}
    assert set(kinds) == {"project-view", "runs"}
    assert {(view["entityName"], view["projectName"]) for view in kinds.values()} == {(ENTITY, "maskmill")}
    assert all(f"{name}: http" in said for name in ("workspace", "report"))
    spec = json.loads(kinds["project-view"]["spec"])
    names = [section["name"] for section in spec["section"]["panelBankConfig"]["sections"]]
    assert names == ["Learning", "Speed", "Optimizer", "Health"]
    assert '"sea"' in json.dumps(spec["section"]["runSets"]), "this training alone"


def test_the_dashboard_without_a_network(
    maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    file = tmp_path / "spec.json"
    said = maskmill("dashboard", "team/project", "--json", str(file), "--dry-run").stdout
    assert "Trust ratio by layer" in said
    from wandb_workspaces.reports.v2.internal import Spec
    from wandb_workspaces.workspaces.internal import WorkspaceViewspec

    spec = json.loads(file.read_text())
    assert WorkspaceViewspec.model_validate(spec["workspace"])
    assert Spec.model_validate(spec["report"])
    found = [
        panel
        for section in spec["workspace"]["section"]["panelBankConfig"]["sections"]
        for panel in section["panels"]
    ]
    assert {key for panel in found for key in panel["config"]["metrics"]} == keys_of(sections())
    assert all(panel["config"]["xAxis"] == "step" for panel in found)
    grids = [block for block in spec["report"]["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == len(sections())
    assert "no W&B key" in maskmill("dashboard", "team/project", code=2).stderr
    assert "ENTITY/PROJECT" in maskmill("dashboard", "a/b/c", code=2).stderr
    assert "not a run folder" in maskmill("dashboard", str(ROOT), code=2).stderr
