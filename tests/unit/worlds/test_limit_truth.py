"""The truth about stated limits on a text world: by hand, by sampling, and all at once by KKT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import regex_source, rule_source
from pddpo_ray.limits.quantities import Amount, Kind, Limit, Quantity
from pddpo_ray.limits.sources import Source, one_by_one
from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, kkt_residual
from pddpo_ray.worlds.limit_truth import less_reference, measured_texts, wins_over_reference
from pddpo_ray.worlds.text.world import TextWorld
from tests.support.true_limits import TrueLimit, under_limits
from tests.unit.worlds.test_drawn_text import world_of


def limit(name: str, kind: Kind, bound: float, *, least: bool = False, over: str | None = None) -> Limit:
    return Limit(name, Amount(Quantity(kind, "", over), bound), least)


def texts(world: TextWorld, source: Source, rest: float) -> np.ndarray:
    return measured_texts(source, world.grammar.prompt_texts, world.grammar.answer_texts, rest)


def test_a_rule_and_a_pattern_measure_every_text(tmp_path: Path) -> None:
    world = world_of(0)
    words = texts(world, rule_source("limits.a", "words"), 0.0)
    assert words.shape == world.oracle.reward.shape
    assert words[7, 11] == len(world.grammar.answer_texts[11].split())
    phrase = world.grammar.slots[1].phrases[0].text.removesuffix(" .")
    (tmp_path / "pattern.txt").write_text(f"{phrase}\n")
    found = texts(world, regex_source("limits.b", "pattern.txt", tmp_path), 1.0)
    np.testing.assert_array_equal(found[3, :-1], world.grammar.answer_features[:, 1] == 0)
    assert found[3, -1] == 1.0


def test_a_source_without_a_number_for_a_text_has_no_truth() -> None:
    silent = Source("silent", "1", one_by_one(lambda answer: None), rule_source("limits.a", "words").scale)
    with pytest.raises(UserError, match="silent has no number for"):
        texts(world_of(0), silent, 0.0)


def test_measures_against_the_reference_by_hand_and_by_sampling() -> None:
    """The reference's own mean is 0 against itself, and it wins half of the time."""
    world = world_of(2)
    oracle = world.oracle
    apart = less_reference(expit(world.logits), oracle.reference)
    assert oracle.expectations(oracle.reference, apart) == pytest.approx(0.0, abs=1e-12)
    wins = wins_over_reference(oracle.reward, oracle.reference, chunk=50)
    assert oracle.expectations(oracle.reference, wins) == pytest.approx(0.5, abs=1e-12)
    rng = np.random.default_rng(0)
    rival = rng.choice(oracle.reference.shape[1], size=20_000, p=oracle.reference[4])
    chances = expit(oracle.reward[4, 10] - oracle.reward[4, rival])
    assert wins[4, 10] == pytest.approx(chances.mean(), abs=4 * chances.std() / np.sqrt(len(chances)))


@pytest.mark.full
@pytest.mark.slow
def test_limits_of_every_kind_at_once_are_kept_by_an_optimum_that_satisfies_kkt(tmp_path: Path) -> None:
    """A rate, a logit, a mean by rule, a pattern on a quarter of the prompts and wins against the reference."""
    world = world_of(1, 0.05)
    oracle = world.oracle
    situation = world.grammar.prompt_features[:, 1]
    sets = prompt_sets(
        {"rush": np.flatnonzero(situation == 0).tolist(), "others": np.flatnonzero(situation != 0).tolist()},
        {"rush": 0.25, "others": 0.75},
    )
    (tmp_path / "pattern.txt").write_text(world.grammar.slots[1].phrases[0].text.removesuffix(" .") + "\n")
    tables = {
        "rate": expit(world.logits),
        "logit": world.logits,
        "words": texts(world, rule_source("limits.a", "words"), 60.0),
        "pattern": texts(world, regex_source("limits.b", "pattern.txt", tmp_path), 1.0),
        "wins": wins_over_reference(oracle.reward, oracle.reference),
    }
    free = oracle.policy(0.0)
    start = {name: float(oracle.expectations(free, table)) for name, table in tables.items()}
    lower = {name: float(oracle.prior @ table.min(axis=1)) for name, table in tables.items()}
    between = {name: 0.6 * start[name] + 0.4 * lower[name] for name in ("rate", "logit", "words", "pattern")}
    limits = [
        TrueLimit(limit("rate", "rate", between["rate"]), tables["rate"]),
        TrueLimit(limit("logit", "logit", between["logit"]), tables["logit"]),
        TrueLimit(limit("words", "mean", between["words"]), tables["words"]),
        TrueLimit(limit("pattern", "rate", max(between["pattern"], 0.1), over="rush"), tables["pattern"]),
        TrueLimit(limit("wins", "rate", 0.6, least=True), tables["wins"]),
    ]
    several = under_limits(oracle, limits, sets)
    best = several.optimum
    for one in limits:
        bound, value = one.limit.bound.number, one.value(several, best.policy, sets)
        assert (bound - value if one.limit.at_least else value - bound) <= 1e-7
    excess = np.stack([several.cost - several.threshold, *(one.cost - one.threshold for one in several.further)])
    dual = LagrangianDual(np.log(several.reference), several.reward, excess, several.prior, several.beta)
    multipliers = np.array([best.multiplier, *best.further_multipliers])
    assert (multipliers > 0).sum() >= 2
    assert kkt_residual(multipliers, -dual.violations(best.policy)) <= 1e-9
    assert dual.value(multipliers) == pytest.approx(best.f, abs=1e-8)


def test_a_limit_over_a_set_needs_sets() -> None:
    world = world_of(0)
    one = TrueLimit(limit("a", "rate", 0.1, over="rush"), expit(world.logits))
    with pytest.raises(UserError, match="over `rush`, and there are no prompt sets"):
        under_limits(world.oracle, [one])
