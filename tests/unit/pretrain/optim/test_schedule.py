"""Learning-rate factors against the check values of the published schedules."""

import pytest

from pretrain.config.settings import ScheduleSettings
from pretrain.optim.schedule import SCHEDULES, learning_rate, linear, nvidia, polynomial, warmup_updates

T, W, PEAK = 1000, 100, 1e-4

# t -> learning rate of fairseq's polynomial decay (power 1), of google-research/bert, and of NVIDIA's PolyWarmUp.
TABLE = {
    50: (5e-5, 5e-5, 5e-5),
    100: (1e-4, 9.0e-5, 9.486833e-5),
    550: (5e-5, 4.5e-5, 6.708204e-5),
    999: (1.111111e-7, 1e-7, 3.162278e-6),
    1000: (0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("t", TABLE)
def test_check_values(t: int) -> None:
    fairseq, google, deep_learning_examples = TABLE[t]
    assert PEAK * linear(t, T, W) == pytest.approx(fairseq, rel=1e-6, abs=1e-15)
    assert PEAK * polynomial(t, T, W, 1.0) == pytest.approx(fairseq, rel=1e-6, abs=1e-15)
    # NVIDIA counts the update in hand, Google the updates done.
    assert PEAK * nvidia(t - 1, T, W, 0.5) == pytest.approx(deep_learning_examples, rel=1e-6, abs=1e-15)
    assert PEAK * nvidia(t - 1, T, W, 1.0) == pytest.approx(google, rel=1e-6, abs=1e-15)


def test_polynomial_has_its_power() -> None:
    assert polynomial(550, T, W, 2.0) == pytest.approx(0.25)
    assert polynomial(50, T, W, 2.0) == pytest.approx(0.5)


def test_cosine_and_constant() -> None:
    settings = ScheduleSettings("cosine", W)
    values = [learning_rate(t, PEAK, T, settings) for t in (0, 50, 100, 325, 550, 1000)]
    assert values == pytest.approx([0, 5e-5, 1e-4, PEAK * (1 + 0.5**0.5) / 2, 5e-5, 0], abs=1e-12)
    settings = ScheduleSettings("constant", W)
    assert [learning_rate(t, PEAK, T, settings) for t in (0, 50, 100, 999)] == pytest.approx(
        [0, 5e-5, 1e-4, 1e-4]
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_share_and_as_many_steps_are_the_same_warmup(name: str) -> None:
    for t in range(0, T, 7):
        share, steps = ScheduleSettings(name, 0.1, 0.5), ScheduleSettings(name, 100, 0.5)
        assert learning_rate(t, PEAK, T, share) == pytest.approx(learning_rate(t, PEAK, T, steps))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 0.25, 1, 40])
@pytest.mark.parametrize("steps", [40, 41])
def test_factors_rise_then_never_rise_again(name: str, warmup: float, steps: int) -> None:
    values = [SCHEDULES[name](t, steps, warmup, 0.5) for t in range(steps + 1)]
    assert all(0 <= value <= 1 for value in values)
    peak = values.index(max(values))
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert peak in range(warmup_updates(warmup, steps) + 2)


def test_without_warmup_the_first_update_is_at_the_peak() -> None:
    for name in ("linear", "polynomial", "cosine", "constant"):
        assert SCHEDULES[name](0, T, 0, 1.0) == 1.0


def test_first_phase_of_the_lamb_recipe() -> None:
    """7038 steps, peak 6e-3, warm-up 0.2843, power 0.5: up to the peak, then down to it times sqrt(1 - w)."""
    settings = ScheduleSettings("nvidia", 0.2843, 0.5)
    assert learning_rate(1999, 6e-3, 7038, settings) == pytest.approx(6e-3 * 2000 / 7038 / 0.2843)
    assert learning_rate(2000, 6e-3, 7038, settings) == pytest.approx(6e-3 * (1 - 2001 / 7038) ** 0.5)
    assert learning_rate(7037, 6e-3, 7038, settings) == 0.0
