"""Scores by the tree of tokens against scoring every answer on its own, without a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pddpo_lab.worlds.token_tree import score_tree

END = 30


def answers_of(count: int) -> list[tuple[int, ...]]:
    """Different answers of 1 to 6 tokens and the end; many begin alike."""
    rng = np.random.default_rng([3])
    found = {tuple(int(token) for token in rng.integers(1, 4, size=rng.integers(1, 7))) for _ in range(4 * count)}
    chosen = sorted(found)[:count]
    rng.shuffle(chosen)
    return [(*answer, END) for answer in chosen]


def models() -> list[torch.nn.Module]:
    torch.manual_seed(5)
    llama = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    gpt2 = GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    made = [LlamaForCausalLM(llama).eval(), GPT2LMHeadModel(gpt2).eval()]
    for model in made:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)  # far from uniform, so that a wrong token shows
    return made


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2048, 3])
def test_tree_scores_equal_scores_one_by_one(rows: int) -> None:
    """Whole, and in parts of three branches."""
    prompt, answers = (7, 8, 9), answers_of(60)
    for model in models():
        expected = []
        for answer in answers:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].double()
            expected.append(float(torch.log_softmax(logits, -1)[range(len(answer)), list(answer)].sum()))
        found = score_tree(model, prompt, answers, rows)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert np.std(expected) > 1.0
        assert np.exp(found).sum() <= 1.0


def test_all_answers_to_a_depth_hold_all_of_the_probability() -> None:
    """With every token allowed at every step, nothing is left over."""
    model = models()[0]
    answers = [(first, second) for first in range(32) for second in range(32)]
    assert np.exp(score_tree(model, (7, 8), answers, 100)).sum() == pytest.approx(1.0, abs=1e-5)
