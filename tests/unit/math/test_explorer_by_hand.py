"""One choice of the explorer done again with plain linear algebra and the seeds' formula; its memory, draw by draw."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pddpo_lab.bonuses import SimHashCounts, ThompsonBonus
from pddpo_lab.verify.formulas import theory_precision
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.exploration.alternatives import EllipticalBonus, elliptical_from_inverse, saturation
from pddpo_ray.exploration.design import Design, empty_design, factor, inverse, sherman_morrison
from pddpo_ray.exploration.explorer import OptimisticExplorer, choose_pairs
from pddpo_ray.exploration.features import Whitening, fit_whitening
from pddpo_ray.exploration.resampling import effective_sample_size, resampling_weights, temper
from pddpo_ray.records import CandidateSet, Pair, Response
from pddpo_ray.theory.seeds import generator_of

WORLD = trap_world()
RNG = np.random.default_rng([11])
DIRECTIONS = RNG.normal(size=(4, 8, 3))
K, S0, WEIGHT, BETA, MULTIPLIER, SCALE = 1.1, 1.9, 0.2, 2.0, 0.6, 0.5


def features(responses: Sequence[Response]) -> np.ndarray:
    return np.array([DIRECTIONS[WORLD.cell(response)] for response in responses])


def explorer(**settings: Any) -> OptimisticExplorer:
    plain: dict[str, Any] = {
        "features": features, "baseline": WORLD.baseline_pool(5), "beta": BETA, "multiplier": lambda: MULTIPLIER,
        "seed": 3, "k": K, "s0": S0, "weight": WEIGHT, "cost_bonus_scale": SCALE,
    }  # fmt: skip
    return OptimisticExplorer(**(plain | settings))


def candidates(x: int, answers: Sequence[int] = range(8)) -> CandidateSet:
    """The first half from the policy, the others from the reference; log-probabilities of both, made up."""
    responses = tuple(
        Response(f"c{x}-{y}", WORLD.prompts[x], (y,), f"{y}", 2 if index < len(answers) / 2 else 0, 0)
        for index, y in enumerate(answers)
    )
    policy = tuple(-1.0 - 0.3 * y for y in answers)
    return CandidateSet(WORLD.prompts[x], responses, policy, tuple(-2.0 + 0.1 * y for y in answers))


SEEN = [Pair(f"seen-{y}", WORLD.response(0, y, f"s{y}"), WORLD.response(0, y + 1, f"t{y}")) for y in (0, 2, 5)]


class ByHand:
    """The explorer's choice for one set, step by step."""

    def __init__(self, weights: str, comparator: str, picks: int, floor: float) -> None:
        self.weights, self.comparator, self.picks, self.floor = weights, comparator, picks, floor
        differences = [features([pair.first])[0] - features([pair.second])[0] for pair in SEEN]
        self.reward = np.eye(3) / S0**2 + WEIGHT * sum(np.outer(v, v) for v in differences)
        self.cost = np.eye(3) / S0**2 + WEIGHT * sum(np.outer(v, v) for v in differences[:2])

    def choose(self, found: CandidateSet) -> tuple[list[Pair], dict[str, float]]:
        pool = WORLD.baseline_pool(5)[found.prompt.id]
        centre = features(pool).mean(axis=0)
        rows = features(found.responses) - centre
        draws = generator_of(3, "choose", *[response.id for response in found.responses])
        reward, cost, pairs, told = self.reward.copy(), self.cost.copy(), [], []
        for pick in range(self.picks):
            b_r, b_c = (K * np.sqrt(np.einsum("nq,qp,np->n", rows, np.linalg.inv(m), rows)) for m in (reward, cost))
            optimism = (b_r + MULTIPLIER * SCALE * b_c) / BETA
            policy, proposal = np.array(found.log_policy), np.array(found.log_proposal)
            if self.weights == "exact":
                base = policy - np.log((np.exp(policy) + np.exp(proposal)) / 2)
            else:
                base = np.where([r.policy_version == 2 for r in found.responses], 0.0, math.log(0.3))
            tau = temper(base, optimism, ess_floor=self.floor)
            weights = np.exp(base + tau * optimism)
            weights /= weights.sum()
            saturated = np.mean(b_r >= 0.99 * K * S0 * np.linalg.norm(rows, axis=1))
            told.append([b_r.mean(), b_c.mean(), saturated, tau, 1 / np.sum(weights**2)])
            chosen = int(draws.choice(len(rows), p=weights))
            tokens = found.responses[chosen].token_ids
            if self.comparator == "max_info":
                both = np.linalg.inv(reward) + np.linalg.inv(cost)
                gaps = rows[chosen] - rows
                distances = np.sqrt(np.einsum("nq,qp,np->n", gaps, both, gaps))
                distances[[r.token_ids == tokens for r in found.responses]] = -np.inf
                other, row = found.responses[int(distances.argmax())], rows[int(distances.argmax())]
            else:
                options = [index for index, answer in enumerate(pool) if answer.token_ids != tokens]
                index = options[int(draws.integers(len(options)))]
                other, row = pool[index], features([pool[index]])[0] - centre
            step = WEIGHT * np.outer(rows[chosen] - row, rows[chosen] - row)
            reward, cost = reward + step, cost + step
            sides = [found.responses[chosen], other]
            if draws.random() < 0.5:
                sides.reverse()
            pairs.append(Pair(f"{found.responses[chosen].id}/{other.id}/{pick}", *sides))
        names = ("mean_bonus_reward", "mean_bonus_cost", "saturation", "tau", "ess")
        return pairs, {f"explore/{name}": float(v) for name, v in zip(names, np.mean(told, axis=0), strict=True)}


@pytest.mark.parametrize("weights", ["exact", "bonus_only"])
@pytest.mark.parametrize("comparator", ["baseline", "max_info"])
@pytest.mark.parametrize(("picks", "floor"), [(1, 1.5), (3, 1.5), (2, 5.5)])
def test_a_choice_is_the_draw_that_the_formulas_say(weights: Any, comparator: Any, picks: int, floor: float) -> None:
    one = explorer(weights=weights, comparator=comparator, picks=picks, ess_floor=floor, proposal_weight=0.3)
    one.update(SEEN[:2])
    one.update(SEEN[2:], ("reward",))
    found = candidates(0)
    pairs, told = ByHand(weights, comparator, picks, floor).choose(found)
    assert one.choose([found]) == pairs
    information = (one.metrics["explore/pairs"], one.metrics["explore/skipped"])
    assert information == (picks, 0.0)
    for name, value in told.items():
        assert one.metrics[name] == pytest.approx(value), name
    hand = ByHand(weights, comparator, picks, floor)
    grown = sum(np.linalg.slogdet(m)[1] + 6 * math.log(S0) for m in (hand.reward, hand.cost))
    assert one.metrics["explore/logdet"] == pytest.approx(0.5 * grown)


def test_what_is_picked_for_one_prompt_counts_for_the_next_one_of_the_batch_alone() -> None:
    one = explorer(picks=2)
    sets = [candidates(x) for x in range(3)]
    together = one.choose(sets)
    assert len(together) == 6
    assert one.choose(sets[:1]) == together[:2]
    assert one.choose(sets) == together
    assert one.metrics["explore/pairs"] == 6.0
    assert one.metrics["explore/logdet"] == 0.0


def test_a_choice_asks_for_the_multiplier_and_the_kl_weight_once() -> None:
    """Both may live in another process, and a choice has hundreds of candidate sets."""
    asked: Counter[str] = Counter()

    def told(name: str, value: float) -> float:
        asked[name] += 1
        return value

    both = {"beta": lambda: told("beta", BETA), "multiplier": lambda: told("multiplier", MULTIPLIER)}
    sets = [candidates(x) for x in (0, 1, 2)]
    assert explorer(picks=2, **both).choose(sets) == explorer(picks=2).choose(sets)
    assert asked == {"beta": 1, "multiplier": 1}


def test_candidates_that_equal_all_comparators_are_skipped_and_counted() -> None:
    same = candidates(0, [4, 4])
    one = explorer(comparator="max_info", picks=2)
    assert one.choose([same]) == []
    assert (one.metrics["explore/pairs"], one.metrics["explore/skipped"]) == (0.0, 2.0)
    pool = {prompt.id: [WORLD.response(x, 4, f"b{x}")] for x, prompt in enumerate(WORLD.prompts)}
    assert explorer(baseline=pool).choose([same]) == []
    assert len(explorer(baseline=pool, bonus="off").choose([candidates(0, [4, 5])])) <= 1


def test_bonuses_of_a_random_guess_are_drawn_under_their_own_name() -> None:
    one = explorer(bonus="thompson")
    noise = generator_of(3, "bonuses")
    half = np.linalg.cholesky(np.linalg.inv(np.eye(3) / S0**2))
    reward, cost = (K * half @ noise.standard_normal(3) for _ in range(2))
    asked = [WORLD.response(1, y, f"q{y}") for y in (3, 6)]
    rows = features(asked) - features(WORLD.baseline_pool(5)["p1"]).mean(axis=0)
    found = one.bonuses(asked)
    np.testing.assert_allclose(found[0], rows @ reward)
    np.testing.assert_allclose(found[1], -(rows @ cost))


def test_selected_pairs_are_a_random_share_and_those_about_which_least_is_known() -> None:
    """The draw by the seeds' formula, then one after another by ||v|| under the matrices that the picks have made."""
    one = explorer()
    pairs = [Pair(f"p{y}", WORLD.response(0, y, f"f{y}"), WORLD.response(1, y, f"g{y}")) for y in range(7)]
    centre = [features(WORLD.baseline_pool(5)[f"p{x}"]).mean(axis=0) for x in (0, 1)]
    gaps = features([p.first for p in pairs]) - centre[0] - features([p.second for p in pairs]) + centre[1]
    chosen = list(generator_of(3, "select", *[p.id for p in pairs]).choice(7, size=2, replace=False))
    matrix = np.eye(3) / S0**2 + sum(WEIGHT * np.outer(gaps[i], gaps[i]) for i in chosen)
    while len(chosen) < 4:
        distances = np.einsum("nq,qp,np->n", gaps, np.linalg.inv(matrix), gaps)
        distances[chosen] = -np.inf
        chosen.append(int(distances.argmax()))
        matrix += WEIGHT * np.outer(gaps[chosen[-1]], gaps[chosen[-1]])
    assert one.select(pairs, 4, 0.4) == [pairs[index] for index in sorted(chosen)]
    assert one.select(pairs, 7, 0.4) == pairs
    assert one.select(pairs, 9, 0.4) == pairs


def test_all_pairs_are_kept_where_as_many_are_wanted() -> None:
    def never() -> np.ndarray:
        raise AssertionError

    rng = np.random.default_rng(0)
    for keep in (3, 4):
        assert choose_pairs(never, lambda index: None, 3, keep=keep, random_share=0.5, generator=rng) == [0, 1, 2]
    drawn: list[int] = []
    kept = choose_pairs(never, drawn.append, 9, keep=4, random_share=1.0, generator=rng)
    assert sorted(drawn) == kept
    assert len(set(kept)) == 4
    for share in (0.0, 1.1, -0.5):
        with pytest.raises(ValueError, match="random_share"):
            choose_pairs(never, drawn.append, 9, keep=4, random_share=share, generator=rng)


# --- models of uncertainty -------------------------------------------------------------------------------------------


def test_counts_of_cells_follow_the_signs_of_projections() -> None:
    model = SimHashCounts(3, alpha=2.0, seed=5, bits=4)
    projection = np.random.default_rng([5, 3, 4]).standard_normal((4, 3))
    rows = RNG.normal(size=(6, 3))
    codes = [("x", sum(2**bit for bit in range(4) if projection[bit] @ row > 0)) for row in rows]
    model.observe("x", rows[0], rows[1], ("reward",))
    model.start_batch(np.random.default_rng(0))
    model.picked("x", rows[2], rows[3])
    reward, cost = model.bonuses("x", rows)
    picked, seen = [codes[2], codes[3]], [codes[0], codes[1], codes[2], codes[3]]
    assert cost == pytest.approx([2.0 / math.sqrt(1 + picked.count(code)) for code in codes])
    assert reward == pytest.approx([2.0 / math.sqrt(1 + seen.count(code)) for code in codes])
    assert model.bonuses("y", rows)[0] == pytest.approx([2.0] * 6)
    assert model.information == 0.5 * len({codes[0], codes[1]})
    model.start_batch(np.random.default_rng(0))
    assert model.bonuses("x", rows)[1] == pytest.approx([2.0] * 6)
    assert model.distances(np.array([[3.0, 4.0], [0.0, 1.0]])).tolist() == [5.0, 1.0]
    wide = SimHashCounts(3, alpha=1.0, seed=5)
    assert wide.bonuses("x", rows)[0] == pytest.approx([1.0] * 6)
    assert wide._projection.shape == (16, 3)


def test_streams_of_labels_are_kept_apart() -> None:
    model = EllipticalBonus(2, k=1.5, s0=2.0)
    one, other = np.array([1.0, 0.0]), np.array([0.0, 2.0])
    model.observe("x", one, other, ("cost",))
    v = one - other
    np.testing.assert_allclose(model.designs["cost"].matrix, np.eye(2) / 4 + 0.25 * np.outer(v, v))
    np.testing.assert_allclose(model.designs["reward"].matrix, np.eye(2) / 4)
    assert (model.designs["cost"].pairs, model.designs["reward"].pairs) == (1, 0)
    assert model.information == pytest.approx(0.5 * math.log(1 + 0.25 * 4 * (v @ v)))
    model.start_batch(np.random.default_rng(0))
    for index, stage in enumerate(("reward", "cost")):
        matrix: Any = model.designs[stage].matrix  # type: ignore[index]
        expected = 1.5 * np.sqrt(np.diag(np.linalg.inv(matrix)))
        np.testing.assert_allclose(model.bonuses("x", np.eye(2))[index], expected)
    guess = ThompsonBonus(2, k=1.5, s0=2.0)
    assert guess.weight == 0.25


# --- matrices --------------------------------------------------------------------------------------------------------


def test_matrices_by_hand() -> None:
    design = empty_design(2, s0=2.0)
    assert (design.matrix.tolist(), design.s0, design.weight, design.pairs) == ([[0.25, 0], [0, 0.25]], 2.0, 0.25, 0)
    more = design.add(np.array([[2.0, 0.0], [0.0, 4.0]])).add(np.array([1.0, 1.0]))
    assert more.matrix.tolist() == [[1.5, 0.25], [0.25, 4.5]]
    assert (more.pairs, more.s0, design.matrix[0, 0]) == (3, 2.0, 0.25)
    shard = design.add_gram(np.array([[5.0, 1.0], [1.0, 17.0]]), 3)
    assert (shard.matrix.tolist(), shard.pairs) == (more.matrix.tolist(), 3)
    assert more.log_determinant == pytest.approx(math.log((1.5 * 4.5 - 0.0625) * 16))
    stack = Design(np.stack([more.matrix, design.matrix, more.matrix]), 2.0)
    assert stack.log_determinant == pytest.approx(2 * more.log_determinant)
    np.testing.assert_allclose(inverse(more.matrix) @ more.matrix, np.eye(2), atol=1e-12)
    row = np.array([0.5, -1.0])
    whole: Any = more.matrix
    expected: Any = np.linalg.inv(whole + 0.25 * np.outer(row, row))
    known: Any = np.linalg.inv(whole)
    updated: Any = sherman_morrison(known, row)
    np.testing.assert_allclose(updated, expected)
    for s0 in (0.0, -1.0):
        with pytest.raises(ValueError, match="must be above 0"):
            empty_design(2, s0=s0)
    assert empty_design(2, s0=0.5).matrix[0, 0] == 4.0


def test_the_jitter_is_a_billionth_of_the_mean_of_the_diagonal() -> None:
    """v v' has rank 1, and rounding or the last pivot of 0 refuses it; two matrices at a time have one each."""
    v = np.array([1.0, 2.0, 2.0])
    stack = np.stack([np.outer(v, v), 100.0 * np.outer(v, v)])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(stack)
    found = factor(stack)
    wanted = stack + 1e-9 * np.array([3.0, 300.0])[:, None, None] * np.eye(3)
    np.testing.assert_allclose(found @ np.swapaxes(found, 1, 2) - stack, wanted - stack, rtol=1e-4, atol=1e-12)


def test_shares_of_bonuses_by_hand() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
    bonuses = np.array([3.0, 5.94, 0.3, 2.96])  # of 3, 6, 15 and 3 without data
    assert saturation(bonuses, rows, k=1.5, s0=2.0) == 0.5
    assert saturation(np.array([2.97]), rows[:1], k=1.5, s0=2.0) == 1.0
    assert saturation(np.array([0.99]), rows[:1], k=1.0, s0=1.0) == 1.0
    found = theory_precision(np.array([[1.0, 0.5], [0.5, 2.0]]), pairs_per_round=3, gamma=0.5)
    assert found.tolist() == [[2.5, 0.5], [0.5, 3.5]]
    assert elliptical_from_inverse(np.array([[4.0, 0.0], [0.0, 0.25]]), rows[:2], 1.5).tolist() == [3.0, 1.5]
    assert elliptical_from_inverse(np.array([[-1e-18, 0.0], [0.0, 1.0]]), rows[:1], 1.5).tolist() == [0.0]


# --- resampling ------------------------------------------------------------------------------------------------------


def test_the_temperature_is_the_last_one_that_keeps_the_sample_size() -> None:
    """Two candidates whose weights differ by e^(3 tau): the size is 1 + 1 / cosh(3 tau)."""
    base, optimism = np.zeros(2), np.array([0.0, 3.0])
    exact = math.acosh(1 / 0.5) / 3
    found = temper(base, optimism, ess_floor=1.5)
    assert exact - 1e-6 < found <= exact
    weights, tau, size = resampling_weights(base, optimism, ess_floor=1.5)
    assert tau == found
    assert size == pytest.approx(1.5, abs=1e-5)
    assert weights.tolist() == pytest.approx([1 / (1 + math.exp(3 * tau)), 1 / (1 + math.exp(-3 * tau))])
    assert 0.0 <= temper(base, optimism, ess_floor=2.0) < 1e-6
    assert temper(base, optimism, ess_floor=2.1) == 1.0
    assert temper(np.array([0.0, 9.0]), optimism, ess_floor=1.5) == 0.0
    assert temper(base, 1e-3 * optimism, ess_floor=1.99) == 1.0
    tiny = temper(base, 1e5 * optimism, ess_floor=1.5)
    assert tiny == pytest.approx(exact * 1e-5, rel=1e-2)
    # where the policy's own weights alone are even enough, the draw follows them and nothing else
    assert temper(np.zeros(4), np.array([0.0, 1e15, 2e15, 3e15]), ess_floor=3.999) == 0.0
    assert effective_sample_size(np.log([1.0, 2.0, 3.0]) + 700.0) == pytest.approx(36.0 / 14.0)


# --- whitening -------------------------------------------------------------------------------------------------------


def test_whitened_rows_by_hand() -> None:
    """(m - mean) P' / sqrt 2, then the norm cut at 3."""
    whitening = Whitening(np.array([1.0, 0.0, 0.0]), np.array([[2.0, 0.0, 0.0], [0.0, 0.0, 4.0]]))
    rows = np.array([[2.0, 9.0, 0.5], [1.0, 5.0, 0.0], [11.0, 0.0, 0.0]])
    expected = np.array([[2.0, 2.0], [0.0, 0.0], [3.0 * math.sqrt(2), 0.0]]) / math.sqrt(2)
    np.testing.assert_allclose(whitening.apply(rows), expected)
    single: Any = rows.astype(np.float32) + np.float32(0.3)
    np.testing.assert_array_equal(whitening.apply(single), whitening.apply(single.astype(np.float64)))


def test_principal_directions_have_floored_variances_and_a_sign() -> None:
    """Variances of 4, 1 and 1e-6: the last one counts as 4e-4."""
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)] * 2, dtype=float)
    rows = signs * [2.0, 1.0, 1e-3] + 5.0
    whitening = fit_whitening(rows, 9, seed=0)
    spread = 16 / 15
    expected = np.diag(1 / np.sqrt(spread * np.array([4.0, 1.0, 4e-4])))
    np.testing.assert_allclose(whitening.projection, expected, atol=1e-9)
    np.testing.assert_allclose(whitening.mean, [5.0, 5.0, 5.0])
    assert whitening.norm_clip == 3.0
    assert fit_whitening(rows, 2, seed=0).projection.shape == (2, 3)
    assert fit_whitening(rows[:12], 3, seed=0).projection[0, 1] == pytest.approx(0.0, abs=0.5)


def test_too_few_rows_are_projected_at_random_with_directions_of_spread_1() -> None:
    rows = RNG.normal(size=(11, 3)) * [1.0, 5.0, 0.1] + 2.0
    found = fit_whitening(rows, 3, seed=4, norm_clip=7.0)
    draws = np.random.default_rng([4, 3, 3]).standard_normal((3, 3)) / math.sqrt(3)
    spread = ((rows - rows.mean(axis=0)) @ draws.T).std(axis=0)
    np.testing.assert_allclose(found.projection, draws / spread[:, None])
    assert found.norm_clip == 7.0
    flat = fit_whitening(np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]]), 2, seed=1)
    assert np.isfinite(flat.projection).all()
    for wrong in (rows[:1], rows[0]):
        with pytest.raises(ValueError, match="at least 2 rows"):
            fit_whitening(wrong, 2, seed=0)
    assert fit_whitening(rows[:2], 1, seed=0).projection.shape == (1, 3)


def test_features_that_lose_an_answer_teach_nothing_wrong() -> None:
    whole = explorer()
    whole._features = lambda responses: features(responses)[:-1]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="zip"):
        whole.update(SEEN)


def test_cells_of_one_prompt_are_not_those_of_another() -> None:
    one = explorer(bonus="simhash")
    pair = Pair("p", WORLD.response(0, 2, "a"), WORLD.response(0, 3, "b"))
    one.update([pair])
    same, other = (WORLD.response(x, 2, f"q{x}") for x in (0, 1))
    assert one.bonuses([same])[0] == pytest.approx([K / math.sqrt(2)])
    assert one.bonuses([other])[0] == pytest.approx([K])


def test_the_best_pairs_are_found_among_whole_numbers_too_and_the_norms_stay_as_they_are() -> None:
    norms = np.array([3, 9, 1, 8, 7, 2])
    kept = choose_pairs(
        lambda: norms,  # type: ignore[arg-type, return-value]
        lambda index: None, 6, keep=4, random_share=0.01, generator=np.random.default_rng(1),
    )  # fmt: skip
    drawn = int(np.random.default_rng(1).choice(6, size=1, replace=False)[0])
    best = [index for index in (1, 3, 4, 0) if index != drawn][:3]
    assert kept == sorted([drawn, *best])
    assert norms.tolist() == [3, 9, 1, 8, 7, 2]


@pytest.mark.parametrize("weights", ["exact", "bonus_only"])
def test_an_explorer_that_is_told_nothing_more_has_the_settings_of_its_page(weights: Any) -> None:
    """1.5 standard deviations of a prior of 2, w = 1/4, one pair a set, the whole cost bonus, tempered at 1.5."""
    needed: dict[str, Any] = {
        "features": features, "baseline": WORLD.baseline_pool(5), "beta": BETA, "multiplier": lambda: MULTIPLIER,
        "seed": 3,
    }  # fmt: skip
    written = explorer(
        k=1.5, s0=2.0, weight=0.25, picks=1, bonus="elliptical", comparator="baseline", weights=weights,
        proposal_weight=0.2, ess_floor=1.5, cost_bonus_scale=1.0,
    )  # fmt: skip
    bare = OptimisticExplorer(**needed, **({} if weights == "exact" else {"weights": weights}))
    assert bare.metrics == {}
    for one in (bare, written):
        one.update(SEEN)
    assert bare.choose([candidates(0)]) == written.choose([candidates(0)])
    assert bare.metrics == written.metrics
    off = explorer(bonus="off")
    off.choose([candidates(0)])
    names = ("mean_bonus_reward", "mean_bonus_cost", "saturation", "tau", "ess", "logdet")
    assert [off.metrics[f"explore/{name}"] for name in names] == [0.0] * 6


def test_a_prompt_that_was_met_keeps_its_baseline_answers() -> None:
    one = explorer()
    before = [values.tolist() for values in one.bonuses([WORLD.response(0, 3, "q")])]
    one.meet({"p0": [WORLD.response(0, 7, "late")]})
    assert [values.tolist() for values in one.bonuses([WORLD.response(0, 3, "q")])] == before
    fresh = explorer(baseline={"p1": WORLD.baseline_pool(5)["p1"]})
    fresh.meet({"p0": WORLD.baseline_pool(5)["p0"]})
    assert [values.tolist() for values in fresh.bonuses([WORLD.response(0, 3, "q")])] == before
