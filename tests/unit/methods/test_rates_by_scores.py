"""Methods that price by scores, under a limit on a rate: a score is read as the chance of a label "unsafe"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.methods.linear_scores import shift_to_rate
from pddpo_ray.driver.run import run_recipe
from tests.support.tiers import in_full
from tests.unit.methods.runs import config_of, journal_of

LIMIT = 0.45
RATE = (
    "limits.cost={rate: {world: cost}, learned_from: comparisons}",
    f"limits.cost.at_most={LIMIT}",
    "feedback.responses=400",
    "offline.pairs=2000",
)


@pytest.mark.run
@pytest.mark.parametrize(
    ("method", "more"),
    [("c-dpo", ()), *in_full(("caid", ()), ("caid", ("method.scores=policies", "limits.cost.labels_each=1")))],
)
def test_the_mean_that_moves_the_multiplier_is_the_rate_of_the_policy(
    method: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    run_recipe(config_of(method, *RATE, "offline.compare_rounds=0", *more), tmp_path / "run")
    journal = journal_of(tmp_path / "run")
    exact = [values["exact/g_policy"] for _, values in sorted(journal.metrics().items()) if "exact/g_policy" in values]
    estimates = [step.estimate for step in journal.dual_steps()]
    np.testing.assert_allclose([one.value for one in estimates], np.array(exact) + LIMIT, atol=0.1)
    assert all(0.0 < one.standard_error < 0.03 for one in estimates)


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("method", ["mocan", "pecan"])
def test_a_multiplier_found_before_is_that_of_the_rate(method: str, tmp_path: Path) -> None:
    more = ("offline.pairs=10000", "method.answers=1000", "feedback.responses=2000", "offline.compare_rounds=0")
    result = run_recipe(config_of(method, *RATE, *more), tmp_path / "run")
    assert result["multiplier"] == pytest.approx(result["multiplier_optimum"], rel=0.3)


def test_the_shift_to_a_rate_by_hand() -> None:
    """Chances 1/2 and 1/4 of odds 1 and 1/3: with all odds doubled 2/3 and 2/5; prompts may weigh differently."""
    logits = np.log([[1.0, 1.0], [1.0 / 3.0, 1.0 / 3.0]])
    assert shift_to_rate(logits, (2 / 3 + 2 / 5) / 2) == pytest.approx(np.log(2.0))
    assert shift_to_rate(logits, 0.75 * 2 / 3 + 0.25 * 2 / 5, [3.0, 1.0]) == pytest.approx(np.log(2.0))
    assert -20.0 < shift_to_rate(logits, 0.0) < -8.0, "a rate of which nobody saw one has a zero too"
    assert 8.0 < shift_to_rate(logits, 1.0) < 20.0, "and so has one of which nobody saw another"
