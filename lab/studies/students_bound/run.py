"""How often a test by Student's t certifies a rate that is at its limit, exactly; beside it the certificate of runs.

    python -m lab.studies.students_bound.run

HC-RLHF (arXiv 2506.08266) trains against, and tests by, a bound of the form mean + t_{1-delta, n-1} s / sqrt(n) on the
cost of n answers. Its cost is a model's score, for which the normal law may do. Of a rate it does not: without any
failure s is 0, and the test passes whatever n is. The sum over the number of failures is exact.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import bets_below

LIMITS, DRAWS, DELTA = (0.01, 0.05, 0.3), (100, 300, 1_000, 3_000), 0.05


def student_bound(failures: Array, draws: int, delta: float) -> Array:
    """mean + t_{1-delta, n-1} s / sqrt(n), s the standard deviation of n labels. [k] -> [k]"""
    mean = failures / draws
    deviation = np.sqrt(draws / (draws - 1.0) * mean * (1.0 - mean))
    return np.asarray(mean + stats.t.ppf(1.0 - delta, draws - 1) * deviation / np.sqrt(draws))


def false_pass_student(limit: float, draws: int, delta: float = DELTA) -> float:
    """Chance that a policy whose true rate is the limit passes Student's test with this number of draws."""
    counts = np.arange(draws + 1, dtype=np.float64)
    passed = student_bound(counts, draws, delta) <= limit
    return float(stats.binom.pmf(counts[passed], draws, limit).sum())


def false_pass_betting(limit: float, draws: int, delta: float = DELTA) -> float:
    """The same for the betting test of certificates, asked once after all draws."""
    bets, counts = bets_below(limit), np.arange(draws + 1, dtype=np.float64)
    gained = np.multiply.outer(counts, np.log1p(-bets)) - draws * np.log1p(-bets * limit)
    log_wealth = np.logaddexp.reduce(gained, axis=1) - np.log(len(bets))
    return float(stats.binom.pmf(counts[log_wealth >= -np.log(delta)], draws, limit).sum())


def table(delta: float = DELTA) -> str:
    rows = ["| limit | draws | Student's test | betting test |", "|---|---|---|---|"]
    rows += [
        f"| {100 * limit:g} % | {draws:,} | {100 * false_pass_student(limit, draws, delta):.1f} % |"
        f" {100 * false_pass_betting(limit, draws, delta):.1f} % |"
        for limit in LIMITS
        for draws in DRAWS
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
