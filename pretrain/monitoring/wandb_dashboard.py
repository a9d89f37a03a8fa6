"""Define the dashboard of a project or run, and make a W&B workspace and a report of it, or their spec as JSON.

The dashboard is a plain table of sections, panels and metric names, defined without W&B. Every key is logged by a
training: those of every run are named here, those of the objectives come from the objectives. After a change of the
table, another call makes a new workspace and report. The only import of wandb-workspaces.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from pretrain.monitoring.wandb_run import (
    BY_RANK,
    TRUST_BY_LAYER,
    TRUST_SPREAD,
    default_entity,
    group_of,
    has_key,
    make_project,
    settings_of,
    why,
)
from pretrain.objectives.registry import OBJECTIVES, with_defaults
from pretrain.run.metrics import HELD_OUT, Kind, leading_kind, leads_alone, metric, said, title_of
from pretrain.run.metrics_log import PROBE_PREFIX

# Define sections and panels by the names of metrics.


LAMB = "lamb"
"""The optimizer that has trust ratios."""


@dataclass(frozen=True)
class Panel:
    """One chart over the steps."""

    title: str
    keys: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression for keys whose number depends on the run."""
    unit: str = ""
    log: bool = False
    """A logarithmic y-axis."""


@dataclass(frozen=True)
class Section:
    """Charts that answer one question."""

    name: str
    question: str
    panels: tuple[Panel, ...]


def sections(objective: str = "", optimizer: str = "") -> list[Section]:
    """Return the dashboard for runs of `objective` with `optimizer`; empty: any."""
    return [_learning(objective), _speed(), _optimizer(optimizer), _health()]


def keys_of(found: list[Section]) -> set[str]:
    """Return all keys that are named, without those that patterns match."""
    return {key for section in found for panel in section.panels for key in panel.keys}


def _learning(objective: str) -> Section:
    known = [with_defaults(name) for name in ([objective] if objective else OBJECTIVES)]
    losses = _unique(f"{term}_loss" for one in known for term in one.terms)
    metrics = _unique(name for one in known for name in one.metrics)
    leads = {kind.name: kind for kind in (leading_kind(one.headline) for one in known)}
    parts = [metric(name) for name in metrics]
    labelled = [(name, m) for name, m in zip(metrics, parts, strict=True) if m and m.label]
    accuracies = [
        name
        for name, m in zip(metrics, parts, strict=True)
        if m and m.what == "accuracy" and not m.label and not m.kind.part and m.kind.name not in leads
    ]
    panels = [panel for kind in leads.values() for panel in _leading(kind)]
    majorities = [m.baseline for m in map(metric, accuracies) if m and m.kind.labels]
    if accuracies:
        panels.append(Panel("Accuracies", (*accuracies, *_held_out(accuracies), *_held_out(majorities))))
    if by_label := [name for name, m in labelled if m.what == "accuracy"]:
        panels += [
            Panel("Accuracy by pair label", tuple(by_label)),
            Panel("Held-out accuracy by pair label", _held_out(by_label)),
            Panel("Loss by pair label", tuple(name for name, m in labelled if m.what == "loss")),
        ]
    panels += _where_a_word_is_shown(
        _unique(m.kind.name for m in parts if m and m.kind.part and m.kind.beside)
    )
    panels += [
        Panel(f"Loss that is minimised: {' + '.join(losses)}", ("loss", f"{HELD_OUT}loss")),
        Panel("Its terms", (*losses, *_held_out(losses))),
    ]
    panels.append(Panel("Probe (train.probe)", pattern=rf"{PROBE_PREFIX}.*", unit="percent"))
    own = [one.headline for one in known if leads_alone(one.headline)]
    panels = [*(Panel(title_of(said(name)), (name, *_held_out([name]))) for name in _unique(own)), *panels]
    return Section("Learning", _question(list(leads.values()), bool(labelled)), tuple(panels))


def _question(leads: list[Kind], pairs: bool) -> str:
    parts = ["Is it learning?"]
    for kind in leads:
        if kind.words:
            parts.append(
                f"The held-out {kind.said('loss')} must fall below what word frequencies alone give there "
                f"({HELD_OUT}{kind.name}_unigram_loss), and no one answer may be given at more than half of the "
                "positions: until then no context has been learnt."
            )
        if kind.part:
            parts.append("Losses over all predicted tokens fall by copying the words that stay visible.")
    if pairs:
        parts.append("A pair label whose accuracy is 1 while the other's is 0 has not been learnt at all.")
    return " ".join(parts)


def _leading(kind: Kind) -> list[Panel]:
    """Return the headline figures, each beside its baseline."""
    name = kind.name
    accuracy = (f"{name}_accuracy", f"{HELD_OUT}{name}_accuracy", f"{HELD_OUT}{name}_majority")
    losses = (f"{name}_loss", f"{HELD_OUT}{name}_loss")
    if not kind.words:
        return [
            Panel(title_of(kind.said("loss")), losses),
            Panel(f"{title_of(kind.said('accuracy'))}, and of the commonest answer", accuracy),
        ]
    perplexity = (f"{name}_perplexity", f"{HELD_OUT}{name}_perplexity")
    return [
        Panel(
            f"{title_of(kind.said('loss'))}, and of word frequencies alone",
            (*losses, f"{HELD_OUT}{name}_unigram_loss"),
        ),
        Panel(f"{title_of(kind.said('accuracy'))}, and of the most frequent token", accuracy),
        Panel(title_of(kind.said("perplexity")), perplexity, log=True),
        Panel(f"Share of the commonest answer {kind.at}".rstrip(), (f"{HELD_OUT}{name}_top_share",)),
    ]


def _where_a_word_is_shown(kinds: list[str]) -> list[Panel]:
    """Return the secondary panels: copying does well at kept words."""
    return [
        Panel(f"{what.capitalize()} where a word is shown", (*names, *_held_out(names)))
        for what in ("accuracy", "loss")
        if (names := [f"{kind}_{what}" for kind in kinds])
    ]


def _speed() -> Section:
    panels = (
        Panel("Tokens per second", ("tokens_per_s",), unit="tokens/s"),
        Panel("Examples per second", ("examples_per_s",), unit="examples/s"),
        Panel("Model FLOPs utilisation", ("mfu",), unit="share of the peak"),
        Panel("Token budget used, and padding", ("fill", "padding_share"), unit="share"),
        Panel("Waiting for data", ("data_wait_share",), unit="share of the time"),
        Panel("Step time", ("step_ms", "slowest_step_ms"), unit="ms", log=True),
        *(
            panel
            for field, curve in BY_RANK.items()
            for panel in (
                Panel(f"{_title(field)}: rank upwards, time as colour", (field,), unit="rank"),
                Panel(f"{_title(field)}: curves", pattern=rf"{curve}\d+", unit="ms"),
            )
        ),
    )
    question = (
        "Is the hardware used? Wall-clock time goes where the utilisation is low: a wait for data above 5 % is a "
        "stall, a rank whose forward pass takes longer than the others' holds all of them up."
    )
    return Section("Speed", question, panels)


def _optimizer(optimizer: str) -> Section:
    trust = (
        Panel("Mean trust ratio", ("trust_ratio",)),
        Panel("Trust ratio by layer: layer upwards, ratio as colour", (TRUST_BY_LAYER,), unit="layer"),
        Panel("Trust ratios of all tensors: ratio upwards, how many as colour", (TRUST_SPREAD,)),
    )
    has_trust = optimizer in ("", LAMB)
    panels = (
        Panel("Learning rate", ("lr",)),
        Panel("Gradient norm before clipping", ("grad_norm",), log=True),
        *(trust if has_trust else ()),
        Panel("Skipped batches", ("skipped_batches",)),
    )
    question = (
        "Are the updates sound? A gradient norm that grows for hundreds of steps comes before a divergence."
    )
    if has_trust:
        question += (
            " The trust ratio by layer (monitor.trust_ratios_every) shows which layers move: row 0 is the embeddings, "
            "the last row the heads."
        )
    return Section("Optimizer", question, panels)


def _health() -> Section:
    panels = (
        Panel("Skipped batches and damaged examples", ("skipped_batches", "damaged_examples")),
        Panel("Memory of the fullest rank", ("memory_gb",), unit="GB"),
        Panel("Slowest rank, as a multiple of the others", ("slowest_rank_ratio",)),
        Panel("Which rank is slowest", ("slowest_rank",)),
        Panel("Epoch", ("epoch",)),
        Panel("Batches consumed", ("batch",)),
    )
    question = (
        "Does it run as it should? Damaged examples are left out and counted (data.on_damage=skip); events.jsonl in "
        "the run folder has a line for each. The same rank slowest for hours is a machine to look at."
    )
    return Section("Health", question, panels)


def _title(field: str) -> str:
    return {"step_ms_by_rank": "Step time by rank", "forward_ms_by_rank": "Forward time by rank"}[field]


def _held_out(names: list[str]) -> tuple[str, ...]:
    return tuple(f"{HELD_OUT}{name}" for name in names)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


# Make a workspace and a report of the sections, or return their spec.


TITLE, X_AXIS = "Maskmill", "step"
ABOUT = "What `maskmill dashboard` draws of a training: is it learning, how fast, how soundly, how well."


@dataclass(frozen=True)
class Target:
    """The project or run that a dashboard shows."""

    entity: str
    """User or team; empty: that of the key."""
    project: str
    group: str = ""
    """The group of one training; empty: all in the project."""
    objective: str = ""
    optimizer: str = ""
    """Objective and optimizer; empty: any."""

    @property
    def title(self) -> str:
        """The title shown to people."""
        return f"{TITLE}: {self.group}" if self.group else TITLE


def target_of(source: str, entity: str = "") -> Target:
    """Parse `source`: a run folder, `project`, or `entity/project`. Raises UserError."""
    folder = Path(source)
    if folder.is_dir():
        config = settings_of(folder)
        if config is None:
            raise UserError(
                "not a run folder", where=folder, expected="a run folder, or the name of a W&B project"
            )
        group = group_of(folder, config.monitor.group)
        return Target(
            _entity(entity), config.monitor.project, group, config.objective.name, config.optim.name
        )
    parts = source.split("/")
    if len(parts) > 2 or not all(parts):
        raise UserError(
            "no such folder, nor a W&B project", where=source, expected="RUN, PROJECT or ENTITY/PROJECT"
        )
    return Target(_entity(entity or (parts[0] if len(parts) == 2 else "")), parts[-1])


def as_values(target: Target) -> dict[str, Any]:
    """Return the spec of workspace and report, as W&B stores it; made without a network."""
    _need_library()
    workspace, report = _workspace(target), _report(target, online=False)
    return {
        "workspace": workspace._model.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
        "report": report._to_model().spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
    }


def create(target: Target) -> dict[str, str]:
    """Create workspace and report on W&B, and the project if it does not exist; return their addresses. Raises
    UserError without a key, a server, or the library."""
    _need_library()
    if not has_key():
        raise UserError(
            "no W&B key", where="dashboard", remedy="run `wandb login`, or use --json FILE without one"
        )
    try:
        target = replace(target, entity=target.entity or default_entity())
        make_project(target.entity, target.project)
        report = _report(target, online=True).save()
        workspace = _workspace(target).save()
        return {"workspace": workspace.url, "report": report.url}
    except Exception as error:
        raise UserError(
            f"W&B did not make it: {why(error)}",
            where=f"{target.entity}/{target.project}",
            remedy="look at the network, WANDB_BASE_URL and the key, or write the spec with --json FILE",
        ) from None


def _workspace(target: Target) -> Any:
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=target.entity,
        project=target.project,
        name=target.title,
        sections=[
            ws.Section(name=section.name, panels=[_chart(panel) for panel in section.panels], is_open=True)
            for section in sections(target.objective, target.optimizer)
        ],
        settings=ws.WorkspaceSettings(x_axis=X_AXIS),
        runset_settings=ws.RunsetSettings(filters=_filters(target)),
    )


def _report(target: Target, online: bool) -> Any:
    import wandb_workspaces.reports.v2 as wr

    # a set of runs that names its project is looked up on the server
    whose: dict[str, Any] = {"entity": target.entity, "project": target.project} if online else {}
    runs = [wr.Runset(name="Trainings", filters=_filters(target), **whose)]
    blocks: list[Any] = [wr.TableOfContents()]
    for section in sections(target.objective, target.optimizer):
        panels = [_chart(panel, place) for place, panel in enumerate(section.panels)]
        blocks += [
            wr.H1(text=section.name),
            wr.P(text=section.question),
            wr.PanelGrid(runsets=runs, panels=panels),
        ]
    return wr.Report(
        entity=target.entity, project=target.project, title=target.title, description=ABOUT, blocks=blocks
    )


def _chart(panel: Panel, place: int | None = None) -> Any:
    """Create one chart; in a report in its cell of a two-column grid."""
    import wandb_workspaces.reports.v2 as wr

    layout: dict[str, Any] = (
        {} if place is None else {"layout": wr.Layout(x=12 * (place % 2), y=8 * (place // 2), w=12, h=8)}
    )
    return wr.LinePlot(
        title=panel.title,
        x=X_AXIS,
        y=list(panel.keys),
        metric_regex=panel.pattern or None,
        title_y=panel.unit or None,
        log_y=panel.log or None,
        **layout,
    )


def _filters(target: Target) -> str:
    """Select training runs only: prepare and export runs have no curves."""
    of_one = f" and Metric('Group') == {target.group!r}" if target.group else ""
    return f"Metric('JobType') == 'train'{of_one}"


def _entity(given: str) -> str:
    return given or os.environ.get("WANDB_ENTITY", "")


def _need_library() -> None:
    if importlib.util.find_spec("wandb_workspaces") is None:
        remedy = "pip install 'maskmill[dashboard]'"
        raise UserError("needs wandb-workspaces", where="dashboard", remedy=remedy)
    with warnings.catch_warnings():  # it still declares its types in pydantic's old style
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("wandb_workspaces.workspaces")
        importlib.import_module("wandb_workspaces.reports.v2")
