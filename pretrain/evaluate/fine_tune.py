"""Fine-tune an encoder on a task: the one training loop of all tasks."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.tasks.base import Task
from pretrain.tasks.encoders import precision, tokens_per_pass
from pretrain.tasks.inputs import (
    Feature,
    InputBuilder,
    collate,
    scoring_batches,
    sizes,
    token_slice,
    training_batches,
)
from pretrain.tasks.settings import EvaluationSettings


class DivergedError(UserError):
    """The loss is not finite."""


@dataclass
class Trained:
    """How a fine-tuning went."""

    updates: int = 0
    epochs: int = 0
    losses: list[float] = field(default_factory=list)
    """Of every update: the mean over its examples."""
    tuned: list[float] = field(default_factory=list)
    """With tune_share: the headline metric after each epoch."""


@dataclass(frozen=True)
class FineTuner:
    """A model on its way through one task."""

    task: Task
    model: nn.Module
    builder: InputBuilder
    settings: EvaluationSettings
    seed: int
    device: torch.device

    def train(
        self,
        features: Sequence[Feature],
        advance: Callable[[int], None],
        tune: Callable[[], float] | None = None,
        after_epoch: Callable[[], None] = lambda: None,
    ) -> Trained:
        """Train on `features` and leave the model in evaluation mode: with the last weights, or with `tune`, a metric
        that is taken after each epoch, with the best ones of an epoch's end. `advance` is called with the examples
        done, `after_epoch` with the model as it is then.

        Raises DivergedError where the loss is not finite."""
        settings, lengths = self.settings, sizes(features)
        per_epoch = -(-len(features) // settings.batch)
        total = max(1, round(settings.epochs * per_epoch))
        updates = Updates(
            self.model, settings, total, min(total - 1, round(settings.head_epochs * per_epoch))
        )
        torch.manual_seed(self.seed)  # dropout
        found, best, kept = Trained(), -np.inf, {}
        for epoch in range(-(-total // per_epoch)):
            self.model.train()
            for chosen in training_batches(lengths, settings.batch, self.seed, epoch):
                if found.updates == total:
                    break
                self._update(updates, [features[i] for i in chosen], found)
                advance(len(chosen))
            found.epochs += 1
            self.model.eval()
            after_epoch()
            if tune is None:
                continue
            found.tuned.append(tune())
            if found.tuned[-1] > best:
                best, kept = found.tuned[-1], {k: v.clone() for k, v in self.model.state_dict().items()}
            elif settings.patience and found.epochs - 1 - int(np.argmax(found.tuned)) >= settings.patience:
                break
        if kept:
            self.model.load_state_dict(kept)
        return found

    def _update(self, updates: "Updates", features: Sequence[Feature], found: Trained) -> None:
        """Make one update by these features and add it to `found`. Raises DivergedError where the loss is not
        finite."""
        updates.begin(found.updates)
        with self._precision():
            loss = self.model(**self._batch(features)).loss
        loss.backward()
        updates.step()
        found.losses.append(loss.item())
        found.updates += 1
        if not np.isfinite(found.losses[-1]):
            raise DivergedError(
                f"the loss is {found.losses[-1]} at update {found.updates}",
                where=self.task.name,
                remedy="lower lr",
            )

    @torch.no_grad()
    def answers(self, features: Sequence[Feature], advance: Callable[[int], None]) -> list[NDArray[Any]]:
        """Return the model's answer to each feature, float32: what `Task.answer` keeps, without the rows of padding
        where it has a row per token. Predicted numbers are computed in fp32, whatever the precision of the training:
        bf16 keeps 8 bits of them, which makes one rank of many."""
        self.model.eval()
        found: list[NDArray[Any]] = [np.empty(0)] * len(features)
        scored = "fp32" if are_numbers(features) else self.settings.precision
        lengths = sizes(features)
        for chosen in scoring_batches(lengths, tokens_per_pass(self.device)):
            batch = self._batch([features[i] for i in chosen])
            with precision(scored, self.device, fine_tuned=True):
                rows = self.task.answer(self.model(**batch)).float().cpu().numpy()
            longest = int(lengths[chosen].max())
            for i, row in zip(chosen.tolist(), rows, strict=True):
                place = token_slice(int(lengths[i]), longest, self.builder.left_padded)
                found[i] = row[place] if self.task.per_token else row
            advance(len(chosen))
        return found

    def _batch(self, features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        return collate(features, self.builder, self.device, self.task.kind == "MultipleChoice")

    def _precision(self) -> AbstractContextManager[Any]:
        return precision(self.settings.precision, self.device, fine_tuned=True)


def are_numbers(features: Sequence[Feature]) -> bool:
    """Return whether a model predicts numbers for these examples, not classes."""
    return bool(features) and isinstance(features[0].targets.get("labels"), float)


class Updates:
    """AdamW with the settings' rates and schedule, which trains the head alone for the first `alone` of `total`
    updates."""

    def __init__(self, model: nn.Module, settings: EvaluationSettings, total: int, alone: int) -> None:
        self.model, self.clip, self.alone = model, settings.clip, alone
        self.optimizer = torch.optim.AdamW(
            list(param_groups(model, settings)),
            betas=(settings.betas[0], settings.betas[1]),
            eps=settings.eps,
            fused=True,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: rate(step, total, settings, alone)
        )
        groups = self.optimizer.param_groups
        self.others = [p for group in groups if not group["of_head"] for p in group["params"]]
        self._train_others(not alone)

    def begin(self, done: int) -> None:
        """Prepare for the forward pass of the next update, after `done` ones."""
        if done == self.alone:
            self._train_others(True)

    def step(self) -> None:
        """Update the weights by their gradients, and forget these."""
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def _train_others(self, trained: bool) -> None:
        for parameter in self.others:
            parameter.requires_grad_(trained)


def rate(step: int, total: int, settings: EvaluationSettings, alone: int = 0) -> float:
    """Return the share of the peak rate for update `step`, counted from 0: up over the warm-up from 0, then as the
    schedule says. As transformers' get_linear_schedule_with_warmup. The first `alone` updates, which train the head
    alone, have a schedule of their own, and the others another one."""
    step, total = (step, alone) if step < alone else (step - alone, total - alone)
    warmup = round(settings.warmup * total)
    if step < warmup:
        share = step / warmup
    elif settings.schedule == "constant":
        return 1.0
    else:
        share = max(0.0, (total - step) / max(1, total - warmup))
    return (1 + share * (SLANT - 1)) / SLANT if settings.schedule == "slanted" else share


SLANT = 32
"""How many times its lowest the highest rate of a slanted triangle is (Howard and Ruder 2018, section 3.2)."""
LAYER = re.compile(r"\.(?:layer|layers|h)\.(\d+)\.")


def param_groups(model: nn.Module, settings: EvaluationSettings) -> Iterator[dict[str, Any]]:
    """Yield AdamW's groups of parameters: matrices with weight decay, biases and norms without, and with layer_decay a
    rate per layer. Depth 0 is the embeddings, i + 1 is layer i of L, L + 2 is the head; a group's rate is
    lr * layer_decay ** (L + 2 - depth), so that the head alone has lr (google-research/electra, model/optimization.py).

    Raises UserError for layer_decay where layers cannot be told apart, as where they share parameters."""
    prefix = getattr(model, "base_model_prefix", "") + "."
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    layers = 1 + max((int(m[1]) for name, _ in named if (m := LAYER.search(name))), default=-1)
    if settings.layer_decay < 1 and not layers:
        raise UserError(
            "needs layers with parameters of their own", where="layer_decay", remedy="layer_decay=1"
        )
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        decays = parameter.ndim > 1 and not name.endswith("bias")  # XLNet has biases of two dimensions
        groups.setdefault((_depth(name, prefix, layers), decays), []).append(parameter)
    for (depth, decays), parameters in groups.items():
        peak = settings.head_lr if settings.head_lr and depth == layers + 2 else settings.lr
        yield {
            "params": parameters,
            "lr": peak * settings.layer_decay ** (layers + 2 - depth),
            "weight_decay": settings.weight_decay if decays else 0.0,
            "of_head": depth == layers + 2,
        }


def _depth(name: str, prefix: str, layers: int) -> int:
    if match := LAYER.search(name):
        return int(match[1]) + 1
    return 0 if name.startswith(prefix) and "embed" in name else layers + 2
