"""Log-probabilities of responses against slower second ways to get them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pddpo_ray.training.batches import collate, minibatches
from pddpo_ray.training.device import PASS_TOKENS
from pddpo_ray.training.passes.log_probs import (
    ResponseScorer,
    mean_hidden,
    score_texts,
    support_of_texts,
    support_table,
)
from pddpo_ray.training.passes.response_head import SupportTable
from tests.support.tiny_language_model import tiny_llama

TEXTS = [((1, 9, 4), (7, 8, 2)), ((1, 5), (6, 2)), ((1, 9, 4, 11), (12, 13, 14, 15, 2)), ((1, 9, 4), (2,))]


@pytest.fixture(scope="module")
def scorer() -> ResponseScorer:
    return ResponseScorer(tiny_llama(3))


@torch.no_grad()
def one_by_one(scorer: ResponseScorer, prompt: tuple[int, ...], response: tuple[int, ...]) -> float:
    """The chain rule with one unpadded forward pass for each token."""
    total = 0.0
    for position, word in enumerate(response):
        logits = scorer.model(input_ids=torch.tensor([[*prompt, *response[:position]]])).logits[0, -1].double()
        total += float(torch.log_softmax(logits, dim=-1)[word])
    return total


def test_log_probs_equal_the_chain_rule_token_by_token(scorer: ResponseScorer) -> None:
    expected = [one_by_one(scorer, *text) for text in TEXTS]
    np.testing.assert_allclose(score_texts(scorer, TEXTS), expected, atol=1e-5)


def test_log_probs_do_not_depend_on_batch_or_padding(scorer: ResponseScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    together = score_texts(scorer, TEXTS)
    monkeypatch.setitem(PASS_TOKENS, "cpu", 1)
    alone = score_texts(scorer, TEXTS)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_features_are_the_mean_over_the_states_that_read_the_response(scorer: ResponseScorer) -> None:
    with torch.no_grad():
        expected = [
            scorer.model.base_model(input_ids=torch.tensor([[*prompt, *response]]))  # type: ignore[operator]
            .last_hidden_state[0, len(prompt) :]
            .mean(dim=0)
            .numpy()
            for prompt, response in TEXTS
        ]
    np.testing.assert_allclose(mean_hidden(scorer, TEXTS), expected, atol=1e-5)


def test_support_holds_exactly_the_words_above_the_floor(scorer: ResponseScorer) -> None:
    floor = 0.01
    log_probs, supports = support_of_texts(scorer, TEXTS, floor)
    np.testing.assert_allclose(log_probs, score_texts(scorer, TEXTS), atol=1e-5)
    table = support_table(supports)
    mask = torch.zeros((len(table.count), scorer.vocabulary_size), dtype=torch.bool)
    for row, (words, count) in enumerate(zip(table.word, table.count.tolist(), strict=True)):
        mask[row, words[:count]] = True
    with torch.no_grad():
        probabilities = torch.softmax(scorer.response_logits(collate(TEXTS)), dim=-1)
    assert torch.equal(mask, probabilities >= floor)
    assert 0 < int(mask.sum()) < mask.numel()


def test_supported_mass_is_the_sum_of_the_supported_words(scorer: ResponseScorer) -> None:
    batch = collate(TEXTS)
    table = SupportTable(torch.arange(5, 25).repeat(len(batch.target), 1), torch.tensor(15).repeat(len(batch.target)))
    with torch.no_grad():
        _, log_mass = scorer(batch, table)
        expected = torch.softmax(scorer.response_logits(batch), dim=-1)[:, 5:20].sum(dim=-1).log()
    torch.testing.assert_close(log_mass, expected)


def test_rows_of_a_group_follow_each_other_in_minibatches() -> None:
    """Rows 0, 2, 4 and 1, 3, 5 are groups: whole groups fill batches of 3, and every row is used equally often."""
    groups = [index % 2 for index in range(6)]
    batches = [batch.tolist() for batch in minibatches(6, 8, 3, seed=1, groups=groups)]
    assert {tuple(batch) for batch in batches} == {(0, 2, 4), (1, 3, 5)}
    assert np.bincount(np.concatenate(batches)).tolist() == [4] * 6
    firsts = {tuple(next(minibatches(6, 1, 3, seed=seed, groups=groups)).tolist()) for seed in range(8)}
    assert len(firsts) == 2, "the order of groups follows the seed"
    crossing = list(minibatches(6, 3, 4, seed=1, groups=groups))
    assert sorted(np.concatenate(crossing).tolist()) == sorted([*range(6), *range(6)])


def test_minibatches_use_every_row_equally_often() -> None:
    counts = np.bincount(np.concatenate(list(minibatches(rows=10, steps=15, size=4, seed=1))), minlength=10)
    assert counts.tolist() == [6] * 10
    same = [batch.tolist() for batch in minibatches(10, 15, 4, seed=1)]
    assert same == [batch.tolist() for batch in minibatches(10, 15, 4, seed=1)]
    assert same != [batch.tolist() for batch in minibatches(10, 15, 4, seed=2)]
