"""Create a W&B workspace and a report of a project or run, or print their spec as JSON.

The only import of wandb-workspaces. The dashboard is defined by the table in dashboard_panels.py; after a change,
another call re-creates it.
"""

import importlib
import importlib.util
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from pretrain.monitoring.wandb.artifacts import settings_of
from pretrain.monitoring.wandb.connection import default_entity, has_key, make_project, why
from pretrain.monitoring.wandb.dashboard_panels import Panel, sections
from pretrain.monitoring.wandb.run_identity import group_of

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
