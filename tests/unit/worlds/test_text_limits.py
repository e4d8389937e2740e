"""Limits of every kind on a text world against the truth that limit_truth enumerates, and the labels drawn from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import rule_source
from pddpo_ray.limits.reading import StatedLimit, stated_limit
from pddpo_ray.limits.sources import Source, one_by_one
from pddpo_ray.records import Response
from pddpo_ray.theory.estimates.prompt_sets import PromptSets, prompt_sets
from pddpo_ray.worlds.limit_truth import measured_texts
from pddpo_ray.worlds.table_limits import TableLimits
from pddpo_ray.worlds.text.limits import text_limits
from tests.support.true_limits import TrueLimit, under_limits
from tests.unit.worlds.test_drawn_text import world_of

SETS = prompt_sets(
    {"home": [*range(12), 12, 13], "outside": list(range(12, 24))}, {"home": 0.7, "outside": 0.3}
)  # two prompts are in both


def stated(name: str, **given: Any) -> StatedLimit:
    return stated_limit(name, given, "recipe", list(SETS.names))


THREE = (
    stated("harm", logit={"world": "cost"}, at_most=0, labels_each=20),
    stated("short", mean={"rule": "words"}, at_least=13, bounds=[0, 40], over="home"),
    stated("unsafe", rate={"world": "cost"}, over="outside", at_most="45 %"),
)


def limits_of(three: tuple[StatedLimit, ...] = THREE, sets: PromptSets | None = SETS) -> TableLimits:
    rules = [one.source.what if one.source.kind == "rule" else None for one in three]
    sources = [None if rule is None else rule_source(one.where, rule) for one, rule in zip(three, rules, strict=True)]
    return text_limits(world_of(0), three, sources, sets, 2.0)


def test_the_exact_problem_is_the_one_that_the_truth_about_limits_enumerates() -> None:
    """Another way to the same numbers: costs in their own units there, in ranges of the measures here."""
    world, limits = world_of(0), limits_of()
    words = measured_texts(
        rule_source("limits.a", "words"), world.grammar.prompt_texts, world.grammar.answer_texts, elsewhere=0.0
    )
    tables = (world.logits, words, expit(world.logits))
    truths = [TrueLimit(one.limit, table) for one, table in zip(THREE, tables, strict=True)]
    theirs, ours = under_limits(world.oracle, truths, SETS), limits.oracle(world.oracle.beta)
    assert ours.optimum.f == pytest.approx(theirs.optimum.f, abs=1e-9)
    np.testing.assert_allclose(ours.optimum.policy, theirs.optimum.policy, atol=1e-8)
    scales = np.array(limits.scales)
    np.testing.assert_array_equal(scales, [4.0, 40.0, 1.0])
    multipliers = np.array([ours.optimum.multiplier, *ours.optimum.further_multipliers])
    np.testing.assert_allclose(
        multipliers / scales, [theirs.optimum.multiplier, *theirs.optimum.further_multipliers], atol=1e-7
    )
    policy = ours.policy(0.3)
    g = np.array([ours.g(policy), *ours.further_g(policy)]) * scales
    np.testing.assert_allclose(g, [theirs.g(policy), *theirs.further_g(policy)], atol=1e-10)


@pytest.mark.parametrize("first", [True, False])
def test_a_limit_on_the_kl_stands_beside_others_at_any_place_and_in_nats(first: bool) -> None:
    world = world_of(0)
    drift = stated("drift", kl="reference", at_most=0.5)
    three = (drift, *THREE[1:]) if first else (*THREE[1:], drift)
    limits = limits_of(three)
    assert limits.unknown == []
    ours, place = limits.oracle(world.oracle.beta), 0 if first else 2
    words = measured_texts(
        rule_source("limits.a", "words"), world.grammar.prompt_texts, world.grammar.answer_texts, elsewhere=0.0
    )
    tables = {"drift": np.zeros_like(world.logits), "short": words, "unsafe": expit(world.logits)}
    theirs = under_limits(world.oracle, [TrueLimit(one.limit, tables[one.limit.name]) for one in three], SETS)
    np.testing.assert_allclose(ours.optimum.policy, theirs.optimum.policy, atol=1e-7)
    multipliers = np.array([ours.optimum.multiplier, *ours.optimum.further_multipliers]) / limits.scales
    apart = (theirs.optimum.multiplier, *theirs.optimum.further_multipliers)
    np.testing.assert_allclose(multipliers, apart, atol=1e-6)
    assert multipliers[place] > 0.1
    assert ours.kl(ours.optimum.policy) == pytest.approx(0.5, abs=1e-8)
    assert limits.reached.lowest[place] == pytest.approx(-0.5)
    other = world.oracle.policy(0.3)
    g = np.array([ours.g(other), *ours.further_g(other)]) * limits.scales
    assert g[place] == pytest.approx(ours.kl(other) - 0.5, abs=1e-12)


def test_a_limit_on_the_kl_alone_has_a_truth() -> None:
    limits = limits_of((stated("drift", kl="reference", at_most=0.8),), None)
    oracle = limits.oracle(0.2)
    assert oracle.kl(oracle.optimum.policy) == pytest.approx(0.8, abs=1e-8)
    assert oracle.optimum.multiplier > 0
    with pytest.raises(UserError, match="a kl limit is above 0"):
        stated("drift", kl="reference", at_most=0)


@pytest.mark.slow
def test_labels_have_the_truths_distribution_and_rules_are_left_to_their_source() -> None:
    world, limits = world_of(0), limits_of()
    prompt, text = world.prompts[15], world.grammar.answer_ids[7]
    answers = [Response(f"a{index}", prompt, text, "", 1, 0) for index in range(4000)]
    found = limits.measure(answers, seed=5)
    chance = float(expit(world.logits[15, 7]))
    rates = found.values[:, 2]
    assert set(rates.tolist()) == {0.0, 1.0}
    assert rates.mean() == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / 4000))
    assert np.isnan(found.values[:, 1]).all()
    assert not found.missing
    np.testing.assert_array_equal(limits.measure(answers[::-1], seed=5).values[::-1, 2], rates)


def test_a_budget_holds_for_the_worlds_own_labels_too_and_leaves_pairs() -> None:
    """Ten answers to each of two prompts, of which the limit acts on the second: four of those, two by two."""
    world = world_of(0)
    limits = text_limits(world, [replace(THREE[2], asking=replace(THREE[2].asking, answers=4))], [None], SETS, 2.0)
    outside = [limits.factors[0, x] == 0 for x in (0, 15)]
    answers = [
        Response(f"{x}-{index}", world.prompts[x], world.grammar.answer_ids[7], "", 1, 0)
        for x in (0, 15)
        for index in range(10)
    ]
    found = limits.measure(answers, seed=5)
    known = np.flatnonzero(np.isfinite(found.values[:, 0]))
    assert outside == [True, False]
    assert len(known) == 4
    assert (known >= 10).all()
    assert [row + 1 for row in known[::2]] == list(known[1::2])
    assert not found.missing


def test_noisy_labels_say_the_opposite_as_often_as_the_world_states() -> None:
    world = world_of(0, label_noise=0.2)
    limits = text_limits(world, THREE[2:], [None], SETS, 2.0)
    answers = [Response(f"a{index}", world.prompts[15], world.grammar.answer_ids[7], "", 1, 0) for index in range(4000)]
    chance = 0.2 + 0.6 * float(expit(world.logits[15, 7]))
    assert limits.measure(answers, 1).values.mean() == pytest.approx(chance, abs=4 * 0.5 / np.sqrt(4000))


def test_what_people_say_of_a_worlds_labels_is_unknown_and_of_a_cost_models_is_the_worlds_cost() -> None:
    audit = {"people": 12, "question": "question.md"}
    by_world = stated("rude", rate={"world": "cost"}, at_most="60 %", audited_by=audit)
    by_model = stated("harm", logit={"model": "cost"}, at_most=0, labels_each=4, audited_by={"people": 12})
    assert limits_of((by_model, by_world), sets=None).unknown == ["rude"]


def test_what_a_judge_says_about_every_answer_is_not_asked_for() -> None:
    asked = stated("brand", rate={"judge": {"question": "brand.md"}}, at_most=0.1)
    source = Source("judge", "1", one_by_one(lambda answer: pytest.fail("asked")), asked.scale)
    limits = text_limits(world_of(0), (*THREE[::2], asked), [None, None, source], SETS, 2.0)
    assert limits.unknown == ["brand"]
    assert limits_of().unknown == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": {"world": "privacy"}, "at_most": 0.1}, "no rate called `privacy`; it has the rates and logits cost"),
        ({"mean": {"world": "cost"}, "at_most": 1, "bounds": [0, 2]}, "no mean called `cost`"),
        ({"mean": {"rule": "words"}, "at_most": 8, "bounds": [0, 10]}, "rule words runs from"),
    ],
)
def test_what_the_world_cannot_measure_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        limits_of((stated("one", **given),))
    assert message in str(refused.value)
    assert "recipe: limits.one" in str(refused.value)
