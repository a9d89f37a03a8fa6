"""Compute the learning rate from the number of updates done. Pure functions, one per schedule.

t: updates done before this one, 0 to T - 1; T: `train.steps`; W: warm-up in updates; w = W / T.

| name       | during warm-up | after it                      | known as                                           |
|------------|----------------|-------------------------------|----------------------------------------------------|
| linear     | t / W          | 1 - (t - W) / (T - W)         | fairseq (RoBERTa, SpanBERT), Hugging Face's linear |
| polynomial | t / W          | (1 - (t - W) / (T - W)) ** p  | fairseq with `power`, end learning rate 0          |
| nvidia     | x / w          | (1 - x) ** p, x = (t + 1) / T | DeepLearningExamples' PolyWarmUp, p = 0.5          |
| cosine     | t / W          | (1 + cos(pi (t - W)/(T - W))) / 2 | Hugging Face's cosine                          |
| constant   | t / W          | 1                             |                                                    |

`nvidia` decays from step 0, so it drops at the end of warm-up by a factor of sqrt(1 - w) for p = 0.5, and it uses t
+ 1, as DeepLearningExamples does. With p = 1 it is the curve of google-research/bert, which drops by a factor of 1
- w, shifted one update earlier (Google's first update has learning rate 0).
"""

import math
from collections.abc import Callable

from pretrain.config.settings import ScheduleSettings


def warmup_updates(warmup: float, steps: int) -> int:
    """Convert `schedule.warmup` to updates: a value below 1 is a fraction of the steps, rounded."""
    return round(warmup * steps) if warmup < 1 else int(warmup)


def _share(warmup: float, steps: int) -> float:
    return warmup if warmup < 1 else warmup / steps


def _after_warmup(t: int, steps: int, warmup: float, decay: Callable[[float], float]) -> float:
    """Compute t / W during the first W updates, then `decay` of the progress from W to T, 0 to 1."""
    updates = warmup_updates(warmup, steps)
    if t < updates:
        return t / updates
    return decay(min((t - updates) / max(steps - updates, 1), 1.0))


def linear(t: int, steps: int, warmup: float, power: float = 1.0) -> float:
    """Rise linearly to 1 at W, then fall linearly to 0 at T."""
    return _after_warmup(t, steps, warmup, lambda way: 1 - way)


def polynomial(t: int, steps: int, warmup: float, power: float = 1.0) -> float:
    """Rise linearly to 1 at W, then fall to 0 at T as a power of the remaining fraction."""
    return _after_warmup(t, steps, warmup, lambda way: (1 - way) ** power)


def nvidia(t: int, steps: int, warmup: float, power: float = 0.5) -> float:
    """Compute PolyWarmUp of NVIDIA's DeepLearningExamples: decay from step 0, at t + 1."""
    x, share = min((t + 1) / steps, 1.0), _share(warmup, steps)
    return x / share if x < share else (1 - x) ** power


def cosine(t: int, steps: int, warmup: float, power: float = 1.0) -> float:
    """Rise linearly to 1 at W, then fall along half a cosine to 0 at T."""
    return _after_warmup(t, steps, warmup, lambda way: (1 + math.cos(math.pi * way)) / 2)


def constant(t: int, steps: int, warmup: float, power: float = 1.0) -> float:
    """Rise linearly to 1 at W, then stay at 1."""
    return _after_warmup(t, steps, warmup, lambda way: 1.0)


SCHEDULES: dict[str, Callable[..., float]] = {
    "linear": linear,
    "polynomial": polynomial,
    "nvidia": nvidia,
    "cosine": cosine,
    "constant": constant,
}


def learning_rate(t: int, peak: float, steps: int, settings: ScheduleSettings) -> float:
    """Compute the learning rate of the update after `t` updates, in a run of `steps` with peak rate `peak`."""
    return peak * SCHEDULES[settings.name](t, steps, settings.warmup, settings.power)
