"""A run's folder: what it is a run of (identity), where it stands (summary), and its parts by name.

RUN/config.yaml       resolved settings        RUN/metrics.jsonl     a line a log step
RUN/run.json          identity, W&B run id     RUN/summary.json      status and newest figures
RUN/checkpoints/      see checkpoint.py        RUN/logs/             output of ranks other than the first, stacks
RUN/events.jsonl      a line a disturbance: skipped batches, rollbacks, damaged data
RUN/lives.jsonl       a line for each start, checkpoint and end of the run's lives
"""

import fcntl
import json
import secrets
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from data_pipeline.blotting import blot
from data_pipeline.errors import UserError
from data_pipeline.index import canonical_json
from data_pipeline.storage import write_whole
from pretrain.checkpoint import checkpoints
from pretrain.config import RunConfig
from pretrain.monitor import is_number, read_metrics, wrong_figure
from pretrain.preflight import Plan

if TYPE_CHECKING:
    from pretrain.world import World

RUN, CONFIG, SUMMARY = "run.json", "config.yaml", "summary.json"


def identity_of(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """What decides the weights in one phase: a folder holds one run, and a run has one identity.

    Ranks, ZeRO stage, micro-batch and intervals are not in it: they may change at a resume."""
    groups = {name: asdict(config)[name] for name in ("optim", "schedule", "encoder")}
    return {
        "data": plan.index.identity,
        "vocabulary": plan.index.vocabulary.sha256,
        "objective.name": config.objective.name,
        "data.streams": plan.streams,
        "data.dynamic_masking": dict(plan.masking.identity) if plan.masking else None,
        "run.seed": config.run.seed,
        "train.steps": config.train.steps,
        "train.global_batch": config.train.global_batch,
        "train.precision": plan.precision,
        "train.clip": config.train.clip,
        **{f"{name}.{key}": value for name, group in groups.items() for key, value in group.items()},
        "init_from": config.init_from,
        "init_moments": config.init_moments,
    }


def run_identity(plans: list[Plan]) -> dict[str, Any]:
    """identity_of the run; where it has phases, what differs between them is under the name of each."""
    each = {plan.phase.name: identity_of(plan.phase.config, plan) for plan in plans}
    first = next(iter(each.values()))
    if len(each) == 1:
        return first | ({"phases": list(each)} if list(each) != [""] else {})
    shared = {key for key in first if all(other[key] == first[key] for other in each.values())}
    return {
        "phases": list(each),
        **{key: first[key] for key in first if key in shared},
        **{f"{name}.{key}": own[key] for name, own in each.items() for key in own if key not in shared},
    }


def check_folder(config: RunConfig, plans: list[Plan]) -> dict[str, Any]:
    """run.json of this very run in run.dir, or a new one's; nothing is written. Raises UserError for a folder that
    holds something else."""
    folder, identity = Path(config.run.dir), run_identity(plans)
    run = read_run(folder)
    if run is not None and not checkpoints(folder) and not read_metrics(folder):
        run = None  # a first start that came to nothing: what it was told may be corrected
    elif run is None and _holds_other_files(folder):
        raise UserError(
            "holds other files", where=folder, expected="a new or empty folder, or this run's own"
        )
    if run is None:
        return {"identity": identity, "id": config.monitor.id or secrets.token_hex(4), "lives": 0}
    if is_finished(folder):
        _refuse_more_steps(run["identity"], identity, folder)
    refuse_another(run["identity"], identity, folder, "choose another run.dir")
    return run


def is_finished(folder: Path) -> bool:
    """Whether the run of this folder has made all its steps."""
    return bool(read_summary(folder).get("status") == "finished")


def _refuse_more_steps(then: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raises UserError, with the command's settings for more of them, where nothing differs but steps."""
    differing = [key for key, value in now.items() if then.get(key) != value]
    if not differing or any(not f".{key}".endswith(".train.steps") for key in differing):
        return
    new = next(path for n in count(2) if not (path := folder.with_name(f"{folder.name}-{n}")).exists())
    more = sum(int(now[key]) - int(then.get(key, 0)) for key in differing)
    added = f" train.steps={more}" if differing == ["train.steps"] and more > 0 else ""
    raise UserError(
        f"the run is finished at {_steps_of(then, differing)}, where its learning-rate schedule ends; "
        f"asked for are {_steps_of(now, differing)}",
        where=folder,
        remedy="to train on, start another run from its weights and moments: "
        f"run.dir={new} init_from={folder} init_moments=true{added}",
    )


def _steps_of(identity: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key}={identity.get(key)}" for key in keys)


def refuse_another(then: dict[str, Any], now: dict[str, Any], where: object, remedy: str) -> None:
    """Raises UserError, with the settings that differ, where `then` is another run's identity than `now`."""
    differing = [
        f"{key}={value} (there: {then.get(key)})" for key, value in now.items() if then.get(key) != value
    ]
    if differing:
        raise UserError(
            f"holds another run: {', '.join(differing)}",
            where=where,
            remedy=f"{remedy}, or the settings that it was made with",
        )


def _holds_other_files(folder: Path) -> bool:
    """Whether there is anything beside what a start that came to nothing leaves: logs and hidden files."""
    if not folder.is_dir():
        return folder.exists()
    return any(path.name != "logs" and not path.name.startswith(".") for path in folder.iterdir())


def open_run(config: RunConfig, plans: list[Plan]) -> dict[str, Any]:
    """Makes the run folder where there is none and counts this life; the first rank calls this. Returns the run's
    W&B `id` and whether it is `finished`."""
    folder, run = Path(config.run.dir), check_folder(config, plans)
    finished = is_finished(folder)
    if not finished:
        run["lives"] += 1
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RUN, canonical_json(run, indent=1))
        write_whole(folder / CONFIG, blot(OmegaConf.to_yaml(OmegaConf.structured(config))).encode())
    return {"id": run["id"], "lives": run["lives"], "finished": finished}


def seen_by_all(folder: Path, about: dict[str, Any], world: "World") -> None:
    """Raises UserError on every rank where some rank does not see the run folder of the first. All ranks call it."""
    run = read_run(folder)
    here = run is not None and (run["id"], run["lives"]) == (about["id"], about["lives"])
    blind = [rank for rank, sees in enumerate(world.gather(here)) if not sees]
    if blind:
        raise UserError(
            f"ranks {blind[:5]} do not see what the first rank wrote",
            where=folder,
            expected="a folder on storage that all nodes share",
        )


def lock(folder: Path) -> Any:
    """Makes the run folder and holds it until the process ends or the result is closed. Raises UserError where
    another life of the run is at work."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(
            "another process is training here", where=folder, remedy="wait for it, or end it"
        ) from None
    except OSError:
        pass  # a file system without locks
    return file


def refuse_locked(folder: Path) -> None:
    """Raises UserError where another life of the run is at work. Makes nothing, and holds nothing afterwards."""
    if (folder / ".lock").is_file():
        lock(folder).close()


def read_run(folder: Path) -> dict[str, Any] | None:
    """run.json of `folder`; None where there is none."""
    path = folder / RUN
    if not path.is_file():
        return None
    return parsed_run(path.read_bytes(), path)


def parsed_run(data: bytes, where: object) -> dict[str, Any]:
    """What `data`, the bytes of a run.json, says. Raises UserError."""
    try:
        values = json.loads(data)
        if not isinstance(values["identity"], dict) or not isinstance(values["lives"], int):
            raise ValueError("not a run's")
        return {**values, "id": str(values["id"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"malformed: {error}", where=where) from None


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of `folder`, empty where there is none. Raises UserError where it is no summary."""
    path = folder / SUMMARY
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        counts = dict(dict(values.get("data", {})).get("held_out", {}))
        wrong = wrong_figure(values) or ", ".join(
            name for name in _COUNTS if not is_number(counts.get(name, 0))
        )
        values = {name: value for name, value in values.items() if value is not None}
        for phase in values.get("phases", []):
            str(phase["name"])
            wrong = wrong or ", ".join(key for key in _PHASE if not is_number(phase[key]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError("malformed", where=path, expected="JSON that a run wrote") from None
    if wrong:
        raise UserError(f"malformed: {wrong} is no number", where=path)
    return values


_COUNTS = ("examples", "pairs_is_next", "pairs_random")
_PHASE = ("last", "global_batch", "sequence_length", "lr")


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Replaces summary.json as a whole."""
    write_whole(folder / SUMMARY, canonical_json(summary, indent=1))
