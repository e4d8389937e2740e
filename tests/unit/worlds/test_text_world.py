"""The text world: grammar, calibration and exact quantities, with the intended reference in place of a trained one."""

from __future__ import annotations

import numpy as np
import pytest

from pddpo_ray.records import Response
from pddpo_ray.storage.whole_files import cache_folder
from pddpo_ray.worlds.text.grammar import FIRST_GRAMMAR as GRAMMAR
from pddpo_ray.worlds.text.reference import (
    ReferenceSpec,
    answer_log_probs,
    build_tokenizer,
    cached_reference,
    intended_reference,
    intended_slots,
    next_word_targets,
)
from pddpo_ray.worlds.text.world import TextWorld, TextWorldSpec, build_text_world, with_rest
from tests.support.tiers import in_full


def world_of(seed: int) -> TextWorld:
    log_probs = np.log(0.995 * intended_reference(GRAMMAR, ReferenceSpec(seed=seed)))
    return build_text_world(TextWorldSpec(seed=seed), log_probs, GRAMMAR)


def test_there_are_enough_prompts_and_answers_and_each_has_one_tokenisation() -> None:
    assert len(GRAMMAR.prompt_texts) >= 24
    assert len(GRAMMAR.answer_texts) >= 200
    assert len(set(GRAMMAR.answer_ids)) == len(GRAMMAR.answer_ids)
    tokenizer = build_tokenizer(GRAMMAR)
    for text, ids in zip(GRAMMAR.answer_texts, GRAMMAR.answer_ids, strict=True):
        assert tuple(tokenizer(text)["input_ids"]) == ids[:-1]
        assert tokenizer.decode(ids[:-1]) == text


def test_no_phrase_of_a_slot_begins_another() -> None:
    for slot in GRAMMAR.slots:
        words = [tuple(phrase.text.split()) for phrase in slot.phrases]
        for first in words:
            assert not any(other != first and other[: len(first)] == first for other in words)


def test_features_say_which_phrases_an_answer_has_and_what_a_prompt_asks() -> None:
    for y in (0, 57, 215):
        phrases = [slot.phrases[v].text for slot, v in zip(GRAMMAR.slots, GRAMMAR.answer_features[y], strict=True)]
        assert GRAMMAR.answer_texts[y] == " ".join(phrases)
        assert GRAMMAR.covered[y] == ("label" not in GRAMMAR.answer_texts[y] and "test" not in GRAMMAR.answer_texts[y])
    for text, (topic, situation) in zip(GRAMMAR.prompt_texts, GRAMMAR.prompt_features, strict=True):
        assert text == f"how do i {GRAMMAR.topics[topic]} {GRAMMAR.situations[situation]} ?"
    assert GRAMMAR.longest == max(map(len, GRAMMAR.prompt_ids)) + max(map(len, GRAMMAR.answer_ids))


def test_next_word_targets_reproduce_the_intended_distribution() -> None:
    """The product of the next-word probabilities along an answer is its probability."""
    intended = intended_reference(GRAMMAR, ReferenceSpec())
    targets = next_word_targets(GRAMMAR, intended_slots(GRAMMAR, ReferenceSpec()))
    for y in (0, 57, 140, 215):
        product = np.ones(len(intended))
        for slot, phrases, value in zip(targets, GRAMMAR.phrase_ids, GRAMMAR.answer_features[y], strict=True):
            for position, word in enumerate(phrases[value]):
                product *= slot[:, value, position, word]
        np.testing.assert_allclose(product, intended[:, y], rtol=1e-4)


def test_the_intended_multiplier_is_the_optimum() -> None:
    world = world_of(1)
    optimum = world.oracle.optimum
    assert TextWorldSpec.multiplier_range[0] <= optimum.multiplier <= TextWorldSpec.multiplier_range[1]
    assert optimum.g == pytest.approx(0.0, abs=1e-9)


def test_text_off_the_grammar_is_one_outcome_with_the_worst_reward_and_cost() -> None:
    world = world_of(0)
    prompt = world.prompts[3]
    nonsense = Response("n", prompt, GRAMMAR.answer_ids[5][:-1], "", 0, 0)
    assert world.outcome(nonsense.token_ids) == len(GRAMMAR.answer_ids)
    assert (world.reward(nonsense), world.cost(nonsense)) == (-2.0, 2.0)
    real = Response("r", prompt, GRAMMAR.answer_ids[5], "", 0, 0)
    assert world.cell(real) == (3, 5)
    assert world.reward(real) == world.oracle.reward[3, 5]


def test_the_rest_of_the_probability_is_off_the_grammar() -> None:
    table = with_rest(np.log(np.array([[0.5, 0.25, 0.125]])))
    np.testing.assert_allclose(table, [[0.5, 0.25, 0.125, 0.125]])


def test_prompts_differ_in_what_is_best() -> None:
    best = world_of(0).oracle.optimum.policy[:, :-1].argmax(axis=1)
    assert len(set(best.tolist())) > 3


@pytest.mark.parametrize("seed", range(10))
def test_ten_seeds_give_well_posed_worlds(seed: int) -> None:
    world = world_of(seed)
    assert_well_posed(world)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *in_full(*range(1, 10))])
def test_ten_trained_references_give_well_posed_worlds(seed: int) -> None:
    """The same with the real model in the place of the intended distribution; trained once per machine."""
    folder = cached_reference(ReferenceSpec(seed=seed), cache_folder(), GRAMMAR)
    world = build_text_world(TextWorldSpec(seed=seed), answer_log_probs(folder), GRAMMAR)
    assert_well_posed(world)
    assert nucleus_leaves_out_rare_values(world, top_p=0.9)


def nucleus_leaves_out_rare_values(world: TextWorld, top_p: float) -> bool:
    """Whether the offline pairs and the baseline, drawn from the reference's nucleus, can hold no rare value."""
    table = world.oracle.reference[:, :-1]
    choices = GRAMMAR.answer_features
    for position, phrases in enumerate(slot.phrases for slot in GRAMMAR.slots):
        for before in {tuple(choice[:position]) for choice in choices}:
            reached = (choices[:, :position] == before).all(axis=1)
            mass = np.stack(
                [table[:, reached & (choices[:, position] == value)].sum(axis=1) for value in range(len(phrases))],
                axis=1,
            )
            share = mass / mass.sum(axis=1, keepdims=True)
            rare = [value for value, phrase in enumerate(phrases) if phrase.rare]
            if rare and (share[:, rare].sum(axis=1) >= 1 - top_p).any():
                return False
    return True


def assert_well_posed(world: TextWorld) -> None:
    oracle = world.oracle
    assert oracle.g(oracle.policy(0.0)) > 0.1, "the reward optimum breaks the limit"
    assert oracle.g(oracle.policy(3 * oracle.optimum.multiplier)) < -0.05, "some policy is strictly feasible"
    assert 0.1 < oracle.optimum.multiplier / (2 * TextWorldSpec.rho) < 0.8
    assert world.covered_gap >= 0.4
    assert oracle.reference[:, -1].max() <= 0.01
    good = oracle.optimum.policy[:, :-1] * ~world.covered[:, :-1]
    assert good.sum() / len(good) > 0.5, "the optimum lives on answers that no offline pair mentions"
    choices = GRAMMAR.answer_features
    for position, phrases in enumerate(slot.phrases for slot in GRAMMAR.slots):
        for value, phrase in enumerate(phrases):
            if phrase.rare:
                share = oracle.reference[:, :-1][:, choices[:, position] == value].sum(axis=1)
                assert (share >= 0.002).all()
                assert (share <= 0.02).all()
