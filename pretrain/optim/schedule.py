"""Compute the learning rate from the progress of training. Pure functions, one per schedule.

t: progress before this update, 0 to T; T: its end; W: the end of the warm-up; w = W / T; D: the length of the decay;
y = (t - (T - D)) / D, 0 to 1 in the decay; e: `schedule.decay_to`. With `train.steps`, t counts updates of a phase or
of the run (`schedule.span`), up to T - 1; with a budget of time, t is the share of it that is used, and T is 1.

| name       | during warm-up | after it                      | known as                                           |
|------------|----------------|-------------------------------|----------------------------------------------------|
| linear     | t / W          | 1 - (t - W) / (T - W)         | fairseq (RoBERTa, SpanBERT), Hugging Face's linear |
| polynomial | t / W          | (1 - (t - W) / (T - W)) ** p  | fairseq with `power`, end learning rate 0          |
| nvidia     | x / w          | (1 - x) ** p, x = (t + 1) / T | DeepLearningExamples' PolyWarmUp, p = 0.5          |
| cosine     | t / W          | (1 + cos(pi (t - W)/(T - W))) / 2 | Hugging Face's cosine                          |
| constant   | t / W          | 1                             |                                                    |
| wsd        | t / W          | 1 up to T - D, then e + (1 - e) f, f = 1 - y or 1 - sqrt(y) | warm-up, stable, decay |

`nvidia` decays from step 0, so it drops at the end of warm-up by a factor of sqrt(1 - w) for p = 0.5, and it uses t
+ 1, as DeepLearningExamples does (t, with a budget of time). With p = 1 it is the curve of google-research/bert, which
drops by a factor of 1 - w, shifted one update earlier (Google's first update has learning rate 0).

`wsd` is the warm-up, stable, decay schedule of MiniCPM (Hu et al. 2024, arXiv 2404.06395, section 4.2), with the two
decays of Haegele et al. 2024 (arXiv 2405.18392, section 3): linear to 0, and 1 - sqrt, by which ModernBERT ends its
training (Warner et al. 2024, arXiv 2412.13663). `schedule.decay_shape` chooses.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from pretrain.config.settings import ScheduleSettings


class Progress(NamedTuple):
    """How much of a run, or of a phase, was done before an update."""

    done: float
    total: float
    in_updates: bool = True
    """Whether both count updates, of which this one adds another; else they are shares of a budget of time."""

    def part(self, length: float) -> float:
        """Return how long `schedule.warmup` or `schedule.decay` is: so many updates, or below 1 a share of them."""
        return updates(length, int(self.total)) if self.in_updates else length * self.total


def updates(length: float, steps: int) -> int:
    """Convert `schedule.warmup` or `schedule.decay` to updates: a value below 1 is a share of the steps, rounded."""
    return round(length * steps) if length < 1 else int(length)


def linear(at: Progress, settings: ScheduleSettings) -> float:
    """Rise linearly to 1 at W, then fall linearly to 0 at T."""
    return _after_warmup(at, settings, lambda way: 1 - way)


def polynomial(at: Progress, settings: ScheduleSettings) -> float:
    """Rise linearly to 1 at W, then fall to 0 at T as a power of the remaining share."""
    return _after_warmup(at, settings, lambda way: (1 - way) ** settings.power)


def nvidia(at: Progress, settings: ScheduleSettings) -> float:
    """Compute PolyWarmUp of NVIDIA's DeepLearningExamples: decay from step 0, at t + 1."""
    warmup = settings.warmup
    x, share = min((at.done + at.in_updates) / at.total, 1.0), warmup if warmup < 1 else warmup / at.total
    return x / share if x < share else (1 - x) ** settings.power


def cosine(at: Progress, settings: ScheduleSettings) -> float:
    """Rise linearly to 1 at W, then fall along half a cosine to 0 at T."""
    return _after_warmup(at, settings, lambda way: (1 + math.cos(math.pi * way)) / 2)


def constant(at: Progress, settings: ScheduleSettings) -> float:
    """Rise linearly to 1 at W, then stay at 1."""
    return _after_warmup(at, settings, lambda way: 1.0)


def wsd(at: Progress, settings: ScheduleSettings) -> float:
    """Rise linearly to 1 at W, stay there until T - D, then fall to `schedule.decay_to` at T in the shape of
    `schedule.decay_shape`."""
    decay = at.part(settings.decay)
    left = at.total - at.done
    if left >= decay:
        return constant(at, settings)
    fallen = DECAYS[settings.decay_shape](min((decay - left) / decay, 1.0))
    return settings.decay_to + (1 - settings.decay_to) * fallen


def _after_warmup(at: Progress, settings: ScheduleSettings, decay: Callable[[float], float]) -> float:
    """Compute t / W before W, then `decay` of the progress from W to T, 0 to 1."""
    end = at.part(settings.warmup)
    if at.done < end:
        return at.done / end
    return decay(min((at.done - end) / ((at.total - end) or 1), 1.0))


SCHEDULES: dict[str, Callable[[Progress, ScheduleSettings], float]] = {
    "linear": linear,
    "polynomial": polynomial,
    "nvidia": nvidia,
    "cosine": cosine,
    "constant": constant,
    "wsd": wsd,
}

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda way: 1 - way,
    "one_minus_sqrt": lambda way: 1 - math.sqrt(way),
}


def learning_rate(at: Progress, peak: float, settings: ScheduleSettings) -> float:
    """Compute the learning rate of the update at this progress, with peak rate `peak`."""
    return peak * SCHEDULES[settings.name](at, settings)
