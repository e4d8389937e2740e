"""Scoring by the tree of phrases against scoring every answer on its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pddpo_ray.rollout.policy_temperature import divide_logits
from pddpo_ray.training.log_probs import ResponseScorer, score_texts
from pddpo_ray.worlds.grammar import FIRST_GRAMMAR
from pddpo_ray.worlds.reference import ReferenceSpec, build_model
from pddpo_ray.worlds.text_scoring import score_answers


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_by_phrase_equal_scores_one_by_one(temperature: float) -> None:
    topics, situations = ("clean the oven", "prune a tall tree"), ("on my own", "in a hurry")
    grammar = replace(FIRST_GRAMMAR, topics=topics, situations=situations)
    model = build_model(grammar, ReferenceSpec(hidden=32, heads=1, layers=2)).eval()
    texts = [(prompt, answer) for prompt in grammar.prompt_ids for answer in grammar.answer_ids]
    one_by_one = score_texts(ResponseScorer(model, temperature=temperature), texts).reshape(4, -1)
    divide_logits(model, temperature)
    np.testing.assert_allclose(score_answers(model, grammar), one_by_one, atol=1e-4)
    assert np.std(one_by_one) > 0.1
