"""Fine-tuning and scoring on a task beside transformers' Trainer: a folder and a task's files in, times and ratios out.

    python -m tests.benchmarks.bench_evaluate MODEL --data GLUE [--task mrpc] [--train 640] [--dev 400] [--threads 2]

One pass over the same training examples and one over the same dev examples, in turns in one process, of the same
model with the same head, batch, rate, dropout and precision (fp32). Ours is the loop of `maskmill evaluate`. The
Trainer has its own defaults (fused AdamW, its data collator) and is shown in its three ways to make batches: padded to
the longest sequence of a batch; the same with batches of near lengths; and padded to max_length, which its example
script run_glue.py does unless told otherwise. It scores in batches as large as those of training; ours by tokens.

Tokenizing is not timed. The task is one of texts with a label.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from pretrain.evaluate.fine_tune import FineTuner
from pretrain.huggingface.load import quiet
from pretrain.tasks.base import Task, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.inputs import Feature
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.benchmarks.timing import seconds

TRAINERS = {
    "padded to the longest of a batch": ("random", "longest"),
    "in batches of near lengths": ("group_by_length", "longest"),
    "padded to max_length": ("random", "max_length"),
}
"""The Trainer's ways to make batches: its order of examples, and its collator's padding."""
CPU = torch.device("cpu")


class Work(NamedTuple):
    """What every contender gets."""

    encoder: Encoder
    task: Task
    data: TaskData
    settings: EvaluationSettings
    train: Sequence[Feature]
    dev: Sequence[Feature]


class Times(NamedTuple):
    """Seconds."""

    training: float
    scoring: float


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    work = read(arguments)
    contenders: dict[str, Callable[[], Times]] = {"Maskmill": partial(ours, work)}
    contenders |= {f"transformers' Trainer, {name}": partial(trainer, work, name) for name in TRAINERS}
    times: dict[str, list[Times]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, measure in contenders.items():
            times[name].append(measure())
    tokens = sum(len(feature.inputs[0].ids) for feature in work.train)
    print(
        f"{work.task.name}: {len(work.train)} training examples of {tokens / len(work.train):.0f} tokens, "
        f"{len(work.dev)} scored; batches of {work.settings.batch}, {arguments.threads} threads, "
        f"{arguments.rounds} rounds"
    )
    for name in contenders:
        print(line(name, times))


def line(name: str, times: dict[str, list[Times]]) -> str:
    """The medians of a contender, and by what ratio the first one is faster in the same round."""
    parts = []
    for what in Times._fields:
        own = [getattr(one, what) for one in times[name]]
        first = [getattr(one, what) for one in next(iter(times.values()))]
        ratio = statistics.median(a / b for a, b in zip(own, first, strict=True))
        parts.append(f"{what} {statistics.median(own):6.2f} s, ratio {ratio:.2f}")
    return f"{name:58} {'; '.join(parts)}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--data", type=Path, required=True, help="as that of maskmill evaluate")
    parser.add_argument("--task", default="mrpc")
    parser.add_argument("--train", type=int, default=640, help="examples of a pass of training")
    parser.add_argument("--dev", type=int, default=400, help="examples that are scored")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def read(arguments: argparse.Namespace) -> Work:
    """The task's examples as the encoder reads them."""
    task, encoder = FINE_TUNED[arguments.task], Encoder(arguments.model)
    settings = settings_for(task.name, {"epochs": 1, "precision": "fp32"})
    settings = replace(settings, max_length=min(settings.max_length, encoder.max_positions))
    folder = arguments.data / task.folder
    data = task.read(folder if folder.is_dir() else arguments.data, settings)
    builder = encoder.builder(settings.max_length)
    items = data.train.items[: arguments.train], data.scored[0].items[: arguments.dev]
    return Work(encoder, task, data, settings, *(task.features(part, builder, data) for part in items))


def ours(work: Work) -> Times:
    """One pass of each by the loop of `maskmill evaluate`."""
    model = work.task.model(work.encoder, work.data, 1, work.settings)
    builder = work.encoder.builder(work.settings.max_length)
    tuner = FineTuner(work.task, model, builder, work.settings, 1, CPU)
    training = seconds(lambda: tuner.train(work.train, lambda count: None))
    return Times(training, seconds(lambda: tuner.answers(work.dev, lambda count: None)))


def trainer(work: Work, name: str) -> Times:
    """One pass of each by the Trainer."""
    (sampling, padding), settings = TRAINERS[name], work.settings
    with tempfile.TemporaryDirectory() as folder, quiet():
        peer = transformers.Trainer(
            model=work.task.model(work.encoder, work.data, 1, settings),  # type: ignore[arg-type]
            args=transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=settings.batch,
                per_device_eval_batch_size=settings.batch,
                learning_rate=settings.lr,
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.clip,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                logging_steps=10_000,
                train_sampling_strategy=sampling,
            ),
            train_dataset=rows(work, work.train),  # type: ignore[arg-type]
            data_collator=transformers.DataCollatorWithPadding(
                work.encoder.tokenizer,
                padding=padding,
                max_length=settings.max_length,
            ),
        )
        training = seconds(peer.train)
        return Times(training, seconds(lambda: peer.predict(rows(work, work.dev))))  # type: ignore[arg-type]


def rows(work: Work, features: Sequence[Feature]) -> list[dict[str, Any]]:
    """Examples as the Trainer's collator takes them."""
    names = work.encoder.tokenizer.model_input_names
    found = []
    for feature in features:
        (one,) = feature.inputs
        arrays = {"input_ids": one.ids, "token_type_ids": one.segments, "attention_mask": [1] * len(one.ids)}
        found.append({name: arrays[name] for name in names} | feature.targets)
    return found


if __name__ == "__main__":
    main()
