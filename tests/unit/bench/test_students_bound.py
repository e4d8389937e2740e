"""Student's test of a rate: its bound against scipy, its chance of a false pass against draws and a formula by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lab.studies.students_bound.run import false_pass_betting, false_pass_student, student_bound, table


def test_the_bound_is_that_of_a_t_test_on_the_labels() -> None:
    labels = np.repeat([1.0, 0.0], [7, 93])
    test = stats.ttest_1samp(labels, 0.0).confidence_interval(0.9)
    assert student_bound(np.array([7.0]), 100, 0.05)[0] == pytest.approx(test.high, abs=1e-12)


def test_without_a_failure_it_passes_whatever_the_limit() -> None:
    """0.99^100 = 0.366; one failure among 100 has the bound 0.01 + 1.660 * 0.1 / 10 = 0.027, above the limit."""
    assert false_pass_student(0.01, 100) == pytest.approx(0.99**100, abs=1e-12)


def test_both_chances_agree_with_draws() -> None:
    generator = np.random.default_rng(5)
    failures = generator.binomial(300, 0.05, 40_000).astype(np.float64)
    share = float((student_bound(failures, 300, 0.05) <= 0.05).mean())
    assert false_pass_student(0.05, 300) == pytest.approx(share, abs=4 * np.sqrt(share / 40_000))


@pytest.mark.parametrize("limit", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("draws", [100, 300, 1_000])
def test_the_betting_test_keeps_its_level_where_students_does_not(limit: float, draws: int) -> None:
    assert false_pass_betting(limit, draws) <= 0.05
    assert false_pass_student(limit, draws) > (0.05 if limit < 0.3 else 0.045)


def test_the_study_holds_the_table() -> None:
    study = (Path(__file__).parents[3] / "lab" / "studies" / "students_bound" / "README.md").read_text(encoding="utf-8")
    assert [line for line in table().splitlines() if line not in study] == []
