"""The family of text worlds: how much seeds differ, what is well posed, and what a recipe may ask of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.special import expit

import pddpo_ray
from pddpo_lab.compare.suite import SUITES
from pddpo_ray.config import DrawnFamilyConfig, LogitLimitConfig, RateLimitConfig, TextWorldConfig, load
from pddpo_ray.errors import UserError
from pddpo_ray.records import HARM, Pair, Response
from pddpo_ray.storage.whole_files import cache_folder
from pddpo_ray.worlds.text import phrase_pools
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import (
    HELD_OUT_SEEDS,
    drawn_grammar,
    factorisations,
    rare_phrases,
    reference_spread,
)
from pddpo_ray.worlds.text.prepared_world import prepare_text_world
from pddpo_ray.worlds.text.reference import ReferenceSpec, answer_log_probs, cached_reference, intended_reference
from pddpo_ray.worlds.text.world import TextWorld
from pddpo_ray.worlds.truth_labeller import WorldLabeller
from tests.support.tiers import in_full

SEEDS = range(50)
LEVELS = (0.0, -3.0, 0.01, 0.05, 0.3)
"""Limits on the mean logit, the second that of the shipped recipes, and limits on the unsafe rate."""
COST_MAX = {0.0: 2.0, -3.0: 4.0}


@cache
def world_of(seed: int, level: float = 0.0, **settings: Any) -> TextWorld:
    """A world with the reference that pre-training aims at, half a per cent of it off the grammar."""
    limit = RateLimitConfig(at_most=level) if level > 0 else LogitLimitConfig(at_most=level)
    family = DrawnFamilyConfig(limit=limit, **settings)
    grammar = drawn_grammar(family, seed)
    intended = intended_reference(grammar, ReferenceSpec(seed=seed, spread=reference_spread(seed)))
    spec = DrawnWorldSpec(family=family, seed=seed, cost_max=COST_MAX.get(level, 6.0))
    return build_drawn_world(spec, np.log(0.995 * intended), grammar)


# --- sentences -------------------------------------------------------------------------------------------------------


def test_no_phrase_can_begin_another_since_each_ends_with_its_only_mark() -> None:
    meant = (tuple(phrase_pools.WAYS.values()), (*phrase_pools.CARELESS, *phrase_pools.CAREFUL))
    for pool in (phrase_pools.OPENING, *phrase_pools.MIDDLE.values(), *meant, phrase_pools.CLOSING):
        assert len(set(pool)) == len(pool)
        assert all(text.endswith((" ,", " .")) and not set(text[:-1]) & {",", "."} for text in pool)


@pytest.mark.parametrize("answers", [100, 216, 1000])
def test_a_grammar_has_exactly_the_answers_that_are_asked_for(answers: int) -> None:
    grammars = [drawn_grammar(DrawnFamilyConfig(answers=answers), seed) for seed in range(8)]
    for grammar in grammars:
        assert len(set(grammar.answer_ids)) == answers
        assert len(set(grammar.prompt_texts)) == 24
        assert sum(phrase.rare for slot in grammar.slots for phrase in slot.phrases) == 4
        assert all((~slot.rare).sum() >= 2 for slot in grammar.slots)
    assert len({tuple(len(slot.phrases) for slot in grammar.slots) for grammar in grammars}) > 3
    assert len({grammar.answer_texts[0] for grammar in grammars}) == 8


def test_a_hundred_thousand_answers_of_eight_phrases_fit_the_reference() -> None:
    grammar = drawn_grammar(DrawnFamilyConfig(answers=100_000, slots=8), 0)
    assert len(grammar.answer_features) == 100_000
    assert grammar.longest <= 64


def test_factorisations_by_hand() -> None:
    assert set(factorisations(12)) == {(6, 2), (4, 3), (3, 2, 2)}
    assert factorisations(22) == ()


def test_answers_that_are_no_product_of_slots_are_refused() -> None:
    with pytest.raises(UserError, match=r"world\.family\.answers=101 is no product"):
        drawn_grammar(DrawnFamilyConfig(answers=101), 0)
    with pytest.raises(UserError, match="no product of 8 slots"):
        drawn_grammar(DrawnFamilyConfig(answers=216, slots=8), 0)


# --- the truth -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("level", [LEVELS[0], *in_full(*LEVELS[1:])])
def test_fifty_seeds_are_well_posed(level: float) -> None:
    for seed in SEEDS:
        world = world_of(seed, level)
        oracle, best = world.oracle, world.oracle.optimum
        assert best.g == pytest.approx(0.0, abs=1e-9), "the optimum is exactly at the limit"
        greedy = oracle.g(oracle.policy(0.0))
        lowest = float(oracle.prior @ oracle.cost.min(axis=1))
        if level <= 0:
            unit = COST_MAX[level] / 2
            assert oracle.threshold == level
            assert greedy > 0.1 * unit
            assert lowest < level - 0.1 * unit
            assert 0.4 < best.multiplier * unit < 1.0
        else:
            assert greedy > 0.5 * level, "what follows the reward alone breaks the limit"
            assert lowest <= 0.5 * level, "the limit is well inside of what can be kept"
            rate = float(oracle.expectations(best.policy, expit(world.logits)))
            assert rate == pytest.approx(level, abs=1e-9)
        assert 0.4 <= world.covered_gap <= 2.0
        rare = best.policy[:, :-1] * ~world.covered[:, :-1]
        assert rare.sum() / len(rare) > 0.5, "the optimum lives on answers that no offline pair mentions"


@pytest.mark.slow
def test_the_shipped_recipes_limit_is_about_six_unsafe_answers_in_a_hundred() -> None:
    """At the optimum, on 50 seeds; what follows the reward alone has far more, on every one of them."""
    config = load("text-world")
    assert (config.thresholds["cost"], config.dual.cost_max) == (-3.0, COST_MAX[-3.0])
    rates = []
    for seed in SEEDS:
        world = world_of(seed, -3.0)
        tables = (world.oracle.optimum.policy, world.oracle.reference, world.oracle.policy(0.0))
        rates.append([float(world.oracle.expectations(one, expit(world.logits))) for one in tables])
    best, reference, greedy = np.array(rates).T
    assert 0.05 < best.min() < best.max() < 0.08
    assert (greedy > 1.7 * best).all()
    assert np.mean(reference / best) > 3.0


@pytest.mark.parametrize("at_most", [-2.0, 2.5])
def test_a_limit_that_no_cost_can_lie_on_both_sides_of_is_refused(at_most: float) -> None:
    family = DrawnFamilyConfig(limit=LogitLimitConfig(at_most=at_most))
    grammar = drawn_grammar(family, 0)
    with pytest.raises(UserError, match=r"costs lie between -2 and 2 \(dual\.cost_max\)"):
        build_drawn_world(DrawnWorldSpec(family=family), np.log(intended_reference(grammar, ReferenceSpec())), grammar)


@pytest.mark.slow
def test_seeds_differ_mean_absolute_correlation_over_a_thousand_pairs() -> None:
    worlds = [world_of(seed, -3.0) for seed in SEEDS]
    for tables in ([w.oracle.reward for w in worlds], [w.logits for w in worlds]):
        together = np.corrcoef([table[:, :-1].ravel() for table in tables])
        pairs = np.abs(together[np.triu_indices(len(worlds), 1)])
        assert len(pairs) >= 1000
        assert pairs.mean() < 0.2
    texts = [{slot.phrases[v].text for slot in w.grammar.slots for v in np.flatnonzero(slot.rare)} for w in worlds]
    shared = [len(a & b) for a, b in itertools.combinations(texts, 2)]
    assert np.mean(shared) < 0.5, "of four rare phrases"


@pytest.mark.slow
def test_good_rare_phrases_pay_and_bad_ones_cost() -> None:
    """Means over 30 seeds of what a rare phrase adds, within its own slot and among all answers."""
    added: dict[str, list[tuple[float, float]]] = {"good": [], "bad": [], "neutral": []}
    for seed in range(30):
        world = world_of(seed)
        for one in rare_phrases(DrawnFamilyConfig(), seed):
            has = world.grammar.answer_features[:, one.slot] == one.value
            tables = (world.oracle.reward[:, :-1], world.logits[:, :-1])
            added[one.worth].append(tuple(float(t[:, has].mean() - t[:, ~has].mean()) for t in tables))  # type: ignore[arg-type]
    good, bad, neutral = (np.mean(added[worth], axis=0) for worth in ("good", "bad", "neutral"))
    assert good[0] > 0.9
    assert abs(good[1]) < 0.3
    assert 0.3 < bad[0] < 0.8
    assert bad[1] > 0.6
    assert np.abs(neutral).max() < 0.3


def test_words_that_mean_something_are_helpful_for_their_own_topic_and_harmful_where_they_are_careless() -> None:
    """The demo's world: by its truth, and by what its optimum writes in place of the reference."""
    settings = load("demo").world
    assert isinstance(settings, TextWorldConfig)
    assert isinstance(settings.family, DrawnFamilyConfig)
    meant = settings.family.model_dump(exclude={"kind", "limit"})
    world = world_of(settings.seed, 0.05, **meant)
    grammar, (way, care) = world.grammar, world.grammar.slots[1:3]
    assert [phrase_pools.WAYS[topic] for topic in grammar.topics] == [phrase.text for phrase in way.phrases]
    fits = grammar.answer_features[:, 1] == grammar.prompt_features[:, :1]
    careless = np.array([phrase.text in phrase_pools.CARELESS for phrase in care.phrases])
    careless = np.broadcast_to(careless[grammar.answer_features[:, 2]], fits.shape)
    reward, harm = world.oracle.reward[:, :-1], expit(world.logits[:, :-1])
    assert reward[fits].mean() - reward[~fits].mean() > 1
    assert harm[careless].mean() > 5 * harm[~careless].mean()
    chances = {"before": world.oracle.reference[:, :-1], "after": world.oracle.optimum.policy[:, :-1]}
    fitting, careless_share = (
        {name: float((table * marked).sum(axis=1).mean()) for name, table in chances.items()}
        for marked in (fits, careless)
    )
    assert fitting["before"] < 0.25 < 0.95 < fitting["after"]
    assert careless_share["before"] > 0.4 > 0.15 > careless_share["after"]
    with pytest.raises(UserError, match=r"world\.family\.answers=217 is no product"):
        drawn_grammar(settings.family.model_copy(update={"answers": 217}), settings.seed)


@pytest.mark.parametrize("level", [0.0, -3.0, 0.05])
def test_further_costs_bind_and_can_be_kept_together(level: float) -> None:
    world = world_of(3, level, further_costs=2)
    several = replace(world.oracle, further=world.further)
    best = several.optimum
    assert [limit.name for limit in several.further] == ["cost-2", "cost-3"]
    assert min(best.multiplier, *best.further_multipliers) > 1e-3
    np.testing.assert_allclose([best.g, *best.further_g], 0.0, atol=1e-8)
    assert best.f < world.oracle.optimum.f


def test_groups_of_prompts_have_costs_of_their_own() -> None:
    world = world_of(5, groups=2)
    assert world.groups is not None
    assert world.groups.tolist() == [0, 1, 0, 1] * 6
    means = [world.logits[world.groups == group, :-1].mean(axis=0) for group in (0, 1)]
    assert np.std(means[0] - means[1]) > 0.2


def test_a_rate_that_the_costs_bounds_exclude_is_refused_with_the_bound_that_allows_it() -> None:
    family = DrawnFamilyConfig(limit=RateLimitConfig(at_most=0.01))
    grammar = drawn_grammar(family, 0)
    reference = np.log(0.995 * intended_reference(grammar, ReferenceSpec()))
    with pytest.raises(UserError, match=r"at least 12 % .* set dual\.cost_max to 5\.3 or more"):
        build_drawn_world(DrawnWorldSpec(family=family, cost_max=2.0), reference, grammar)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["world.family.limit={kind: rate, at_most: 0.05}"], "set limits.cost={rate: "),
        (
            ["limits.cost={rate: {world: cost}, learned_from: comparisons}", "limits.cost.at_most=0.05"],
            "world.family.limit.kind=rate",
        ),
        (
            [
                "world.family.limit={kind: rate}",
                "limits.cost={rate: {world: cost}, learned_from: comparisons}",
                "limits.cost.at_most=0.1",
            ],
            "give both the same number",
        ),
        (["rollout.max_tokens=9"], "rollout.max_tokens=9 would cut"),
    ],
)
def test_a_recipe_that_asks_for_another_limit_than_its_world_has_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_text_world(load("text-world", overrides))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_labels_follow_the_truth_and_the_share_that_is_turned_round(noise: float) -> None:
    """20,000 labels at cost 1: unsafe in noise + (1 - 2 noise) / (1 + 1/e) of them, within 4 standard errors."""
    labeller = WorldLabeller(lambda response: -1.0, {HARM: lambda response: 1.0}, noise=noise)
    world = world_of(0)
    answer = Response("a", world.prompts[0], world.grammar.answer_ids[0], "", 0, 0)
    labels = labeller.safety([answer], 20_000, seed=1)[0].labels
    expected = noise + (1 - 2 * noise) * 0.7310586
    assert np.mean([verdict == "unsafe" for verdict in labels]) == pytest.approx(expected, abs=0.0127)
    other = WorldLabeller(lambda r: float(r.id == "a"), {HARM: lambda r: 0.0}, noise=noise)
    pairs = [Pair(f"{n}", answer, Response("b", world.prompts[0], answer.token_ids, "", 0, 0)) for n in range(5000)]
    wins = np.mean([one.helpful == "first" for one in other.compare(pairs, seed=2)])
    assert wins == pytest.approx(expected, abs=0.0255)


# --- held-out seeds --------------------------------------------------------------------------------------------------


def test_no_shipped_recipe_or_suite_uses_a_held_out_seed() -> None:
    """Unless it says so in its name."""
    folders = (Path(pddpo_ray.__file__).parent / "recipes", SUITES.parent / "recipes", SUITES)
    files = [path for folder in folders for path in folder.rglob("*.yaml")]
    assert len(files) > 20
    for path in files:
        used = _integers(yaml.safe_load(path.read_text(encoding="utf-8")), ("seed", "seeds", "world.seed"))
        assert "held-out" in path.stem or not used & set(HELD_OUT_SEEDS), path.name


def _integers(tree: Any, keys: tuple[str, ...], inside: bool = False) -> set[int]:
    """Integers under any of the keys, and in overrides such as world.seed=3."""
    if isinstance(tree, dict):
        return {n for key, value in tree.items() for n in _integers(value, keys, inside or key in keys)}
    if isinstance(tree, list):
        return {n for value in tree for n in _integers(value, keys, inside)}
    if isinstance(tree, str) and tree.partition("=")[0] in keys:
        return _integers(yaml.safe_load(tree.partition("=")[2]), keys, True)
    return {tree} if inside and isinstance(tree, int) else set()


# --- trained references ----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_trained_references_give_well_posed_worlds(seed: int) -> None:
    """The real model in the place of the intended distribution; trained once per machine."""
    family = DrawnFamilyConfig()
    grammar = drawn_grammar(family, seed)
    spec = ReferenceSpec(seed=seed, spread=reference_spread(seed))
    log_probs = answer_log_probs(cached_reference(spec, cache_folder(), grammar))
    world = build_drawn_world(DrawnWorldSpec(family=family, seed=seed), log_probs, grammar)
    assert world.oracle.reference[:, -1].max() <= 0.02
    assert world.oracle.optimum.g == pytest.approx(0.0, abs=1e-9)
    assert np.abs(np.exp(log_probs) - intended_reference(grammar, spec)).sum(axis=1).max() < 0.2
