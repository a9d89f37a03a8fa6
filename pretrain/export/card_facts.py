"""Collect the model card's facts about data, recipe, training, hardware and scores from a run folder and its
checkpoint.

A card is published: it shows only the last name of files and folders, nothing in URIs that could be secret, and only
the settings that decide the result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_pipeline.shards.index import Index
from data_pipeline.sources.snapshot import name_only, source_names
from pretrain.checkpoint.store import Checkpoint
from pretrain.config.settings import RunConfig, ScheduleSettings, TrainSettings
from pretrain.export.card import Card
from pretrain.export.card_recipe import reproduce
from pretrain.export.energy import FORMULA, estimate, watts
from pretrain.export.lineage import parent_of
from pretrain.run.files import is_number
from pretrain.run.folder import Attempt, read_attempts, read_run, read_summary
from pretrain.run.metrics import (
    HELD_OUT,
    Score,
    findings,
    headline_of,
    leading,
    leading_kind,
    pair_kinds,
    secondary,
    with_majority,
)
from pretrain.run.metrics_log import read_metrics
from pretrain.run.task_scores import read_task_scores

MOST_NAMED = 20
"""Sources that a card names; the others are counted."""


def card_of(run: Path, checkpoint: Checkpoint, index: Index, whole: RunConfig, config: RunConfig) -> Card:
    """Return the card of the model in `checkpoint`. `whole`: the run's settings; `config`: those of its current
    phase."""
    summary, about = read_summary(run), read_run(run) or {}
    figures, headline, parent = _figures(run, checkpoint.step), headline_of(summary), parent_of(whole)
    facts: dict[str, str | Mapping[str, object]] = {
        **({"Lineage": parent.facts} if parent else {}),
        "Data": _data(index, config),
        "Recipe": _recipe(config),
        "Training": _training(checkpoint, index, config, summary),
        "Hardware, time and energy": _hardware(read_attempts(run, summary), int(about.get("attempts", 0))),
        "Scores on held-out text": _scores(figures, index, headline),
        "How to reproduce it": reproduce(whole, index, summary),
    }
    return Card(
        facts,
        title=title_of(config),
        languages=_languages(index),
        parent=parent,
        license=whole.export.license,
        step=checkpoint.step,
        scores=_published(figures, headline),
        tasks=read_task_scores(run),
    )


def title_of(config: RunConfig) -> str:
    """Return a name for a model: what it learnt and its size. The name of the run's folder may be private, and says
    nothing of the model."""
    return f"{config.objective.name}-{config.encoder.layers}x{config.encoder.hidden}"


def _languages(index: Index) -> tuple[str, ...]:
    """Return the languages that were stated of the shards' text."""
    stated = index.settings.get("languages")
    return tuple(dict.fromkeys(map(str, stated))) if isinstance(stated, list) else ()


def _published(figures: Mapping[str, Any], headline: str) -> dict[str, float]:
    """Return the held-out figures for the card's metadata: the headline metric and pairs."""
    lead = leading_kind(headline).name
    names = [headline, *(f"{lead}_{what}" for what in ("loss", "accuracy", "perplexity"))]
    names += [f"{kind.name}_accuracy" for kind in pair_kinds(figures)]
    keys = [f"{HELD_OUT}{name}" for name in dict.fromkeys(names)]
    return {key: figures[key] for key in keys if is_number(figures.get(key))}


def _data(index: Index, config: RunConfig) -> dict[str, object]:
    reading = dict(index.statistics.get("reading") or {})
    counted = {name.replace("_", " "): count for name, count in reading.items() if count}
    names, languages = source_names(index.folder), ", ".join(_languages(index))
    more = f", and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    made = {key: value for key, value in index.settings.items() if key not in ("languages", "separators")}
    return {
        "sources, by name": ", ".join(names[:MOST_NAMED]) + more or "not recorded with the shards",
        "languages": languages or "not stated; sentences were found by the rules of English",
        **{f"read: {name}": count for name, count in counted.items()},
        "training examples": index.train.examples,
        "training tokens": index.train.tokens,
        "held-out examples": index.held_out.examples,
        "vocabulary": f"{index.vocabulary.size:,} entries",
        **{f"data.{key}": _shown(value) for key, value in made.items()},
        "data.separators": config.data.separators,
        "SHA-256 of index.json": index.identity,
        "SHA-256 of the vocabulary": index.vocabulary.sha256,
    }


def _recipe(config: RunConfig) -> dict[str, object]:
    groups = {name: asdict(config)[name] for name in ("encoder", "optim", "schedule")}
    start = {"init_from": name_only(config.init_from)} if config.init_from else {}
    return {
        "objective.name": config.objective.name,
        **{f"{name}.{key}": _shown(value) for name, group in groups.items() for key, value in group.items()},
        **start,
    }


def _training(
    checkpoint: Checkpoint, index: Index, config: RunConfig, summary: Mapping[str, Any]
) -> dict[str, object]:
    state, position = checkpoint.state, checkpoint.state.get("position", {})
    examples = int(position.get("examples", 0))
    in_phase = examples - int(position.get("phase_examples", 0))
    phases = [phase for phase in summary.get("phases") or [] if phase["name"]]
    return {
        "steps done (accepted updates)": _steps_done(checkpoint.step, config, summary),
        **({"phases": _phases(phases)} if phases else {}),
        "batches skipped": len(position.get("skipped", ())),
        "examples seen": examples,
        "tokens seen, none of them padding": int(position.get("tokens", 0)),
        "passes over the data" + (" of the last phase" if phases else ""): in_phase
        / max(index.train.examples, 1),
        "global batch, in examples": _batch(config.train),
        "sequence length": index.settings["sequence_length"],
        "peak learning rate": config.optim.lr,
        "schedule": _schedule(config.schedule),
        "clipping of the global gradient norm": config.train.clip or "none",
        "precision (masters, moments and reduction in fp32)": state.get("identity", {}).get(
            "train.precision", config.train.precision
        ),
        "parameters": summary.get("parameters", "unknown"),
    }


def _batch(train: TrainSettings) -> object:
    if not train.batch_ramp:
        return train.global_batch
    return (
        f"{train.global_batch:,}, from {train.batch_ramp_from:,} over the first {train.batch_ramp:,} batches"
    )


def _schedule(schedule: ScheduleSettings) -> str:
    end = f" to {schedule.decay_to:g} of the peak" if schedule.decay_to else ""
    decay = f", decay {schedule.decay:g} ({schedule.decay_shape}){end}" if schedule.name == "wsd" else ""
    return f"{schedule.name}, warm-up {schedule.warmup:g}{decay}, over each {schedule.span}"


def _steps_done(step: int, config: RunConfig, summary: Mapping[str, Any]) -> str:
    steps, minutes = summary.get("steps") or config.train.steps, config.train.minutes
    return f"{step:,}" + (f" of {steps:,}" if steps else "") + (f" in {minutes:g} minutes" if minutes else "")


def _phases(phases: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{p['name']}, {_end(p)}: batch {p['global_batch']:,}, length {p['sequence_length']}, rate {p['lr']}"
        for p in phases
    )


def _end(phase: Mapping[str, Any]) -> str:
    last = phase["last"]
    return f"up to step {last:,}" if last is not None else f"of {phase.get('minutes') or 0:g} minutes"


def _hardware(attempts: list[Attempt], started: int) -> dict[str, object]:
    if not attempts:
        return {"hardware": "not recorded", "energy": "not estimated: the run kept no record of its devices"}
    places = dict.fromkeys(f"{attempt.ranks} x {attempt.device}" for attempt in attempts)
    hours = {
        kind: sum(attempt.device_hours for attempt in attempts if attempt.device_type == kind)
        for kind in ("cuda", "cpu")
    }
    missing = f"; of {started - len(attempts)} more nothing is recorded" if started > len(attempts) else ""
    return {
        "hardware, by rank": "; ".join(places),
        "times it was started": f"{len(attempts)}{missing}",
        **({"GPU-hours, all attempts": _rounded(hours["cuda"])} if hours["cuda"] else {}),
        **({"CPU-hours (threads x hours), all attempts": _rounded(hours["cpu"])} if hours["cpu"] else {}),
        "wall-clock hours, all attempts": _rounded(sum(attempt.spent for attempt in attempts) / 3600),
        "energy": _energy(attempts),
    }


def _energy(attempts: list[Attempt]) -> str:
    found = estimate(attempts)
    if found is None:
        unknown = dict.fromkeys(
            x.device for x in attempts if x.device_type != "cuda" or watts(x.device) is None
        )
        return f"not estimated: no highest power is known of {', '.join(unknown)} as it was used here"
    return f"{_rounded(found.least)} to {_rounded(found.most)} kWh. {FORMULA}"


def _scores(figures: Mapping[str, Any], index: Index, headline: str) -> "str | dict[str, object]":
    """Return the headline scores beside their baselines, then what copying could achieve, then the findings in
    words."""
    if not figures:
        return "The run was not evaluated at this step."
    known = with_majority(figures, index.statistics.get("held_out"))
    rows: dict[str, object] = {
        f"{score.what} {score.at}".rstrip(): _beside(score) for score in leading(known, headline=headline)
    }
    rows |= {f"not comparable: {what}": value for what, value in secondary(known, headline=headline)}
    found = findings(known, headline=headline)
    return rows | ({"what this model has not learnt": " ".join(one.what for one in found)} if found else {})


def _beside(score: Score) -> str:
    return (
        f"{score.value} (without any context, {score.than}: {score.baseline})"
        if score.baseline
        else score.value
    )


def _figures(run: Path, step: int) -> dict[str, Any]:
    """Return the held-out figures of exactly this step, without those that are not numbers."""
    here = [line for line in read_metrics(run) if line.get("kind") == "eval" and line.get("step") == step]
    return {
        name: value
        for line in here
        for name, value in line.items()
        if name.startswith(HELD_OUT) and (is_number(value) or isinstance(value, str))
    }


def _shown(value: Any) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value == "" else value if isinstance(value, float) else str(value)


def _rounded(value: float) -> str:
    """Round to two digits: more would claim too much precision."""
    return f"{float(f'{value:.2g}'):,g}"
