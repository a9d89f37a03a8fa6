"""Say what a score is known by: what an earlier call kept under the same is not made again."""

from pathlib import Path
from typing import Any

from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.results.facts import precision_now
from pretrain.evaluate.downstream.settings import EvaluationSettings, defaults, identity
from pretrain.evaluate.downstream.tasks.base import Material, Task, TaskData, Untrained
from pretrain.evaluate.downstream.tasks.class_names import usual_order
from pretrain.evaluate.downstream.tasks.registry import settings_of


def result_name(
    task: str, encoder: Encoder, folder: Path, settings: EvaluationSettings, start_from: str
) -> str:
    """Return what a result is called: the task, its treebank, what its tagger is where there are several kinds, and
    what it was started from. `folder`: of the task's files."""
    flags = [name for name in ("bilstm", "crf") if getattr(settings, name)]
    treebank = folder.name.removeprefix("UD_") if folder.name.startswith("UD_") else ""
    origin = f"from-{start_from}" if start_from else ""
    return "-".join(filter(None, (task, encoder.kind, treebank, settings.features, *flags, origin)))


def score_identity(
    task: Task | Untrained,
    name: str,
    encoder: Encoder,
    seed: int,
    settings: EvaluationSettings,
    data: Material | TaskData,
) -> dict[str, Any]:
    """Return what tells the score of an encoder with a seed from others. `name`: that of the result, `data`: what the
    task's files hold."""
    outputs = {}
    if isinstance(data, TaskData) and data.labels and not settings.epochs:
        outputs = {"nameless_outputs": list(usual_order(task.name, data.labels))}
    return {
        **outputs,
        "task": name,
        "seed": seed,
        "encoder": encoder.identity,
        "settings": deciding_settings(task, settings, data),
        "precision": precision_now(task, settings),
        "files": data.files,
    }


def deciding_settings(
    task: Task | Untrained, settings: EvaluationSettings, data: Material | TaskData
) -> dict[str, Any]:
    """Return the settings that decide a score. Those which say nothing about the task are at their defaults, and carve
    where nothing is carved, as beside a training file: with other ones the result is the same."""
    used = settings_of(task.name)
    if isinstance(data, Material) or not data.train.is_carved:
        used -= {"carve"}
    return {key: value if key in used else defaults()[key] for key, value in identity(settings).items()}
