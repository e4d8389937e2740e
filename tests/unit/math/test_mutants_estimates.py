"""Edges of estimates, likelihoods, bonuses and the dual variable, each with its value by hand, scipy or brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp, softmax

from pddpo_ray.errors import RunError
from pddpo_ray.exploration.alternatives import EllipticalBonus, NoBonus, ThompsonBonus
from pddpo_ray.exploration.bonus import theory_amplitude
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.exploration.features import fit_whitening, with_constant
from pddpo_ray.exploration.resampling import bonus_only_base, temper
from pddpo_ray.records import CandidateSet, CostEstimate, Decoding, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.certificate import candidate_level, first_rejected, lower_bound
from pddpo_ray.theory.cost_estimate import clipped_logit, estimate_from_shares, interval, mean_with_error
from pddpo_ray.theory.cost_stage import cost_stage_scales
from pddpo_ray.theory.dual import (
    DualState,
    LogMultiplier,
    Pid,
    ProjectedFixed,
    ascend,
    limit_state,
)
from pddpo_ray.theory.explicit_dual import descend
from pddpo_ray.theory.intervals import rate_interval
from pddpo_ray.theory.mle import PAIRS_PER_RIDGE, box_mle, gradient, negative_log_likelihood
from pddpo_ray.theory.output import shortfall
from pddpo_ray.worlds.table_engine import decoded
from pddpo_ray.worlds.tabular import trap_world
from pddpo_ray.worlds.tabular_parts import TabularEngine

WORLD = trap_world()


def test_two_responses_are_enough_for_an_estimate() -> None:
    assert mean_with_error([1.0, 3.0]) == pytest.approx((2.0, 1.0))
    found = estimate_from_shares([0.2, 0.4, 0.6], labels_each=5, cost_max=2.0, mode="unsafe_rate", constraint="harm")
    assert found.value == pytest.approx(0.4)
    assert (found.responses, found.labels_each) == (3, 5)
    assert (found.mode, found.constraint) == ("unsafe_rate", "harm")
    by_logit = estimate_from_shares([0.2, 0.4, 0.6], labels_each=5, cost_max=2.0)
    assert by_logit.mode == "logit_labels"
    assert by_logit.bias_allowance > 0


def test_a_clipped_logit_never_leaves_its_bounds_by_rounding() -> None:
    for cost_max in np.linspace(0.1, 6.0, 200):
        ends = np.abs(clipped_logit([0.0, 1.0], float(cost_max)))
        assert ends.max() <= cost_max
        assert ends.tolist() == pytest.approx([cost_max, cost_max])


def test_intervals_of_rates_end_exactly_at_0_and_1() -> None:
    for count in range(1, 200):
        low, high = rate_interval(0, count), rate_interval(count, count)
        assert low is not None
        assert high is not None
        assert (low.low, high.high) == (0.0, 1.0)
    ends = interval(CostEstimate(0.0, 0.1, 30, 20, cost_max=2.0))
    assert ends is not None
    assert ends[1] == pytest.approx(-ends[0])


def test_an_estimate_exactly_at_the_limit_is_put_to_the_test() -> None:
    assert shortfall({"cost": 0.5}, {"cost": 0.4}, {"cost": 0.5}) == pytest.approx(1.0)
    assert shortfall({"cost": 0.4}, {"cost": 0.4}, {"cost": 0.5}) == 0.0


def test_learning_rates_of_the_cost_stage_fall_below_the_reference_multiplier() -> None:
    assert cost_stage_scales(0.5, reference_multiplier=2.0) == (0.5, 0.25)
    assert cost_stage_scales(3.0, reference_multiplier=2.0) == (3.0, 1.0)


def test_bounds_of_a_multiplier_must_leave_room_between_them() -> None:
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0)
    with pytest.raises(ValueError, match="reversed"):
        limit_state("cost", rho=1.0, rule=rule, first=1.0, lower=1.0, upper=1.0)
    made = limit_state("cost", rho=1.5, rule=rule, limit=0.2, lower=0.1)
    assert (made.multiplier, made.upper, made.lower, made.limit) == (1.5, 3.0, 0.1, 0.2)
    assert made.memory.integral == 1.5


def test_the_third_round_at_an_end_is_said_and_no_earlier_one() -> None:
    rule = ProjectedFixed(rounds=1, first=1.0, cost_max=0.1)
    for cost, word in ((1.0, "upper end"), (-1.0, "does not bind")):
        state = DualState((limit_state("cost", rho=1.0, rule=rule),))
        for number in range(1, 5):
            state, _ = ascend(state, CostEstimate(cost, 0.1, 9, 5))
            said = state["cost"].message
            assert (said is not None) == (number >= 3)
            assert said is None or word in said


def test_pid_and_log_rule_by_hand() -> None:
    """Integral 1 + .5 * .4 = 1.2, value .1 * .4 + 1.2; then excess .1: integral 1.25, no rise, .01 + 1.25."""
    state = DualState((limit_state("cost", rho=1.0, rule=Pid(0.1, 0.5, 2.0), limit=0.1),))
    values = []
    for cost in (0.5, 0.2, 0.4):
        state, step = ascend(state, CostEstimate(cost, 0.1, 9, 5))
        values.append(step.multiplier_after)
    assert values == pytest.approx([1.24, 1.26, 0.03 + 1.4 + 2.0 * 0.2])
    assert step.eta == pytest.approx(0.6)
    state = DualState((limit_state("cost", rho=1.5, rule=LogMultiplier(0.3), first=1.2),))
    _, step = ascend(state, CostEstimate(0.5, 0.1, 9, 5))
    assert step.multiplier_after == pytest.approx(1.2 * math.exp(0.3 * 1.2 * 0.5))
    assert step.eta == pytest.approx(0.3 * 1.44)


@pytest.mark.parametrize(("shift", "upper"), [(-0.9, 5.0), (-0.2, 5.0), (0.6, 5.0), (-0.9, 0.4)])
def test_the_explicit_dual_is_least_where_scipys_bounded_search_finds_it(shift: float, upper: float) -> None:
    rng = np.random.default_rng([5])
    rewards, gains, prior = rng.normal(size=(3, 6)), rng.normal(size=(3, 6)) + shift, np.array([0.5, 0.3, 0.2])

    def dual(multiplier: float) -> float:
        return float(prior @ (0.5 * logsumexp((rewards + multiplier * gains) / 0.5, axis=1)))

    found = descend(rewards, gains, 0.5, upper=upper, prior=prior)
    best = minimize_scalar(dual, bounds=(0.0, upper), method="bounded", options={"xatol": 1e-9})
    assert dual(found.multiplier) <= best.fun + 1e-9
    assert found.multiplier == pytest.approx(best.x, abs=1e-4)
    weights = softmax((rewards + found.multiplier * gains) / 0.5, axis=1)
    assert found.sample_size == pytest.approx(prior @ (1.0 / (weights**2).sum(axis=1)))
    assert found.slope == pytest.approx(prior @ (weights * gains).sum(axis=1))


def test_a_table_with_very_many_pairs_changes_no_other_tables_scores() -> None:
    rng = np.random.default_rng([6])
    few, many = rng.integers(0, 5, size=(2, 4, 4)).astype(float)
    together = box_mle(np.stack([few, many * PAIRS_PER_RIDGE]), 3.0)
    np.testing.assert_allclose(together[0], box_mle(few, 3.0), atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_newtons_steps_find_scipys_minimum_from_any_start(seed: int) -> None:
    """From far outside, where full steps overshoot, with offsets and a strong ridge, inside a box that binds."""
    rng = np.random.default_rng([seed, 9])
    wins = rng.integers(0, 9, size=(1, 5, 5)).astype(float)
    wins[0][np.diag_indices(5)] = 0.0
    offsets = rng.normal(size=(1, 5, 5)) * 2
    start = rng.normal(size=(1, 5)) * 30
    for bound, ridge in ((1.0, 1e-2), (40.0, 0.5)):
        found = box_mle(wins, bound, offsets=offsets, start=start, ridge=ridge)
        best = minimize(
            lambda s, ridge=ridge: float(negative_log_likelihood(s, wins[0], offsets[0], ridge)),
            np.zeros(5),
            jac=lambda s, ridge=ridge: gradient(s, wins[0], offsets[0], ridge),
            bounds=[(-bound, bound)] * 5,
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        np.testing.assert_allclose(found[0], best.x, atol=1e-5)


def test_the_objective_by_hand() -> None:
    """3 wins and 1 loss at scores (.5, -.5), offset .2 for the wins, ridge 2: 3 sp(-.8) + sp(1) + .5."""
    wins = np.array([[0.0, 3.0], [1.0, 0.0]])
    offsets = np.array([[0.0, 0.2], [0.0, 0.0]])
    expected = 3 * math.log1p(math.exp(-0.8)) + math.log1p(math.exp(1.0)) + 0.5
    assert negative_log_likelihood(np.array([0.5, -0.5]), wins, offsets, 2.0) == pytest.approx(expected)


def test_a_mean_above_the_limit_is_rejected_and_bounded_from_below() -> None:
    """The mirror image: bets on 1 - Z against a limit of 1 - d, with Z in {0, 1} and a single bet by hand."""
    values = [1.0] * 40
    assert first_rejected(values, 0.5, 0.05) is not None
    assert first_rejected([0.0] * 40, 0.5, 0.05) is None
    assert 0.5 < lower_bound(values, 0.5, 0.05) < 1.0
    assert lower_bound([0.0] * 40, 0.5, 0.05) == 0.0
    assert candidate_level(0.1, 2) == pytest.approx(0.6 / (math.pi**2 * 4))


def test_the_theorys_amplitude_by_hand() -> None:
    """zeta = 4 + ... at z = 0 is exactly 4: 4 sqrt(16 (6 + log(2 * 5 * 4 / .1))); the second term is N gamma z^2."""
    at_zero = theory_amplitude(score_max=0.0, cells=6, rounds=5, pairs_per_round=3, gamma=2.0, delta=0.1)
    assert at_zero == pytest.approx(16.0 * math.sqrt(6 + math.log(400.0)))
    zeta = math.exp(1.0) + math.exp(-1.0) + 2.0
    at_one = theory_amplitude(score_max=1.0, cells=6, rounds=5, pairs_per_round=3, gamma=2.0, delta=0.1)
    assert at_one == pytest.approx(4.0 * math.sqrt(zeta**2 * (6 + math.log(400.0)) + 6.0))


def test_equal_weights_at_exactly_the_floor_keep_the_whole_bonus() -> None:
    assert temper(np.zeros(2), np.zeros(2), ess_floor=2.0) == 1.0
    base = bonus_only_base(np.array([True, False]), 0.25)
    assert np.exp(base).tolist() == pytest.approx([1.0, 0.25])


def test_picks_and_distances_use_the_difference_of_a_pair() -> None:
    """Lambda = I/s0^2 + w v v' with v = chosen - other, for reward and cost; max_info adds both inverses."""
    chosen, other, probe = np.array([[1.0, 0.5], [0.2, -1.0], [0.7, 0.7]])
    for model in (EllipticalBonus(2, k=1.3, s0=1.7, weight=0.2), ThompsonBonus(2, k=1.3, s0=1.7, weight=0.2)):
        assert (model.k, model.s0, model.weight) == (1.3, 1.7, 0.2)
        model.start_batch(np.random.default_rng(0))
        model.picked("x", chosen, other)
        matrix = np.eye(2) / 1.7**2 + 0.2 * np.outer(chosen - other, chosen - other)
        expected = math.sqrt(2.0 * probe @ np.linalg.inv(matrix) @ probe)
        assert model.distances(probe[None]) == pytest.approx([expected])
    none = NoBonus()
    assert [values.tolist() for values in none.bonuses("x", np.ones((3, 2)))] == [[0.0] * 3, [0.0] * 3]
    assert none.distances(np.array([[3.0, 4.0]])).tolist() == [5.0]
    assert none.information == 0.0


def explorer(kind: str, weight: float = 0.25) -> OptimisticExplorer:
    def features(responses: object) -> np.ndarray:
        return np.array([[float(r.token_ids[0] == y) for y in range(8)] for r in responses])  # type: ignore[attr-defined]

    return OptimisticExplorer(
        features=features, baseline=WORLD.baseline_pool(4), beta=0.1, multiplier=lambda: 0.5, seed=1, bonus=kind,  # type: ignore[arg-type]
        k=1.1, s0=1.9, weight=weight,
    )  # fmt: skip


def test_an_explorer_reports_its_five_means_and_what_it_skipped() -> None:
    prompt = WORLD.prompts[0]
    responses = tuple(Response(f"r{y}", prompt, (y,), f"{y}", 1, 0) for y in range(8))
    log = tuple(np.log(WORLD.oracle.reference[0]).tolist())
    one = explorer("elliptical")
    one.choose([CandidateSet(prompt, responses, log, log)])
    names = {"mean_bonus_reward", "mean_bonus_cost", "saturation", "tau", "ess", "pairs", "skipped", "logdet"}
    assert set(one.metrics) == {f"explore/{name}" for name in names}
    assert (one.metrics["explore/pairs"], one.metrics["explore/skipped"]) == (1.0, 0.0)
    assert one.metrics["explore/saturation"] == 1.0
    for kind in ("elliptical", "thompson"):
        model = explorer(kind, weight=0.125)._uncertainty
        assert (model.k, model.s0, model.weight) == (1.1, 1.9, 0.125)  # type: ignore[attr-defined]


def test_whitening_is_done_in_double_precision_around_the_mean() -> None:
    """Unit covariance over q even of 32-bit rows far from zero."""
    rows: Any = (np.random.default_rng(2).normal(size=(400, 3)) * [1.0, 2.0, 5.0] + 100.0).astype(np.float32)
    whitening = fit_whitening(rows, 3, seed=0, norm_clip=100.0)
    assert whitening.mean.dtype == whitening.projection.dtype == np.float64
    np.testing.assert_allclose(np.cov(whitening.apply(rows).T) * 3, np.eye(3), atol=1e-9)
    pool = next(iter(WORLD.baseline_pool(4).values()))[:3]
    extended = with_constant(lambda responses: np.zeros((len(responses), 2)))(pool)
    assert extended.tolist() == [[0.0, 0.0, 1.0]] * 3


def test_an_engine_without_a_version_says_so(tmp_path: Path) -> None:
    engine = TabularEngine(WORLD, ArtifactStore(tmp_path / "store"))
    assert (engine.name, engine.version) == ("tabular-0", -1)
    with pytest.raises(RunError, match="engine tabular-0: no version was delivered"):
        engine.sample(WORLD.prompts[:1], [1], 2, Decoding())
    everything = decoded(np.log([0.5, 0.25, 0.25]), Decoding(temperature=1.0, top_p=1.0))
    assert everything.tolist() == pytest.approx([0.5, 0.25, 0.25])
