"""The multiplier of a step-by-step trainer: by hand, and on a toy policy whose right answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddpo_ray.theory.step_dual import GAIN, HORIZON, StepLimit, StepState, next_state, scale_of

LENGTHS = np.arange(1, 33)
LENGTH = StepLimit("length", 12.0, rate=False, span=32.0)
RATE = StepLimit("unsafe", 0.2, rate=True, span=1.0)


def test_a_step_by_hand() -> None:
    """d = 0.2: s = 0.4; mean 0.3: e = 0.25; I = 0.25 * 4 / 40 = 0.025; lambda = 0.025 + 1."""
    state = next_state(RATE, StepState(), 0.3, 0.46)
    assert (state.integral, state.multiplier, state.steps) == pytest.approx((0.025, 1.025, 1))
    later = next_state(RATE, state, 0.2, 0.4)
    assert (later.integral, later.multiplier) == pytest.approx((0.025, 0.025)), (
        "on the limit the integral alone is left"
    )


def test_the_scale_of_a_mean_is_its_slow_deviation_and_never_nothing() -> None:
    first = next_state(LENGTH, StepState(), 20.0, 9.0)
    assert first.deviation == 9.0
    second = next_state(LENGTH, first, 20.0, 1.0)
    assert second.deviation == pytest.approx((9.0 + 1.0) / 2)
    assert scale_of(LENGTH, StepState(deviation=0.0)) == pytest.approx(0.02 * 32)
    assert scale_of(StepLimit("words", 3.0, rate=False), StepState()) == 1.0


def test_nothing_winds_up_at_an_end_or_where_no_gradient_can_follow() -> None:
    at_top = StepState(integral=19.5, steps=9)
    assert next_state(RATE, at_top, 1.0, 0.1).integral == 19.5
    assert next_state(RATE, StepState(integral=1.0), 1.0, 0.0, spread=False).integral == 1.0
    below = next_state(RATE, StepState(integral=1.0), 0.0, 0.0, spread=False)
    assert below.integral == pytest.approx(1.0 - 0.5 * GAIN / HORIZON), "downwards it is free"
    assert next_state(RATE, StepState(), 0.0, 0.1).multiplier == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="unsafe: the mean cost of a step is not a finite number"):
        next_state(RATE, StepState(), bad, 0.1)


def toy_grpo(
    limits: tuple[float, float], *, seed: int, rate: float, steps: int = 500, weights: tuple[float, float] | None = None
) -> np.ndarray:
    """A policy over 32 lengths and one act, by z-scored advantages of 16 groups of 8, no KL. -> [steps, 2]

    The reward wants length and the act. Returns the exact mean length and probability of the act before each step.
    """
    random = np.random.default_rng(seed)
    scores, act, told = np.zeros(32), math.log(0.3 / 0.7), []
    held = (StepLimit("length", limits[0], False, 32.0), StepLimit("act", limits[1], True, 1.0))
    states = [StepState(), StepState()]
    for _ in range(steps):
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        probability = 1.0 / (1.0 + math.exp(-act))
        told.append((float(shares @ LENGTHS), probability))
        drawn = random.choice(32, (16, 8), p=shares)
        acted = (random.random((16, 8)) < probability).astype(float)
        lengths = LENGTHS[drawn].astype(float)
        advantage = z_scores(0.1 * lengths + acted + random.normal(0.0, 0.3, drawn.shape))
        for index, costs in enumerate((lengths, acted)):
            spread = bool((costs.std(axis=1) > 0).any())
            states[index] = next_state(held[index], states[index], costs.mean(), costs.std(), spread=spread)
            weight = states[index].multiplier if weights is None else weights[index]
            advantage -= weight * z_scores(costs)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-4)
        gradient = np.bincount(drawn.ravel(), advantage.ravel(), 32) / advantage.size - shares * advantage.mean()
        scores += 8.0 * rate * gradient
        act += 4.0 * rate * float((advantage * (acted - probability)).mean())
    return np.array(told)


def z_scores(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(axis=1, keepdims=True)
    return np.asarray(centred / (values.std(axis=1, ddof=1, keepdims=True) + 1e-4))


SETTINGS = [(12.0, 0.05), (6.0, 0.2), (25.0, 0.1)]


@pytest.mark.parametrize("limits", SETTINGS)
@pytest.mark.parametrize("rate", [0.1, 0.3, 1.0])
def test_one_gain_holds_both_limits_at_learning_rates_that_are_ten_times_apart(
    limits: tuple[float, float], rate: float
) -> None:
    """Means over the last third, over seeds 100 to 102; settings and gain were chosen on seeds 0 and 1."""
    late = np.mean([toy_grpo(limits, seed=seed, rate=rate)[-166:] for seed in (100, 101, 102)], axis=(0, 1))
    assert late == pytest.approx(limits, rel=0.05)


def test_fixed_weights_go_from_too_much_to_nothing() -> None:
    """Why a controller: between the weights that do nothing and those that do too much, none of eight fits."""
    for weight in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0):
        late = toy_grpo(SETTINGS[0], seed=100, rate=0.3, weights=(weight, weight))[-166:].mean(axis=0)
        assert abs(late / SETTINGS[0] - 1.0).max() > 0.05, weight
