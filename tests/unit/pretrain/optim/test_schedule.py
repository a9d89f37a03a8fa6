"""Learning-rate factors against the check values of the published schedules."""

import pytest

from pretrain.config.settings import ScheduleSettings
from pretrain.optim.schedule import SCHEDULES, Progress, learning_rate, updates

T, W, PEAK = 1000, 100, 1e-4

# t -> learning rate of fairseq's polynomial decay (power 1), of google-research/bert, and of NVIDIA's PolyWarmUp.
TABLE = {
    50: (5e-5, 5e-5, 5e-5),
    100: (1e-4, 9.0e-5, 9.486833e-5),
    550: (5e-5, 4.5e-5, 6.708204e-5),
    999: (1.111111e-7, 1e-7, 3.162278e-6),
    1000: (0.0, 0.0, 0.0),
}


def rate(t: int, name: str, warmup: float = W, **settings: float | str) -> float:
    return learning_rate(Progress(t, T), PEAK, ScheduleSettings(name, warmup, **settings))


@pytest.mark.parametrize("t", TABLE)
def test_check_values(t: int) -> None:
    fairseq, google, deep_learning_examples = TABLE[t]
    assert rate(t, "linear") == pytest.approx(fairseq, rel=1e-6, abs=1e-15)
    assert rate(t, "polynomial") == pytest.approx(fairseq, rel=1e-6, abs=1e-15)
    # NVIDIA counts the update in hand, Google the updates done.
    assert rate(t - 1, "nvidia", power=0.5) == pytest.approx(deep_learning_examples, rel=1e-6, abs=1e-15)
    assert rate(t - 1, "nvidia") == pytest.approx(google, rel=1e-6, abs=1e-15)


def test_polynomial_has_its_power() -> None:
    assert rate(550, "polynomial", power=2.0) == pytest.approx(0.25 * PEAK)
    assert rate(50, "polynomial", power=2.0) == pytest.approx(0.5 * PEAK)


def test_cosine_and_constant() -> None:
    values = [rate(t, "cosine") for t in (0, 50, 100, 325, 550, 1000)]
    assert values == pytest.approx([0, 5e-5, 1e-4, PEAK * (1 + 0.5**0.5) / 2, 5e-5, 0], abs=1e-12)
    assert [rate(t, "constant") for t in (0, 50, 100, 999)] == pytest.approx([0, 5e-5, 1e-4, 1e-4])


def test_wsd_is_flat_until_its_decay() -> None:
    """Haegele et al. 2024, section 3: n steps of N, N_decay of them: 1 - (n - (N - N_decay)) / N_decay, or 1 minus the
    root of that quotient."""
    for shape, of_quotient in (("linear", lambda y: 1 - y), ("one_minus_sqrt", lambda y: 1 - y**0.5)):
        for decay in (200, 0.2):
            values = [rate(t, "wsd", decay=decay, decay_shape=shape) for t in range(T + 1)]
            assert values[:W] == [rate(t, "linear") for t in range(W)]
            assert set(values[W : T - 200 + 1]) == {PEAK}
            expected = [PEAK * of_quotient(n / 200) for n in range(201)]
            assert values[T - 200 :] == pytest.approx(expected, abs=1e-15)
            assert values[T] == 0 < values[T - 1]


def test_wsd_falls_to_a_share_of_the_peak() -> None:
    """OneMinusSqrtScheduler of Ettin's training code: a + (1 - a) (1 - sqrt((n - (N - N_decay)) / N_decay))."""
    values = [rate(t, "wsd", warmup=0, decay=T, decay_to=0.5) for t in range(T + 1)]
    assert values == pytest.approx([PEAK * (0.5 + 0.5 * (1 - (n / T) ** 0.5)) for n in range(T + 1)])
    assert (values[0], values[-1]) == (PEAK, 0.5 * PEAK)


def test_wsd_without_a_decay_is_constant_and_longer_plans_share_their_stable_part() -> None:
    none = [rate(t, "wsd", decay=0) for t in range(T + 1)]
    assert none == [rate(t, "constant") for t in range(T + 1)]
    settings = ScheduleSettings("wsd", W, decay=0.2)
    longer = [learning_rate(Progress(t, 3 * T), PEAK, settings) for t in range(800)]
    assert longer == [learning_rate(Progress(t, T), PEAK, settings) for t in range(800)]
    one_update = [rate(t, "wsd", warmup=0, decay=1) for t in range(T + 1)]
    assert one_update == [PEAK] * T + [0], "a decay of one update begins, and is at its peak, at the last one"


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_share_and_as_many_steps_are_the_same_warmup(name: str) -> None:
    for t in range(0, T, 7):
        share, steps = ScheduleSettings(name, 0.1, 0.5), ScheduleSettings(name, 100, 0.5)
        at = Progress(t, T)
        assert learning_rate(at, PEAK, share) == pytest.approx(learning_rate(at, PEAK, steps))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 0.25, 1, 40])
@pytest.mark.parametrize("steps", [40, 41])
def test_factors_rise_then_never_rise_again(name: str, warmup: float, steps: int) -> None:
    settings = ScheduleSettings(name, warmup, 0.5, decay=0)
    values = [SCHEDULES[name](Progress(t, steps), settings) for t in range(steps + 1)]
    assert all(0 <= value <= 1 for value in values)
    peak = values.index(max(values))
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert peak in range(updates(warmup, steps) + 2)


def test_without_warmup_the_first_update_is_at_the_peak() -> None:
    for name in ("linear", "polynomial", "cosine", "constant", "wsd"):
        assert rate(0, name, warmup=0) == PEAK


def test_first_phase_of_the_lamb_recipe() -> None:
    """7038 steps, peak 6e-3, warm-up 0.2843, power 0.5: up to the peak, then down to it times sqrt(1 - w)."""
    settings = ScheduleSettings("nvidia", 0.2843, 0.5)
    assert learning_rate(Progress(1999, 7038), 6e-3, settings) == pytest.approx(6e-3 * 2000 / 7038 / 0.2843)
    assert learning_rate(Progress(2000, 7038), 6e-3, settings) == pytest.approx(
        6e-3 * (1 - 2001 / 7038) ** 0.5
    )
    assert learning_rate(Progress(7037, 7038), 6e-3, settings) == 0.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_budget_of_time_has_the_curve_of_as_many_small_steps(name: str) -> None:
    settings = ScheduleSettings(name, 0.25, 0.5)
    for share in (0.0, 0.1, 0.24, 0.25, 0.5, 0.99, 1.0):
        steps = learning_rate(Progress(share * 10**6, 10**6), PEAK, settings)
        assert learning_rate(Progress(share, 1.0, in_updates=False), PEAK, settings) == pytest.approx(
            steps, rel=1e-4, abs=PEAK * 1e-5 if share < 1 or name != "nvidia" else PEAK * 1e-2
        )
