"""Scoring by the tree of phrases against scoring every answer on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import pddpo_ray.worlds.text.scoring as text_scoring
from pddpo_ray.config import DrawnFamilyConfig
from pddpo_ray.rollout.policy_temperature import divide_logits
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar
from pddpo_ray.worlds.text.grammar import Grammar
from pddpo_ray.worlds.text.reference import ReferenceSpec, build_model, intended_reference
from pddpo_ray.worlds.text.world import with_rest
from tests.support.written_grammar import GRAMMAR

TINY = ReferenceSpec(hidden=32, heads=1, layers=2)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_by_phrase_equal_scores_one_by_one(temperature: float) -> None:
    topics, situations = ("clean the oven", "prune a tall tree"), ("on my own", "in a hurry")
    grammar = replace(GRAMMAR, topics=topics, situations=situations)
    model = build_model(grammar, TINY).eval()
    texts = [(prompt, answer) for prompt in grammar.prompt_ids for answer in grammar.answer_ids]
    one_by_one = score_texts(ResponseScorer(model, temperature=temperature), texts).reshape(4, -1)
    divide_logits(model, temperature)
    np.testing.assert_allclose(text_scoring.score_answers(model, grammar), one_by_one, atol=1e-4)
    assert np.std(one_by_one) > 0.1


@torch.no_grad()
def enumerated(model: Any, grammar: Grammar) -> NDArray[np.float64]:
    """Every answer as a row of its own, with others of its length: no cache, no padding, the sum of its words."""
    result = np.empty((len(grammar.prompt_ids), len(grammar.answer_ids)))
    lengths = np.array([len(answer) for answer in grammar.answer_ids])
    for x, prompt in enumerate(grammar.prompt_ids):
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            ids = torch.tensor([[*prompt, *grammar.answer_ids[y]] for y in members])
            log_probs = torch.log_softmax(model(input_ids=ids).logits, dim=-1)[:, len(prompt) - 1 : -1]
            result[x, members] = log_probs.gather(-1, ids[:, len(prompt) :, None]).sum(dim=(1, 2)).numpy()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("widest", [64, 100_000])
def test_exact_sums_by_the_tree_equal_enumeration_of_a_thousand_answers(
    widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """f, g, KL, gap and off-grammar mass, in parts and at once; a model in float64, so that only the sums differ."""
    family = DrawnFamilyConfig(answers=1000, topics=2, situations=2)
    grammar = drawn_grammar(family, 4)
    model = build_model(grammar, TINY).eval().double()
    monkeypatch.setattr(text_scoring, "WIDEST", widest)
    by_tree = text_scoring.score_answers(model, grammar)
    alone = enumerated(model, grammar)
    np.testing.assert_allclose(by_tree, alone, atol=1e-10)
    intended = intended_reference(grammar, ReferenceSpec(seed=4))
    oracle = build_drawn_world(DrawnWorldSpec(family=family, seed=4), np.log(0.995 * intended), grammar).oracle
    tree, listed = with_rest(by_tree), with_rest(alone)
    for exact in (oracle.f, oracle.g, oracle.kl, oracle.gap, lambda table: float(table[:, -1].sum())):
        assert exact(tree) == pytest.approx(exact(listed), abs=1e-10)
