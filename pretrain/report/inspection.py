"""Describe a run, a checkpoint or an exported model, for people or as JSON.

Every hash is verified: what is shown is what was written. Shards are described by data_pipeline/shards/lint.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_pipeline.errors import UserError, shown_json
from data_pipeline.io.model_folder import CARD, CHANGED, NOTE, changed, noted_hashes, read_json
from pretrain.checkpoint.store import checkpoints, damage_of, find_checkpoint, open_checkpoint
from pretrain.distributed.world import World
from pretrain.huggingface.config_json import read_config
from pretrain.huggingface.folder import stored_shapes
from pretrain.run.files import CONFIG, EXPORT, MARKER, REPORT, RUN, is_number
from pretrain.run.folder import model_folders, not_sealed, read_run, read_settings, read_summary
from pretrain.run.learning import learning_of
from pretrain.run.metrics import count, headline_of, leading, secondary
from pretrain.run.metrics_log import read_metrics


def show(facts: dict[str, Any], path: Path, console: Console, as_json: bool) -> None:
    """Print the facts of `describe` about `path`. Raises UserError if a checkpoint is damaged."""
    if as_json:
        print(shown_json(facts, sort_keys=True))
    elif facts["kind"] == "run":
        _show_run(facts, path, console)
    else:
        _show(facts, console)
    if damaged := facts.get("damaged"):
        raise UserError(
            f"damaged: {'; '.join(damaged.values())}",
            where=path,
            expected=f"{len(facts['checkpoints']) + len(damaged)} whole checkpoints",
            remedy="maskmill train resumes from the newest whole one",
        )


def describe(path: Path) -> dict[str, Any]:
    """Return facts about `path` by name; `damaged` of a run lists its damaged checkpoints. Raises UserError for another
    damaged file, or an unknown kind of folder."""
    if (path / RUN).is_file():
        return _run(path)
    if (path / MARKER).is_file():
        return _checkpoint(path)
    if models := model_folders(path):
        facts = [_model(folder) for folder in models]
        if len(facts) == 1:
            return facts[0]
        return {"kind": "exported models", **{p.name: f for p, f in zip(models, facts, strict=True)}}
    raise UserError(
        "nothing to inspect",
        where=path,
        expected="a folder of shards, a run, a checkpoint or an exported model",
    )


def _run(path: Path) -> dict[str, Any]:
    run, summary = read_run(path), read_summary(path)
    if (path / CONFIG).is_file():
        read_settings(path)
    assert run is not None
    complete, damaged = {}, {}
    for folder in checkpoints(path):
        if damage := damage_of(folder, World()):
            damaged[folder.name] = damage
        else:
            complete[folder.name] = open_checkpoint(folder).state.get("held_out_loss")
    return {
        "kind": "run",
        **summary,
        "attempts": run["attempts"],
        "id": run["id"],
        "lines": len(read_metrics(path)),
        "checkpoints": list(complete),
        "damaged": damaged,
        "hashes": "all hold" if not damaged else f"{len(damaged)} checkpoints are damaged",
        "not_sealed": not_sealed(path),
        "where": {
            "run": str(path),
            "report": str(path / REPORT) if (path / REPORT).is_file() else "",
            "model": str(path / EXPORT) if (path / EXPORT).is_dir() else "",
        },
    }


def _checkpoint(path: Path) -> dict[str, Any]:
    checkpoint = find_checkpoint(path)
    return {
        "kind": "checkpoint",
        "step": checkpoint.step,
        "phase": checkpoint.state.get("phase", {}).get("name", ""),
        "parameters": sum(int(np.prod(shape)) for shape in checkpoint.shapes.values()),
        "tensors": len(checkpoint.shapes),
        "bytes": sum(entry["bytes"] for entry in checkpoint.files),
        "position": checkpoint.state.get("position"),
        "conditions": checkpoint.state.get("conditions"),
        "hashes": "all hold",
    }


def _model(path: Path) -> dict[str, Any]:
    hashes, config = _model_hashes(path), read_config(path)
    shapes = stored_shapes(path)
    return {
        "kind": "exported model",
        "architectures": config.get("architectures"),
        "parameters": sum(int(np.prod(shape)) for shape in shapes.values()),
        "tensors": len(shapes),
        "files": sorted(p.name for p in path.iterdir()),
        "hidden_size": config.get("hidden_size"),
        "num_hidden_layers": config.get("num_hidden_layers"),
        "vocab_size": config.get("vocab_size"),
        "hashes": hashes,
    }


def _model_hashes(path: Path) -> str:
    """Raise UserError for the first file of an exported model whose bytes differ from those that were written."""
    note = path / NOTE
    if not note.exists():
        return "none: not exported by Maskmill"
    different = changed(path, noted_hashes(read_json(note), note))
    for name in different:
        if name != CARD or not (path / CARD).is_file():
            raise UserError(CHANGED, where=path / name, remedy="export again")
    return "all hold, but for README.md, which was edited" if different else "all hold"


def _show(facts: dict[str, Any], console: Console) -> None:
    table = Table(title=facts["kind"], show_header=False, title_justify="left")
    for key, value in _flat(facts):
        if key != "kind":
            table.add_row(escape(key), escape(_number(value)))
    console.print(table)


def _show_run(facts: dict[str, Any], path: Path, console: Console) -> None:
    """Print the few figures that a person asks for first; --json and the report have the rest."""
    table = Table(title=f"run {path}", show_header=False, title_justify="left")
    for name, value in run_headlines(facts, read_metrics(path)):
        table.add_row(escape(name), escape(value))
    console.print(table)


def _phase_end(phase: dict[str, Any]) -> str:
    last, name = phase.get("last"), phase["name"]
    return name if last is None else f"{name} up to step {last:,}"


def run_headlines(facts: dict[str, Any], lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a run's results in words: (what, figure)."""
    rows = [
        (
            "status",
            f"{facts.get('status', 'not started')}, step {facts.get('step', 0):,}"
            + (f" of {facts['steps']:,}" if facts.get("steps") else ""),
        )
    ]
    if phases := [phase for phase in facts.get("phases", []) if phase["name"]]:
        rows.append(("phases", ", ".join(map(_phase_end, phases))))
    rows += _learning(facts, lines)
    speeds = sorted(line["tokens_per_s"] for line in lines if is_number(line.get("tokens_per_s")))
    if speeds:
        rows.append(("tokens/s, median, no padding counted", count(speeds[len(speeds) // 2])))
    if "seconds" in facts:
        rows.append(
            (
                "time",
                f"{facts['seconds'] / 60:.1f} minutes on {facts.get('ranks', 1)} ranks, {facts.get('device', '')}",
            )
        )
    rows.append(("checkpoints", f"{', '.join(facts['checkpoints']) or 'none'}; all their hashes hold"))
    rows += [("DAMAGED checkpoint", f"{name}: {what}") for name, what in facts.get("damaged", {}).items()]
    if facts.get("not_sealed"):
        files = " and ".join(facts["not_sealed"])
        rows.append(
            ("not sealed", f"{files}, written before they had a sha256 of their own: a change would not show")
        )
    return rows + [(name, where) for name, where in facts["where"].items() if where]


def _learning(facts: dict[str, Any], lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the headline figures beside their baselines, then what copying could achieve, then the findings."""
    metrics, findings, untrained = learning_of(facts, lines)
    headline, before = headline_of(facts), ", untrained" if untrained else ""
    rows = [
        (f"held-out {score.metric.label}{before}", score.cell)
        for score in leading(metrics, headline=headline)
    ]
    rows += [(f"  {what}", value) for what, value in secondary(metrics, headline=headline)]
    return rows + [("look at", str(finding)) for finding in findings]


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif value not in ("", None, []):
            rows.append((f"{prefix}{key}", value))
    return rows


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
