"""Score an encoder on a task: read its files, then for each seed fine-tune, predict and score, beside what needs no
pretraining.

Seeds that an earlier call finished are not repeated."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.downstream import metrics
from pretrain.downstream.device import chosen_device, use_threads
from pretrain.downstream.encoders import Encoder
from pretrain.downstream.fine_tune import FineTuner
from pretrain.downstream.results import (
    SeedResult,
    over_seeds,
    read_seed,
    seed_file,
    write_result,
    write_seed,
)
from pretrain.downstream.settings import EvaluationSettings, identity
from pretrain.downstream.tasks import blimp
from pretrain.downstream.tasks.base import Feature, Split, Task, TaskData, carve, drawn
from pretrain.downstream.tasks.registry import FINE_TUNED


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

    def run(self, progress: ShowProgress) -> dict[str, Any]:
        """Evaluate and return what result.json holds. Raises UserError for files, settings or an encoder that do not
        fit."""
        metrics.require()
        use_threads(self.settings.threads)
        encoders = [self.encoder, Encoder(self.encoder.folder, pretrained=False)]
        work = self._score_pairs if self.task == blimp.NAME else self._fine_tune
        note = work(encoders, progress)
        write_result(self.out, self.task, note)
        return note

    def _score_pairs(self, encoders: list[Encoder], progress: ShowProgress) -> dict[str, Any]:
        data = blimp.read(self.folder, self.settings)
        sentences = sum(2 * len(one.good) for one in data.paradigms)
        found = []
        for encoder in encoders[: 1 + self.has_floor]:

            def work(encoder: Encoder = encoder) -> SeedResult:
                started = time.monotonic()
                with progress(self._doing(encoder, 0), sentences) as advance:
                    details = blimp.score(encoder, data, self.settings, self.seeds[0], advance)
                scores = {"dev": details.pop("scores")}
                return SeedResult(self.seeds[0], scores, time.monotonic() - started, details)

            found.append(self._once(encoder, self.seeds[0], data.files, work))
        return self._note(data.files, [found[:1], found[1:]], {}, blimp.HEADLINE, (), found[0].details)

    def _fine_tune(self, encoders: list[Encoder], progress: ShowProgress) -> dict[str, Any]:
        task = FINE_TUNED[self.task]
        data = task.read(self.folder, self.settings)
        found: list[list[SeedResult]] = [[], []]
        for kind, encoder in enumerate(encoders[: 1 + self.has_floor]):
            for seed in self.seeds:

                def work(encoder: Encoder = encoder, seed: int = seed) -> SeedResult:
                    return self._one_seed(task, data, encoder, seed, progress)

                found[kind].append(self._once(encoder, seed, data.files, work))
        trivial = {split.name: task.trivial(split, data) for split in data.scored}
        sizes = {split.name: len(split.items) for split in (data.train, *data.scored)}
        details = {"labels": list(data.labels), "examples": sizes}
        return self._note(data.files, found, trivial, task.headline, data.notes, details)

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
        model = task.model(encoder, data, seed, settings.dropout).to(device := chosen_device())
        tuner = FineTuner(task, model, builder, settings, seed, device)
        features = task.features(train.items, builder, data)
        tuned = task.features(tune.items, builder, data)

        def tune_score() -> float:
            answers = tuner.answers(tuned, lambda n: None)
            return task.score(tune.items, tuned, answers, data)[task.headline]

        total = round(settings.epochs * len(features))
        with progress(self._doing(encoder, seed), total) as advance:
            trained = tuner.train(features, advance, tune_score if tune.items else None)
        splits, cut = {}, {"train": _cut(features)}
        for split in data.scored:
            scored = task.features(split.items, builder, data)
            with progress(f"{self.task}: scoring {split.name}", len(scored)) as advance:
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
            "trained_examples": len(features),
            "cut_inputs": cut,
        }
        return SeedResult(seed, splits, time.monotonic() - started, details)

    def _save(self, model: Any, encoder: Encoder, seed: int) -> None:
        folder = self.out / self.task / f"seed-{seed}"
        model.save_pretrained(folder)
        encoder.tokenizer.save_pretrained(folder)

    def _once(self, encoder: Encoder, seed: int, files: dict[str, str], work: Any) -> SeedResult:
        """Return what an earlier call found, or do the work and keep it."""
        path = seed_file(self.out, self.task, seed, encoder.pretrained)
        known = {
            "task": self.task,
            "seed": seed,
            "encoder": encoder.identity,
            "settings": identity(self.settings),
            "files": files,
        }
        found = read_seed(path, known)
        is_saved = not self.save or not encoder.pretrained or path.with_suffix("").is_dir()
        if found is None or not (is_saved or self.task == blimp.NAME):
            found = work()
            write_seed(path, known, found)
        return found

    def _doing(self, encoder: Encoder, seed: int) -> str:
        what = "" if encoder.pretrained else ", not pretrained"
        return f"{self.task}{f', seed {seed}' if seed else ''}{what}"

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
            "task": self.task,
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


def pick_encoder(task: str, found: Sequence[Path]) -> Encoder:
    """Return the encoder to score of those that a run exports: of ELECTRA's the one that predicts words for tasks
    without training, and the discriminator for fine-tuning. Raises UserError where that is not clear."""
    if len(found) == 1:
        return Encoder(found[0])
    encoders = [Encoder(folder) for folder in found]
    predicts = [e for e in encoders if "ForMaskedLM" in str(e.config.architectures)]
    chosen = predicts if task == blimp.NAME else [e for e in encoders if e not in predicts]
    if len(chosen) != 1:
        names = ", ".join(folder.name for folder in found)
        raise UserError(f"holds several models: {names}", where=found[0].parent, remedy="name one of them")
    return chosen[0]
