"""Score an encoder on a task: read its files, then for each seed fine-tune, predict and score, beside what needs no
pretraining.

Seeds that an earlier call finished are not repeated."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.downstream import metrics
from pretrain.downstream.device import chosen_device, use_threads
from pretrain.downstream.encoders import Encoder
from pretrain.downstream.fine_tune import FineTuner, Trained
from pretrain.downstream.heads.frozen import frozen_tagger, with_states
from pretrain.downstream.results import (
    SeedResult,
    over_seeds,
    read_seed,
    seed_file,
    write_result,
    write_seed,
)
from pretrain.downstream.settings import EvaluationSettings, identity
from pretrain.downstream.tasks.base import Feature, Split, Task, TaskData, carve, drawn
from pretrain.downstream.tasks.registry import FINE_TUNED, UNTRAINED


@dataclass(frozen=True)
class Evaluation:
    """One task of one encoder."""

    task: str
    encoder: Encoder
    folder: Path
    """Of the task's files."""
    out: Path
    settings: EvaluationSettings
    seeds: Sequence[int]
    has_floor: bool
    """Whether the same encoder is scored without its weights as well."""
    save: bool = False
    """Keep each fine-tuned model as a Hugging Face folder."""
    start_from: str = ""
    """Another task, whose fine-tuned models in `out`, a seed each, are trained further instead of the encoder."""

    def __post_init__(self) -> None:
        """Raises UserError for settings of another kind of task."""
        kind = "features" if self.settings.features else "crf" if self.settings.crf else ""
        if kind and not (self.task in FINE_TUNED and FINE_TUNED[self.task].tags_words):
            able = ", ".join(name for name, task in FINE_TUNED.items() if task.tags_words)
            raise UserError(f"is not for {self.task}", where=kind, expected=f"a task that tags words: {able}")

    def run(self, progress: ShowProgress) -> dict[str, Any]:
        """Evaluate and return what result.json holds. Raises UserError for files, settings or an encoder that do not
        fit."""
        metrics.require()
        use_threads(self.settings.threads)
        note = self._score_as_is(progress) if self.task in UNTRAINED else self._fine_tune(progress)
        write_result(self.out, self.name, note)
        return note

    @property
    def name(self) -> str:
        """The task, what its tagger is where there are several kinds, and what it was started from."""
        crf = "crf" if self.settings.crf else ""
        parts = (self.task, self.settings.features, crf, self.start_from and f"from-{self.start_from}")
        return "-".join(part for part in parts if part)

    @property
    def _floor(self) -> list[Encoder]:
        """The same encoder without its weights, if it is scored: not where nothing is fine-tuned that it could be."""
        wanted = self.has_floor and (self.task in UNTRAINED or self.settings.epochs > 0)
        return [Encoder(self.encoder.folder, pretrained=False)] if wanted else []

    def _start(self, seed: int) -> Encoder:
        """Return the encoder that one seed begins with. Raises UserError where the other task has left none."""
        if not self.start_from:
            return self.encoder
        folder = seed_file(self.out, self.start_from, seed, pretrained=True).with_suffix("")
        if not (folder / "config.json").is_file():
            raise UserError(
                f"has no model of {self.start_from} with seed {seed}",
                where=folder,
                remedy=f"evaluate {self.start_from} first, with --save and as many --seeds",
            )
        return Encoder(folder)

    def _score_as_is(self, progress: ShowProgress) -> dict[str, Any]:
        task = UNTRAINED[self.task]
        material = task.read(self.folder, self.settings)
        found = []
        for encoder in (self.encoder, *self._floor):

            def work(encoder: Encoder = encoder) -> SeedResult:
                started, seed = time.monotonic(), self.seeds[0]
                with progress(self._doing(encoder, 0), material.size) as advance:
                    details = task.score(encoder, material, self.settings, seed, advance)
                return SeedResult(seed, {"dev": details.pop("scores")}, time.monotonic() - started, details)

            found.append(self._once(encoder, self.seeds[0], material.files, work))
        details = found[0].details
        trivial = {"dev": details.pop("trivial")}
        notes = details.pop("notes", [])
        return self._note(material.files, [found[:1], found[1:]], trivial, task.headline, notes, details)

    def _fine_tune(self, progress: ShowProgress) -> dict[str, Any]:
        task = FINE_TUNED[self.task]
        data = task.read(self.folder, self.settings)
        if self.settings.epochs and not data.train.items:
            raise UserError("has no training examples", where=self.task, expected="epochs=0")
        found: list[list[SeedResult]] = [[], []]
        starts = [(0, self._start(seed), seed) for seed in self.seeds]
        for kind, encoder, seed in starts + [
            (1, floor, seed) for floor in self._floor for seed in self.seeds
        ]:

            def work(encoder: Encoder = encoder, seed: int = seed) -> SeedResult:
                return self._one_seed(task, data, encoder, seed, progress)

            found[kind].append(self._once(encoder, seed, data.files, work))
        trivial = {split.name: task.trivial(split, data) for split in data.scored}
        sizes = {split.name: len(split.items) for split in (data.train, *data.scored)}
        details = {"labels": list(data.labels), "examples": sizes}
        notes = (*data.notes, f"started from {self.start_from}") if self.start_from else data.notes
        return self._note(data.files, found, trivial, task.headline, notes, details)

    def _one_seed(
        self, task: Task, data: TaskData, encoder: Encoder, seed: int, progress: ShowProgress
    ) -> SeedResult:
        """Fine-tune with one seed, and score every split."""
        started, settings = time.monotonic(), self.settings
        builder = encoder.builder(settings.max_length)
        train = drawn(data.train, settings.train_examples, seed)
        tune = Split("tune", [])
        if settings.tune_share:
            tune, train = carve(train, settings.tune_share)
        if settings.epochs:
            model = task.model(encoder, data, seed, settings)
        else:
            model, data = task.finished_model(encoder, data, settings)
        model.to(device := chosen_device())
        tuner = FineTuner(task, model, builder, settings, seed, device)

        def features_of(items: Sequence[Any], name: str) -> list[Feature]:
            found = task.features(items, builder, data)
            if not settings.features or not found:
                return found
            with progress(f"{self.name}: hidden states of {name}", len(found)) as advance:
                return with_states(frozen_tagger(model), found, builder, device, advance)

        features, tuned = features_of(train.items, "train"), features_of(tune.items, "tune")

        def tune_score() -> float:
            answers = tuner.answers(tuned, lambda n: None)
            return task.score(tune.items, tuned, answers, data)[task.headline]

        total = round(settings.epochs * len(features))
        trained = Trained()
        if settings.epochs:
            with progress(self._doing(encoder, seed), total) as advance:
                trained = tuner.train(features, advance, tune_score if tune.items else None)
        splits, cut = {}, {"train": _cut(features)}
        for split in data.scored:
            scored = features_of(split.items, split.name)
            with progress(f"{self.name}: scoring {split.name}", len(scored)) as advance:
                answers = tuner.answers(scored, advance)
            splits[split.name] = task.score(split.items, scored, answers, data)
            cut[split.name] = _cut(scored)
        if self.save and encoder.pretrained:
            self._save(model, encoder, seed)
        details = {
            "updates": trained.updates,
            "epochs": trained.epochs,
            "tuned": trained.tuned,
            "last_losses": trained.losses[-10:],
            "trained_examples": len(features) if settings.epochs else 0,
            "cut_inputs": cut,
        }
        return SeedResult(seed, splits, time.monotonic() - started, details)

    def _save(self, model: Any, encoder: Encoder, seed: int) -> None:
        folder = self.out / self.name / f"seed-{seed}"
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)

    def _once(self, encoder: Encoder, seed: int, files: dict[str, str], work: Any) -> SeedResult:
        """Return what an earlier call found, or do the work and keep it."""
        path = seed_file(self.out, self.name, seed, encoder.pretrained)
        known = {
            "task": self.name,
            "seed": seed,
            "encoder": encoder.identity,
            "settings": identity(self.settings),
            "files": files,
        }
        found = read_seed(path, known)
        is_saved = not self.save or not encoder.pretrained or path.with_suffix("").is_dir()
        if found is None or not (is_saved or self.task in UNTRAINED):
            found = work()
            write_seed(path, known, found)
        return found

    def _doing(self, encoder: Encoder, seed: int) -> str:
        what = "" if encoder.pretrained else ", not pretrained"
        return f"{self.name}{f', seed {seed}' if seed else ''}{what}"

    def _note(
        self,
        files: dict[str, str],
        found: list[list[SeedResult]],
        trivial: dict[str, Any],
        headline: str,
        notes: Sequence[str],
        details: dict[str, Any],
    ) -> dict[str, Any]:
        """Return what result.json holds."""
        scores, floor = found
        return {
            "task": self.name,
            "headline": headline,
            "encoder": {"folder": str(self.encoder.folder), **self.encoder.identity},
            "scores": over_seeds(scores),
            "not_pretrained": over_seeds(floor) if floor else {},
            "trivial": trivial,
            "notes": list(notes),
            "details": details,
            "settings": identity(self.settings),
            "seeds": [one.seed for one in scores],
            "seconds": sum(one.seconds for one in (*scores, *floor)),
            "files": files,
            "has_segments": self.encoder.builder(self.settings.max_length).has_segments,
            "versions": {
                name: version(name) for name in ("maskmill", "torch", "transformers", "scikit-learn")
            },
        }


def _cut(features: Sequence[Feature]) -> int:
    return sum(any(one.was_cut for one in feature.inputs) for feature in features)


def with_lower_features(evaluation: Evaluation) -> list[Evaluation]:
    """Return the evaluation and, where it reads features of a frozen encoder, one of what the embeddings alone give: a
    floor as the encoder without its weights is one."""
    wanted = evaluation.settings
    if not wanted.features or wanted.features == "embeddings" or not evaluation.has_floor:
        return [evaluation]
    return [evaluation, replace(evaluation, settings=replace(wanted, features="embeddings"))]


def pick_encoder(task: str, found: Sequence[Path]) -> Encoder:
    """Return the encoder to score of those that a run exports: of ELECTRA's the one that predicts words for tasks
    without training, and the discriminator for fine-tuning. Raises UserError where that is not clear."""
    if len(found) == 1:
        return Encoder(found[0])
    encoders = [Encoder(folder) for folder in found]
    predicts = [e for e in encoders if "ForMaskedLM" in str(e.config.architectures)]
    chosen = predicts if task in UNTRAINED else [e for e in encoders if e not in predicts]
    if len(chosen) != 1:
        names = ", ".join(folder.name for folder in found)
        raise UserError(f"holds several models: {names}", where=found[0].parent, remedy="name one of them")
    return chosen[0]
