"""Means under several policies from the answers of all: exact on tables, and better than from own answers alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.power import allowed_failures, certified_rate, likely_rate
from pddpo_ray.theory.estimates.pooled import pooled_means, pooled_weights

COUNTS = (300, 200, 500)


def drawn(tables: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    """Answers of each policy to one prompt, and who drew them. tables [K, Y]"""
    author = np.repeat(np.arange(len(tables)), COUNTS)
    return np.array([generator.choice(tables.shape[1], p=tables[k]) for k in author]), author


@pytest.mark.slow
def test_means_are_unbiased_and_steadier_than_of_own_answers() -> None:
    """150 runs of three close policies whose labels are right or wrong: the enumerated means are the truth."""
    generator = np.random.default_rng(5)
    logits = generator.normal(size=6)
    log_tables = np.array([log_softmax(logits + 0.3 * generator.normal(size=6)) for _ in COUNTS])
    tables, rates = np.exp(log_tables), generator.uniform(0.0, 0.2, 6)
    pooled, own = [], []
    for _ in range(150):
        answers, author = drawn(tables, generator)
        labels = (generator.random(len(answers)) < rates[answers]).astype(float)
        weights = pooled_weights(log_tables[:, answers], author)
        assert (weights.max(axis=1) <= len(answers) / np.array(COUNTS) + 1e-9).all()
        pooled.append(pooled_means(weights, labels))
        own.append([labels[author == k].mean() for k in range(3)])
    truth, error = tables @ rates, np.std(pooled, axis=0) / np.sqrt(150)
    assert (np.abs(np.mean(pooled, axis=0) - truth) < 4 * error + 1e-4).all()
    assert (np.var(pooled, axis=0) < 0.8 * np.var(own, axis=0)).all()


def test_policies_without_common_answers_have_the_means_of_their_own() -> None:
    with np.errstate(divide="ignore"):
        log_tables = np.log([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.3, 0.7]])
    answers, author = np.array([0, 1, 1, 2, 3]), [0, 0, 0, 1, 1]
    values = np.array([1.0, 0.0, np.nan, 0.25, 0.75])
    weights = pooled_weights(log_tables[:, answers], author)
    assert pooled_means(weights, values) == pytest.approx([0.5, 0.5])
    assert np.isnan(pooled_means(weights, np.array([1.0, 0.0, 0.0, np.nan, np.nan]))[1])
    assert pooled_means(weights, np.array([values, 2 * values])) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(("limit", "draws"), [(0.05, 4000), (0.3, 500), (0.01, 3000)])
def test_four_in_five_tests_certify_a_policy_at_the_likely_rate(limit: float, draws: int) -> None:
    """1,000 simulated tests with a look after every draw; at the rate that is just certified about half succeed."""
    generator, edge = np.random.default_rng(8), allowed_failures(limit, 0.05, draws)

    def power(rate: float) -> float:
        failures = np.cumsum(generator.random((1000, draws), dtype=np.float32) < rate, axis=1, dtype=np.int32)
        return float((failures <= edge).any(axis=1).mean())

    assert 0.74 <= power(likely_rate(limit, draws, 0.05)) <= 0.93
    assert power(certified_rate(limit, draws, 0.05)) < 0.72
    assert likely_rate(limit, 10, 0.05) == 0.0
