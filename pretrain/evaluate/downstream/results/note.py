"""Compose what result.json holds of a task: scores and floors over the seeds, and what a reader of them must know."""

from collections.abc import Sequence
from typing import Any

from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.identities import deciding_settings
from pretrain.evaluate.downstream.results.facts import (
    common_facts,
    conditions_of,
    trained_facts,
    untrained_facts,
)
from pretrain.evaluate.downstream.results.files import SeedResult, over_seeds
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Task, Untrained


def result_note(
    task: Task | Untrained,
    name: str,
    encoder: Encoder,
    settings: EvaluationSettings,
    data: Any,
    scores: Sequence[SeedResult],
    floor: Sequence[SeedResult],
    started: Sequence[str],
) -> dict[str, Any]:
    """Return what result.json holds. `name`: that of the result, `data`: what the task's files hold, `floor`: of the
    same encoder without its weights, `started`: notes of what the seeds began with."""
    if isinstance(task, Untrained):
        facts, headline = untrained_facts(data, scores[0].details), task.headline
    else:
        facts, headline = trained_facts(task, data, settings, scores, floor), task.headline_of(data)
    conditions, differ = conditions_of((*scores, *floor))
    return {
        "task": name,
        "headline": headline,
        "encoder": {"folder": str(encoder.folder), **encoder.identity},
        "scores": over_seeds(scores),
        "not_pretrained": over_seeds(floor) if floor else {},
        "trivial": facts.trivial,
        "notes": [*data.notes, *started, *facts.notes, *differ],
        "details": facts.details,
        "settings": deciding_settings(task, settings, data),
        "conditions": conditions,
        "seeds": [one.seed for one in scores],
        "floor_seeds": [one.seed for one in floor],
        "seconds": sum(one.seconds for one in (*scores, *floor)),
        "files": data.files,
        **common_facts(task.name, encoder, settings),
    }
