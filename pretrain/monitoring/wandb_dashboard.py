"""Define the dashboard of a project or run, and make a W&B workspace and a report of it, or their spec as JSON.

The charts are those of run/metrics.py, over the metrics that an objective has; here are the questions that a section
answers, and what W&B alone draws, such as heat maps by rank and by layer. After a change of the charts, another call
makes a new workspace and report. The only import of wandb-workspaces.
"""

import importlib.util
import os
import warnings
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
from pretrain.run.metrics import (
    CHARTS,
    HEALTH,
    HELD_OUT,
    LEARNING,
    OPTIMIZER,
    SPEED,
    Chart,
    Curve,
    Prediction,
    leading_prediction,
    learning_charts,
    predictions_in,
)
from pretrain.run.metrics_log import PROBE_PREFIX

# Define sections and panels by the keys of metrics.


LAMB = "lamb"
"""The optimizer that has trust ratios."""


@dataclass(frozen=True)
class Section:
    """Charts that answer one question."""

    name: str
    question: str
    panels: tuple[Chart, ...]


BY_RANK_PANELS = tuple(
    chart
    for (field, curve), title in zip(
        BY_RANK.items(), ("Step time by rank", "Forward time by rank"), strict=True
    )
    for chart in (
        Chart(SPEED, field, f"{title}: rank upwards, time as colour", "", (Curve(field),), unit="rank"),
        Chart(SPEED, curve, f"{title}: curves", "", pattern=rf"{curve}\d+", unit="ms"),
    )
)
TRUST_PANELS = tuple(
    Chart(OPTIMIZER, key, title, "", (Curve(key),))
    for key, title in (
        (TRUST_BY_LAYER, "Trust ratio by layer: layer upwards, ratio as colour"),
        (TRUST_SPREAD, "Trust ratios of all tensors: ratio upwards, how many as colour"),
    )
)
PROBE_PANEL = Chart(
    LEARNING, "probe", "Probe (train.probe)", "", pattern=rf"{PROBE_PREFIX}.*", unit="percent"
)
QUESTIONS = {
    SPEED: "Is the hardware used? Wall-clock time goes where the utilisation is low: a wait for data above 5 % is a "
    "stall, a rank whose forward pass takes longer than the others' holds all of them up.",
    OPTIMIZER: "Are the updates sound? A gradient norm that grows for hundreds of steps comes before a divergence.",
    HEALTH: "Does it run as it should? Damaged examples are left out and counted (data.on_damage=skip); events.jsonl "
    "in the run folder has a line for each. The same rank slowest for hours is a machine to look at.",
}
ABOUT_TRUST = (
    " The trust ratio by layer (monitor.trust_ratios_every) shows which layers move: row 0 is the embeddings, the last "
    "row the heads."
)


def sections(objective: str = "", optimizer: str = "") -> list[Section]:
    """Return the dashboard for runs of `objective` with `optimizer`; empty: any."""
    has_trust = optimizer in ("", LAMB)
    more = {SPEED: BY_RANK_PANELS, OPTIMIZER: TRUST_PANELS if has_trust else ()}
    every = [_learning(objective)]
    for name, question in QUESTIONS.items():
        charts = [chart for chart in CHARTS if chart.section == name]
        panels = [chart for chart in charts if has_trust or "trust_ratio" not in chart.keys]
        about = question + (ABOUT_TRUST if has_trust and name == OPTIMIZER else "")
        every.append(Section(name, about, (*panels, *more.get(name, ()))))
    return every


def keys_of(sections: list[Section]) -> set[str]:
    """Return all keys that are named, without those that patterns match."""
    return {key for section in sections for panel in section.panels for key in panel.keys}


def _learning(objective: str) -> Section:
    known = [with_defaults(name) for name in ([objective] if objective else OBJECTIVES)]
    keys = dict.fromkeys(
        key for one in known for key in (*(f"{term}_loss" for term in one.terms), *one.metrics)
    )
    panels = [*learning_charts(keys, [one.headline for one in known]), PROBE_PANEL]
    leads = {one.name: one for one in (leading_prediction(one.headline) for one in known)}
    has_pairs = any(one.labels for one in predictions_in(keys))
    return Section(LEARNING, _question(list(leads.values()), has_pairs), tuple(panels))


def _question(leads: list[Prediction], has_pairs: bool) -> str:
    parts = ["Is it learning?"]
    for prediction in leads:
        if prediction.words:
            parts.append(
                f"The held-out {prediction.label('loss')} must fall below what word frequencies alone give there "
                f"({HELD_OUT}{prediction.name}_unigram_loss), and no one answer may be given at more than half of the "
                "positions: until then no context has been learnt."
            )
        if prediction.is_part:
            parts.append("Losses over all predicted tokens fall by copying the words that stay visible.")
    if has_pairs:
        parts.append("A pair label whose accuracy is 1 while the other's is 0 has not been learnt at all.")
    return " ".join(parts)


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
            ws.Section(name=section.name, panels=[_plot(panel) for panel in section.panels], is_open=True)
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
        panels = [_plot(panel, place) for place, panel in enumerate(section.panels)]
        blocks += [
            wr.H1(text=section.name),
            wr.P(text=section.question),
            wr.PanelGrid(runsets=runs, panels=panels),
        ]
    return wr.Report(
        entity=target.entity, project=target.project, title=target.title, description=ABOUT, blocks=blocks
    )


def _plot(panel: Chart, place: int | None = None) -> Any:
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
