"""Features, design matrices, bonuses, resampling and the explorer itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import root
from scipy.special import expit, softmax

from pddpo_lab.bonuses import SimHashCounts, ThompsonBonus
from pddpo_lab.methods.loss_bonus import bonus_margin
from pddpo_lab.mle import box_mle
from pddpo_lab.verify.formulas import one_hot_gram, theory_amplitude, theory_precision, valid_scale
from pddpo_lab.worlds.tabular.world import TabularWorld, trap_world
from pddpo_ray.exploration.alternatives import (
    EllipticalBonus,
    HeldBonus,
    elliptical,
    elliptical_from_inverse,
    saturation,
)
from pddpo_ray.exploration.design import Design, empty_design, factor, fitted_design, inverse, sherman_morrison
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.exploration.features import centres, fit_whitening, pool_features, whitened
from pddpo_ray.exploration.resampling import (
    bonus_only_base,
    effective_sample_size,
    exact_base,
    greedy_weights,
    resampling_weights,
)
from pddpo_ray.records import CandidateSet, Pair, Response


def gaussian(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# --- features ----------------------------------------------------------------------------------------------------


def test_whitened_calibration_rows_have_unit_covariance_over_q() -> None:
    rows = gaussian(0, 4000, 12) @ gaussian(1, 12, 12) + 5.0
    phi = fit_whitening(rows, 6, seed=0, norm_clip=1e9).apply(rows)
    np.testing.assert_allclose(phi.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(np.cov(phi.T), np.eye(6) / 6, atol=1e-10)


def test_directions_without_variance_do_not_explode() -> None:
    rows = gaussian(0, 200, 5)
    rows[:, 4] = 0.0
    phi = fit_whitening(rows, 5, seed=0, norm_clip=1e9).apply(rows)
    assert np.abs(phi).max() < 10.0


def test_norms_are_clipped_and_rank_never_exceeds_the_width() -> None:
    whitening = fit_whitening(gaussian(0, 100, 4), 64, seed=0)
    assert whitening.projection.shape == (4, 4)
    assert np.linalg.norm(whitening.apply(1e6 * gaussian(1, 5, 4)), axis=1) == pytest.approx(np.full(5, 3.0))


def test_few_calibration_rows_give_a_standardised_random_projection() -> None:
    rows = gaussian(0, 40, 64)
    phi = fit_whitening(rows, 32, seed=3, norm_clip=1e9).apply(rows)
    np.testing.assert_allclose(phi.std(axis=0) * math.sqrt(32), 1.0, rtol=1e-9)
    assert fit_whitening(rows, 32, seed=3).digest == fit_whitening(rows, 32, seed=3).digest
    assert fit_whitening(rows, 32, seed=3).digest != fit_whitening(rows, 32, seed=4).digest


def test_whitening_does_not_depend_on_the_sign_of_a_principal_direction() -> None:
    rows = gaussian(0, 500, 6)
    flipped = fit_whitening(np.vstack([rows[::-1]]), 6, seed=0)
    np.testing.assert_allclose(fit_whitening(rows, 6, seed=0).projection, flipped.projection, rtol=1e-8)


# --- design and bonus --------------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_elliptical_bonus_equals_the_brute_force_inverse_and_stays_in_its_range(seed: int, pairs: Any) -> None:
    rows, centred = gaussian(seed, pairs, 7), gaussian(seed + 1, 9, 7)
    design = empty_design(7, s0=2.0).add(rows) if pairs else empty_design(7, s0=2.0)
    direct = np.linalg.inv(np.eye(7) / 4 + 0.25 * rows.T @ rows)
    expected = 1.5 * np.sqrt(np.einsum("nq,qp,np->n", centred, direct, centred))
    bonus = elliptical(design.matrix, centred, 1.5)
    np.testing.assert_allclose(bonus, expected, rtol=1e-9)
    np.testing.assert_allclose(elliptical_from_inverse(inverse(design.matrix), centred, 1.5), expected, rtol=1e-9)
    assert (bonus > 0).all()
    assert (bonus <= 1.5 * 2.0 * np.linalg.norm(centred, axis=1) + 1e-12).all()
    assert np.linalg.eigvalsh(design.matrix).min() >= 0.25 - 1e-12


@given(st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_bonus_never_grows_with_data(seed: int) -> None:
    centred, design = gaussian(seed, 5, 6), empty_design(6, s0=2.0)
    before = elliptical(design.matrix, centred, 1.0)
    for row in gaussian(seed + 1, 10, 6):
        design = design.add(row)
        after = elliptical(design.matrix, centred, 1.0)
        assert (after <= before + 1e-12).all()
        before = after


def test_grouping_of_pairs_changes_nothing_and_shards_agree_up_to_rounding() -> None:
    rows = gaussian(0, 60, 8)
    whole = empty_design(8, s0=2.0).add(rows)
    parts = empty_design(8, s0=2.0)
    for part in np.split(rows, [7, 20, 21]):
        parts = parts.add(part)
    np.testing.assert_array_equal(whole.matrix, parts.matrix)
    shards = empty_design(8, s0=2.0)
    for part in np.split(rows, 4)[::-1]:
        shards = shards.add_gram(part.T @ part, len(part))
    np.testing.assert_allclose(shards.matrix, whole.matrix, rtol=1e-12)
    assert shards.pairs == whole.pairs == 60


def test_information_by_hand() -> None:
    """One pair along one axis with v = 2: Lambda = 1/4 + 1/4 * 4, so log det grows by ln 5."""
    design = empty_design(3, s0=2.0).add(np.array([2.0, 0.0, 0.0]))
    assert design.log_determinant == pytest.approx(math.log(5.0))
    assert empty_design(3, s0=2.0).log_determinant == pytest.approx(0.0)


def test_relative_bonus_shrinks_as_one_over_the_root_of_one_plus_2n_over_q() -> None:
    rows = gaussian(0, 4000, 16) * math.sqrt(2 / 16)  # v of two whitened features: covariance 2/q
    ratio = elliptical(empty_design(16, s0=2.0).add(rows).matrix, np.eye(16), 1.0) / 2.0
    assert ratio.mean() == pytest.approx(1 / math.sqrt(1 + 2 * 4000 / 16), rel=0.05)


def test_sherman_morrison_equals_refactoring() -> None:
    design, running = empty_design(6, s0=2.0), inverse(empty_design(6, s0=2.0).matrix)
    for row in gaussian(4, 200, 6):
        design, running = design.add(row), sherman_morrison(running, row)
    np.testing.assert_allclose(running, inverse(design.matrix), rtol=1e-9)


def test_a_matrix_that_rounding_made_singular_is_still_factored() -> None:
    lower = factor(np.ones((3, 3)))
    np.testing.assert_allclose(lower @ lower.T, np.ones((3, 3)), atol=1e-8)


def test_saturation_counts_directions_without_data() -> None:
    design = empty_design(4, s0=2.0).add(np.repeat(np.eye(4)[:1], 50, axis=0))
    bonus = elliptical(design.matrix, np.eye(4), 1.5)
    assert saturation(bonus, np.eye(4), k=1.5, s0=2.0) == 0.75


def test_theory_bonus_of_an_unseen_answer_is_at_least_four_times_the_bound() -> None:
    """Why it saturates: 4 z against the trivial bound 2 z (the experiments of docs/paper.md)."""
    amplitude = theory_amplitude(score_max=2.0, cells=32, rounds=100, pairs_per_round=32, gamma=2.0, delta=0.05)
    unseen = elliptical(theory_precision(np.zeros((8, 8)), pairs_per_round=32, gamma=2.0), np.eye(8), amplitude)
    assert unseen.min() >= 8.0
    zeta = math.e**2 + math.e**-2 + 2
    assert amplitude == pytest.approx(4 * math.sqrt(zeta**2 * (32 + math.log(200 / 0.0125)) + 32 * 2 * 4))


def test_margins_have_one_form_for_both_stages() -> None:
    """Reward: -(b(better) - b(worse)); cost: b(costlier) - b(cheaper); chosen is the better, then the cheaper."""
    assert bonus_margin(np.array([0.7]), np.array([0.2])) == pytest.approx([-0.5])


# --- resampling --------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0, 40))
def test_effective_sample_size_is_kept_and_weights_sum_to_one(values: list[float], strength: float) -> None:
    base = np.zeros(len(values))
    weights, tau, ess = resampling_weights(base, strength * np.array(values))
    assert weights.sum() == pytest.approx(1.0)
    assert 0.0 <= tau <= 1.0
    assert ess >= min(1.5, len(values)) - 1e-6


def test_temperature_is_the_largest_that_keeps_the_sample_size() -> None:
    optimism = np.array([10.0, 0.0, 0.0, 0.0])
    _, tau, ess = resampling_weights(np.zeros(4), optimism)
    assert ess == pytest.approx(1.5, abs=1e-6)
    assert effective_sample_size((tau + 1e-3) * optimism) < 1.5
    assert resampling_weights(np.zeros(4), 0.1 * optimism)[1] == 1.0


def test_one_candidate_is_drawn_whatever_its_weight() -> None:
    weights, tau, _ = resampling_weights(np.array([-300.0]), np.array([50.0]))
    assert weights.tolist() == [1.0]
    assert tau == 1.0


def test_exact_weights_by_hand() -> None:
    """policy .4, proposal .2: weight .4 / .3."""
    assert np.exp(exact_base(np.log([0.4]), np.log([0.2]))) == pytest.approx([4 / 3])
    assert np.exp(bonus_only_base(np.array([True, False]), 0.2)) == pytest.approx([1.0, 0.2])


def test_impossible_candidates_get_no_weight() -> None:
    with np.errstate(divide="ignore"):
        base = exact_base(np.log([0.5, 0.0]), np.log([0.5, 0.5]))
    assert resampling_weights(base, np.array([0.0, 3.0]))[0].tolist() == [1.0, 0.0]


# --- the explorer ------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"beta": 0.1, "multiplier": lambda: 0.5, "seed": 3}


def one_hot(world: TabularWorld) -> Any:
    def features(responses: Any) -> Any:
        rows = np.zeros((len(responses), 32))
        for row, response in zip(rows, responses, strict=True):
            row[np.ravel_multi_index(world.cell(response), (4, 8))] = 1.0
        return rows

    return features


@pytest.fixture
def world() -> TabularWorld:
    return trap_world()


def explorer(world: TabularWorld, **settings: Any) -> OptimisticExplorer:
    return OptimisticExplorer(features=one_hot(world), baseline=world.baseline_pool(32), **(SETTINGS | settings))


def sets(
    world: TabularWorld, round_: int = 1, answers: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
) -> list[CandidateSet]:
    """Per prompt each answer once, the first half from the policy (version 2), the others from the reference."""
    found = []
    for x, prompt in enumerate(world.prompts):
        versions = [2 if place < len(answers) / 2 else 0 for place in range(len(answers))]
        responses = tuple(
            Response(f"{round_}-{x}-{y}", prompt, (y,), f"answer {y}", version, 0)
            for y, version in zip(answers, versions, strict=True)
        )
        log = tuple(float(np.log(world.oracle.reference[x, y])) for y in answers)
        found.append(CandidateSet(prompt, responses, log, log))
    return found


def offline_pairs(world: TabularWorld) -> list[Pair]:
    return [labelled.pair for labelled in world.offline(0)]


def test_choices_are_repeatable_and_do_not_depend_on_earlier_choices(world: TabularWorld) -> None:
    fresh, used = explorer(world), explorer(world)
    used.choose(sets(world, 9))
    assert fresh.choose(sets(world)) == used.choose(sets(world))


def test_an_explorer_fed_with_the_journal_again_is_the_same_explorer(world: TabularWorld) -> None:
    lived, rebuilt = explorer(world, picks=3), explorer(world, picks=3)
    lived.update(offline_pairs(world))
    seen = list(offline_pairs(world))
    for round_ in (1, 2):
        pairs = lived.choose(sets(world, round_))
        lived.update(pairs)
        lived.update(pairs)  # a retry counts once
        seen += pairs
    rebuilt.update(seen)
    assert rebuilt.choose(sets(world, 3)) == lived.choose(sets(world, 3))
    assert rebuilt.metrics == lived.metrics


def test_answers_in_no_pair_are_chosen_more_often_than_covered_ones(world: TabularWorld) -> None:
    found = explorer(world, weights="bonus_only")
    found.update(offline_pairs(world))
    chosen = [pair for round_ in range(60) for pair in found.choose(sets(world, round_, (0, 1, 4, 6, 2, 3, 5, 7)))]
    uncovered = [any(side.token_ids[0] >= 4 for side in (pair.first, pair.second)) for pair in chosen]
    assert np.mean(uncovered) > 0.7


def test_one_side_is_always_a_baseline_answer_and_texts_differ(world: TabularWorld) -> None:
    for pair in explorer(world, picks=4).choose(sets(world)):
        assert any(side.id.startswith("baseline-") for side in (pair.first, pair.second))
        assert pair.first.token_ids != pair.second.token_ids


def test_sides_are_shuffled(world: TabularWorld) -> None:
    found = explorer(world, picks=4)
    pairs = [pair for round_ in range(20) for pair in found.choose(sets(world, round_))]
    share = np.mean([pair.first.id.startswith("baseline-") for pair in pairs])
    assert 0.4 < share < 0.6


def test_bonus_off_draws_from_the_policys_own_candidates_alone(world: TabularWorld) -> None:
    pairs = [p for round_ in range(20) for p in explorer(world, bonus="off", picks=2).choose(sets(world, round_))]
    own = [side for pair in pairs for side in (pair.first, pair.second) if not side.id.startswith("baseline-")]
    assert {side.policy_version for side in own} == {2}
    assert {side.token_ids[0] for side in own} == {0, 1, 2, 3}


def test_proposals_draws_evenly_from_all_candidates_whoever_wrote_them(world: TabularWorld) -> None:
    found = explorer(world, bonus="proposals", picks=6)
    found.update(offline_pairs(world))
    pairs = [pair for round_ in range(100) for pair in found.choose(sets(world, round_))]
    own = [side for pair in pairs for side in (pair.first, pair.second) if not side.id.startswith("baseline-")]
    counts = np.bincount([side.token_ids[0] for side in own], minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert found.metrics["explore/mean_bonus_reward"] == 0.0


def test_greedy_takes_the_candidates_that_the_policy_prefers_most_one_after_another(world: TabularWorld) -> None:
    ratios = {x: gaussian(x, 8) for x in range(4)}
    asked = [
        replace(one, log_policy=tuple(np.array(one.log_proposal) + ratios[x])) for x, one in enumerate(sets(world))
    ]
    for pair in explorer(world, bonus="greedy", picks=3).choose(asked):
        number = int(pair.id.rsplit("/", 1)[1])
        (chosen,) = [side for side in (pair.first, pair.second) if not side.id.startswith("baseline-")]
        assert chosen.token_ids[0] == np.argsort(-ratios[pair.prompt.token_ids[0]])[number]


def test_greedy_begins_again_when_everything_was_taken() -> None:
    advantage = np.array([0.1, 0.7, 0.3])
    assert greedy_weights(advantage, np.array([False, True, False])).tolist() == [0.0, 0.0, 1.0]
    assert greedy_weights(advantage, np.array([True, True, True])).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "theorem"])
def test_exact_draws_from_the_optimistic_policy(world: TabularWorld, kind: str) -> None:
    """Against enumeration: policy * exp((b_r + 0.5 b_c) / beta) over all eight answers, b from the formula."""
    model = EllipticalBonus(32, k=0.2, s0=2.0)
    found = explorer(world, bonus=kind, k=0.2)
    found.update(offline_pairs(world))
    centre = one_hot(world)(world.baseline_pool(32)["p0"]).mean(axis=0)
    for pair in offline_pairs(world):
        model.observe(pair.prompt.id, *(one_hot(world)([side])[0] for side in (pair.first, pair.second)))
    model.start_batch(np.random.default_rng(0))
    bonus = model.bonuses("p0", np.eye(32)[:8] - centre)[0]
    wanted = softmax(np.log(world.oracle.reference[0]) + 1.5 * bonus / 0.1)
    # a comparator that equals the draw is never paired with it, and the set gives another one: all draws make pairs
    pairs = [pair for round_ in range(1000) for pair in found.choose(sets(world, round_)[:1])]
    own = [side for pair in pairs for side in (pair.first, pair.second) if not side.id.startswith("baseline-")]
    counts = np.bincount([side.token_ids[0] for side in own], minlength=8)
    assert counts.sum() == 1000
    assert stats.chisquare(counts, 1000 * wanted).pvalue > 1e-3
    assert wanted.max() < 0.9


def test_max_info_compares_with_the_most_uncertain_candidate(world: TabularWorld) -> None:
    found = explorer(world, comparator="max_info")
    found.update(offline_pairs(world))
    for pair in found.choose(sets(world)):
        sides = {pair.first.token_ids[0], pair.second.token_ids[0]}
        assert max(sides) >= 4


def test_nothing_to_compare_is_skipped_and_counted(world: TabularWorld) -> None:
    pool = {prompt.id: [world.response(x, 0, f"b{x}")] for x, prompt in enumerate(world.prompts)}
    found = OptimisticExplorer(features=one_hot(world), baseline=pool, **SETTINGS)
    assert found.choose(sets(world, answers=(0, 0))) == []
    assert found.metrics["explore/skipped"] == 4


def test_metrics_show_uncertainty_falling_with_data(world: TabularWorld) -> None:
    found = explorer(world)
    found.choose(sets(world))
    before = dict(found.metrics)
    found.update(offline_pairs(world))
    found.choose(sets(world))
    assert found.metrics["explore/mean_bonus_reward"] < before["explore/mean_bonus_reward"]
    assert found.metrics["explore/logdet"] > before["explore/logdet"]
    assert before["explore/saturation"] == 1.0
    assert found.metrics["explore/ess"] >= 1.5 - 1e-9


def test_streams_keep_their_own_designs(world: TabularWorld) -> None:
    found = explorer(world)
    found.update(offline_pairs(world), streams=("reward",))
    response = world.response(0, 1, "r")
    reward, cost = found.bonuses([response])
    assert reward[0] < cost[0]


def test_bonuses_equal_the_brute_force_formula(world: TabularWorld) -> None:
    found = explorer(world)
    pairs = offline_pairs(world)
    found.update(pairs)
    features = one_hot(world)
    v = features([p.first for p in pairs]) - features([p.second for p in pairs])
    direct = np.linalg.inv(np.eye(32) / 4 + v.T @ v / 4)
    responses = [world.response(x, y, f"{x}{y}") for x in range(4) for y in range(8)]
    middle = centres(pool_features(features, world.baseline_pool(32)))
    centred = features(responses) - np.stack([middle[r.prompt.id] for r in responses])
    expected = 1.5 * np.sqrt(np.einsum("nq,qp,np->n", centred, direct, centred))
    np.testing.assert_allclose(found.bonuses(responses)[0], expected, rtol=1e-9)


def test_picks_inside_a_batch_spread_over_directions(world: TabularWorld) -> None:
    """With the uncertainty updated after each pick, twenty picks at one prompt visit all uncovered answers."""
    found = explorer(world, picks=20, weights="bonus_only", k=3.0)
    chosen = {side.token_ids[0] for pair in found.choose(sets(world)[:1]) for side in (pair.first, pair.second)}
    assert chosen >= {4, 5, 6, 7}


@pytest.mark.parametrize("kind", ["simhash", "thompson"])
def test_alternatives_fit_the_same_explorer(world: TabularWorld, kind: Any) -> None:
    found = explorer(world, bonus=kind, picks=2)
    found.update(offline_pairs(world))
    assert len(found.choose(sets(world))) == 8
    assert found.metrics["explore/logdet"] > 0


def test_simhash_bonus_falls_with_the_count_of_its_cell() -> None:
    counts = SimHashCounts(4, alpha=1.0, seed=0)
    one, other = np.eye(4)[0], -np.eye(4)[0]
    counts.start_batch(np.random.default_rng(0))
    assert counts.bonuses("p", one[None])[0] == pytest.approx([1.0])
    for _ in range(3):
        counts.observe("p", one, other)
    assert counts.bonuses("p", one[None])[0] == pytest.approx([0.5])
    assert counts.bonuses("q", one[None])[0] == pytest.approx([1.0])


def test_thompson_deviations_have_the_posteriors_covariance() -> None:
    model = ThompsonBonus(3, k=1.5, s0=2.0)
    for row in gaussian(0, 20, 3):
        model.observe("p", row, np.zeros(3))
    draws = []
    for seed in range(4000):
        model.start_batch(np.random.default_rng(seed))
        draws.append(model.bonuses("p", np.eye(3))[0])
    expected = 1.5**2 * inverse(model.designs["reward"].matrix)
    np.testing.assert_allclose(np.cov(np.array(draws).T), expected, atol=0.12 * expected.max())


def test_elliptical_model_forgets_picks_but_keeps_observations() -> None:
    model = EllipticalBonus(2, k=1.0, s0=2.0)
    model.start_batch(np.random.default_rng(0))
    fresh = model.bonuses("p", np.eye(2))[0]
    model.picked("p", np.array([2.0, 0.0]), np.zeros(2))
    assert model.bonuses("p", np.eye(2))[0][0] < fresh[0]
    model.start_batch(np.random.default_rng(0))
    np.testing.assert_allclose(model.bonuses("p", np.eye(2))[0], fresh)
    model.observe("p", np.array([2.0, 0.0]), np.zeros(2))
    model.start_batch(np.random.default_rng(0))
    assert model.bonuses("p", np.eye(2))[0][0] < fresh[0]


def test_resampling_from_the_world_approaches_the_exact_optimistic_policy(world: TabularWorld) -> None:
    """Monte Carlo: draws from n candidates against policy * exp(optimism), total variation falls with n."""
    policy, reference = softmax(gaussian(1, 8)), world.oracle.reference[0]
    optimism = gaussian(2, 8)
    exact = softmax(np.log(policy) + optimism)
    generator, distances = np.random.default_rng(0), []
    base = exact_base(np.log(policy), np.log(reference))
    for n in (4, 16, 64):
        mean = np.zeros(8)
        for _ in range(600):
            drawn = np.concatenate([generator.choice(8, n // 2, p=policy), generator.choice(8, n // 2, p=reference)])
            weights, _, _ = resampling_weights(base[drawn], optimism[drawn], ess_floor=1.0)
            np.add.at(mean, drawn, weights / 600)
        distances.append(0.5 * np.abs(mean - exact).sum())
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.05


def test_whitened_features_of_a_pool_are_centred(world: TabularWorld) -> None:
    whitening = fit_whitening(gaussian(0, 200, 32), 8, seed=0)
    features = whitened(one_hot(world), whitening)
    rows = pool_features(features, world.baseline_pool(8))
    assert rows["p0"].shape == (8, 8)
    np.testing.assert_allclose((rows["p0"] - centres(rows)["p0"]).mean(axis=0), 0.0, atol=1e-12)


def test_a_prompt_without_baseline_answers_is_refused(world: TabularWorld) -> None:
    with pytest.raises(ValueError, match="at least one baseline answer"):
        pool_features(one_hot(world), {"p0": []})


def test_pairs_on_prompts_that_no_round_asks_teach_the_same_whatever_the_centre(world: TabularWorld) -> None:
    pool = world.baseline_pool(32)
    asked = {prompt: pool[prompt] for prompt in list(pool)[:2]}
    whole = explorer(world)
    lived, rebuilt = (OptimisticExplorer(features=one_hot(world), baseline=asked, **SETTINGS) for _ in range(2))
    pairs = offline_pairs(world)
    assert {pair.prompt.id for pair in pairs} == set(pool)
    whole.update(pairs)
    for pair in pairs:
        lived.update([pair])
    rebuilt.update(pairs)
    answers = [world.response(x, y, f"{x}-{y}") for x in range(2) for y in range(8)]
    for found in (lived, rebuilt):
        np.testing.assert_allclose(found.bonuses(answers), whole.bonuses(answers), atol=1e-12)
    # In the prompts that nothing centres, each answer of a first pair is as far from the middle as the other one.
    first = next(pair for pair in pairs if pair.prompt.id not in asked)
    reward, _ = lived.bonuses([first.first])
    assert 0 < reward[0] == pytest.approx(rebuilt.bonuses([first.first])[0][0], abs=1e-12)


def test_a_design_is_a_value() -> None:
    first = empty_design(2, s0=2.0)
    first.add(np.ones(2))
    np.testing.assert_array_equal(first.matrix, np.eye(2) / 4)
    assert isinstance(first, Design)


def test_the_theorems_bonus_is_held_within_a_round_and_the_elliptical_one_is_not() -> None:
    """A pick narrows the elliptical bonus along its own direction at once; the held one waits for the labels."""
    rows = np.eye(3) - 1 / 3
    for model, moves in ((EllipticalBonus(3, k=1.0, s0=2.0), True), (HeldBonus(3, k=1.0, s0=2.0), False)):
        model.start_batch(np.random.default_rng(0))
        before = model.bonuses("p", rows)[0]
        model.picked("p", rows[0], rows[1])
        assert (model.bonuses("p", rows)[0] < before - 0.01).any() == moves
        model.observe("p", rows[0], rows[1])
        model.start_batch(np.random.default_rng(0))
        assert (model.bonuses("p", rows)[0] < before - 0.01).any()


def test_the_valid_scale_by_hand() -> None:
    """Y = 2, X = 1, z = 0: kappa is 1/4, the box has no size, so k = 1/2 * 8 G, G^2 = (log(1 + 2n)/2 + log 40)/2."""
    found = valid_scale(score_max=0.0, prompts=1, answers=2, pairs=10, s0=2.0)
    assert found == pytest.approx(4.0 * math.sqrt(0.5 * (0.5 * math.log(21.0) + math.log(40.0))))


def test_the_valid_scale_holds_where_pairs_follow_earlier_labels() -> None:
    """400 runs of 2 prompts x 4 answers in [-1, 1]: 40 even pairs, then 200 of the two answers that won most.

    The error in the norm of the design stays below k; in some it exceeds 1.5, the default's k.
    """
    draws, runs, shape = np.random.default_rng(4), 400, (2, 4)
    truth = draws.uniform(-1.0, 1.0, (runs, *shape))
    wins = np.zeros((runs, *shape, 4))
    chance = expit(truth[..., :, None] - truth[..., None, :])
    for pairs in (40, 200):
        order = np.argsort(-wins.sum(axis=-1), axis=-1)
        for r, x in np.ndindex(runs, 2):
            if pairs == 40:
                first, second = draws.permuted(np.tile(np.arange(4), (pairs, 1)), axis=1)[:, :2].T
            else:
                first, second = np.full(pairs, order[r, x, 0]), np.full(pairs, order[r, x, 1])
            won = draws.random(pairs) < chance[r, x, first, second]
            np.add.at(wins[r, x], (np.where(won, first, second), np.where(won, second, first)), 1.0)
    error = truth - box_mle(wins, 1.0)
    error -= error.mean(axis=-1, keepdims=True)
    matrix = np.eye(4) / 4.0 + 0.25 * one_hot_gram(wins)
    norms = np.sqrt(np.einsum("rxi,rxij,rxj->rx", error, matrix, error))
    assert norms.max() < valid_scale(score_max=1.0, prompts=2, answers=4, pairs=240, s0=2.0)
    assert 0.0 < (norms > 1.5).mean() < 1.0


def test_fitted_information_is_the_laplace_covariance_and_a_quarter_a_lower_bound_of_it() -> None:
    """Lambda is the Hessian of the negative log posterior at its mode (finite differences of the gradient)."""
    draws = np.random.default_rng(6)
    rows, ridge = 2.0 * draws.standard_normal((40, 3)), 0.25
    signs = np.where(draws.random(40) < expit(rows @ np.array([1.0, -1.5, 0.5])), 1.0, -1.0)

    def slope(scores: np.ndarray) -> np.ndarray:
        return np.asarray(ridge * scores - (signs * expit(-signs * (rows @ scores))) @ rows)

    mode = root(slope, np.zeros(3), tol=1e-13).x
    hessian = np.stack([(slope(mode + 1e-5 * e) - slope(mode - 1e-5 * e)) / 2e-5 for e in np.eye(3)])
    found = fitted_design(rows, signs, s0=2.0)
    np.testing.assert_allclose(found.matrix, hessian, rtol=1e-6)
    quarter = empty_design(3, s0=2.0).add(rows).matrix
    assert np.linalg.eigvalsh(np.linalg.inv(found.matrix) - np.linalg.inv(quarter)).min() > 0
    # labels that nobody gave yet: the largest information, as without them
    unlabelled = fitted_design(rows, np.zeros(40), s0=2.0)
    np.testing.assert_allclose(unlabelled.matrix, quarter)
    assert unlabelled.pairs == 40


def test_an_explorer_with_fitted_information_weighs_each_stream_by_its_labels(world: TabularWorld) -> None:
    found = explorer(world, weight="fitted")
    pairs = offline_pairs(world)
    labelled = world.labeller().compare(pairs, 0)
    found.update(pairs)
    before = found.bonuses(world.answers[:8])
    found.learn(lambda: labelled)
    after = found.bonuses(world.answers[:8])
    for old, new in zip(before, after, strict=True):
        assert (new >= old - 1e-12).all()
        assert (new > old + 1e-4).any()
    assert not np.allclose(after[0], after[1])  # rewards and costs were labelled apart
    plain = explorer(world)
    plain.update(pairs)
    plain.learn(lambda: labelled)
    np.testing.assert_allclose(plain.bonuses(world.answers[:8]), before)
