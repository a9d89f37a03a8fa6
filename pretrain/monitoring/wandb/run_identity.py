"""Choose the name, group and configuration of a run on W&B from its settings and folder.

There is one group per training, named after its run folder, with a W&B run per stage (the job type): prepare, train,
export, evaluate. The run of `train` has one id for all its attempts and phases, kept in run.json.
"""

import os
import re
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from data_pipeline.errors import redact_settings
from data_pipeline.shards.index import Index
from pretrain.config.settings import MonitorSettings, RunConfig

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Stage:
    """What W&B gets at the start of a run."""

    folder: Path
    """Parent of W&B's own folder `wandb`."""
    project: str
    id: str
    name: str
    group: str
    job: str
    """prepare, train, export or evaluate."""
    config: dict[str, Any]
    """The resolved recipe, without credentials, and `code` and `data_index`."""


def train_stage(
    folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any], identity: dict[str, Any]
) -> Stage:
    """Return the stage of a training; `identity`: that of its run.json, which has the hash of each phase's index."""
    hashes = {key: value for key, value in identity.items() if key.rpartition(".")[2] == "data"}
    facts = {"code": code_version(), "data_index": hashes, "vocabulary_sha256": identity.get("vocabulary")}
    group = group_of(folder, settings.group)
    return Stage(
        folder, settings.project, run_id, folder.name, group, "train", {**redact_settings(config), **facts}
    )


def prepare_stage(config: RunConfig, index: Index) -> Stage:
    """Return the stage of new shards. W&B's files go to W&B's default, WANDB_DIR or the working directory: the folder
    of the shards holds only shards."""
    facts = {"code": code_version(), "data_index": {"data": index.identity}}
    settings = {**redact_settings(asdict(config)), **facts}
    group = group_of(Path(config.run.dir), config.monitor.group)
    name = f"prepare {folder_name(index.folder)}"
    run_id = f"prepare-{index.identity[:12]}"
    return Stage(
        Path(os.environ.get("WANDB_DIR", ".")),
        config.monitor.project,
        run_id,
        name,
        group,
        "prepare",
        settings,
    )


def export_stage(run: Path, config: RunConfig, run_id: str, step: int) -> Stage:
    """Return the stage of a model that was just exported from a checkpoint of `run`."""
    settings = {
        **redact_settings(asdict(config)),
        "code": code_version(),
        "exported_from": {"run": run_id, "step": step},
    }
    group = group_of(run, config.monitor.group)
    name, export_id = f"export {run.name} step {step}", f"{run_id}-export-{step}"
    return Stage(run, config.monitor.project, export_id, name, group, "export", settings)


def evaluate_stage(run: Path, config: RunConfig, run_id: str) -> Stage:
    """Return the stage of the scores of a run's model on tasks: one for all of them, whenever they are taken."""
    settings = {**redact_settings(asdict(config)), "code": code_version(), "scored": {"run": run_id}}
    group = group_of(run, config.monitor.group)
    name, evaluate_id = f"evaluate {run.name}", f"{run_id}-evaluate"
    return Stage(run, config.monitor.project, evaluate_id, name, group, "evaluate", settings)


def group_of(folder: Path, wanted: str = "") -> str:
    """Return the W&B group of all stages of a training."""
    return wanted or folder.resolve().name


def folder_name(folder: str) -> str:
    """Return the last part of a path or URI, in the form of an artifact name."""
    return re.sub(r"[^\w.-]+", "-", folder.rstrip("/").rpartition("/")[2]) or "shards"


@cache
def code_version() -> dict[str, Any]:
    """Return the installed version; in a working tree also its commit, and whether files differ from it."""
    try:
        found: dict[str, Any] = {"version": version("maskmill")}
    except PackageNotFoundError:
        found = {}
    if commit := _git("rev-parse", "HEAD"):
        found |= {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    return found


def _git(*arguments: str) -> str:
    if not (ROOT / ".git").exists():  # an installed package, perhaps inside another repository
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
