"""The text world: grammar, calibration and exact quantities, with the intended reference in place of a trained one."""

from __future__ import annotations

import numpy as np

from pddpo_ray.config import DrawnFamilyConfig
from pddpo_ray.records import Response
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar
from pddpo_ray.worlds.text.reference import (
    ReferenceSpec,
    build_tokenizer,
    intended_reference,
    intended_slots,
    next_word_targets,
)
from pddpo_ray.worlds.text.world import TextWorld, with_rest
from tests.support.written_grammar import GRAMMAR


def world_of(seed: int) -> TextWorld:
    grammar = drawn_grammar(DrawnFamilyConfig(), seed)
    log_probs = np.log(0.995 * intended_reference(grammar, ReferenceSpec(seed=seed)))
    return build_drawn_world(DrawnWorldSpec(seed=seed), log_probs, grammar)


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


def test_text_off_the_grammar_is_one_outcome_with_the_worst_reward_and_cost() -> None:
    world = world_of(0)
    prompt, answers = world.prompts[3], world.grammar.answer_ids
    nonsense = Response("n", prompt, answers[5][:-1], "", 0, 0)
    assert world.outcome(nonsense.token_ids) == len(answers)
    assert (world.reward(nonsense), world.cost(nonsense)) == (-2.0, 2.0)
    real = Response("r", prompt, answers[5], "", 0, 0)
    assert world.cell(real) == (3, 5)
    assert world.reward(real) == world.oracle.reward[3, 5]


def test_the_rest_of_the_probability_is_off_the_grammar() -> None:
    table = with_rest(np.log(np.array([[0.5, 0.25, 0.125]])))
    np.testing.assert_allclose(table, [[0.5, 0.25, 0.125, 0.125]])


def test_prompts_differ_in_what_is_best() -> None:
    best = world_of(0).oracle.optimum.policy[:, :-1].argmax(axis=1)
    assert len(set(best.tolist())) > 2
