"""The smallest examples of docs/the-paper.md: every number of "Five errata that matter" is computed here."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from pddpo_lab.methods.loss_bonus import bonus_margin
from pddpo_lab.verify.formulas import printed_margin
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature, skips_cost_stage

PAGE = (Path(__file__).parents[3] / "docs" / "the-paper.md").read_text(encoding="utf-8")


def told(code: str) -> str:
    """The paragraph of an erratum, as one line."""
    (paragraph,) = re.findall(rf"^\*\*[^*]*\({code}[^)]*\)\.\*\*.*?(?=\n\n)", PAGE, re.S | re.M)
    return " ".join(paragraph.split())


def chance_of_the_uncertain(printed: bool) -> float:
    """Where the even mixture of both labels' losses has no slope: the policy that its minimum has."""
    beta, multiplier, bonus = 0.5, 1.3, np.array([1.0, 0.0])
    chosen, rejected = bonus, bonus[::-1]
    margins = printed_margin(chosen, rejected, multiplier=multiplier) if printed else bonus_margin(chosen, rejected)
    temperature = cost_temperature(beta, multiplier)

    def slope(lead: float) -> float:
        """`lead` = h(first) - h(second); either answer is the chosen one half of the time."""
        logits = temperature * lead * np.array([1.0, -1.0]) + margins
        return float(np.sum(np.array([-1.0, 1.0]) * expit(-logits)))

    return float(expit(brentq(slope, -20.0, 20.0)))


def test_the_sign_of_the_cost_bonus() -> None:
    assert f"{chance_of_the_uncertain(printed=False):.3f}" == "0.931"
    assert f"{chance_of_the_uncertain(printed=True):.3f}" == "0.119"
    assert "0.931, the printed one 0.119" in told("E01")


def test_labels_that_all_agree() -> None:
    agree = binom.pmf(0, 5, 0.5) + binom.pmf(5, 5, 0.5)
    assert agree == pytest.approx(0.0625)
    finite = (1.0 - agree) ** 256
    assert 1.4e7 < 1.0 / finite < 1.55e7
    assert clipped_logit(np.array([0.0, 1.0]), 2.0).tolist() == pytest.approx([-2.0, 2.0])
    assert "6.25 of 100 cases" in told("E06")
    assert "once in fifteen million" in told("E06")


def test_a_multiplier_near_zero() -> None:
    errors = {multiplier: cost_temperature(0.1, multiplier) * 0.1 for multiplier in (1.0, 0.1, 0.001)}
    assert list(errors.values()) == pytest.approx([0.01, 0.1, 10.0])
    assert math.isinf(cost_temperature(0.1, 0.0))
    assert skips_cost_stage(0.01, below=0.1 * 0.1)
    assert "0.01 at λ = 1, 0.1 at λ = 0.1 and 10 at λ = 0.001" in told("E09")


@pytest.mark.parametrize("baseline", [0.5, 0.1, 1.0])
def test_the_assumption_about_the_baseline(baseline: float) -> None:
    """Smallest share of E phi phi^T that E v v^T is, uncentred; and centred, along the only direction that is left."""
    policy, other = np.array([0.5, 0.5]), np.array([baseline, 1.0 - baseline])
    differences = np.diag(policy) + np.diag(other) - np.outer(policy, other) - np.outer(other, policy)
    assert eigh(differences, np.diag(policy), eigvals_only=True)[0] == pytest.approx(0.0, abs=1e-12)
    centred = np.eye(2) - other
    moment = centred.T @ np.diag(policy) @ centred
    direction = np.array([1.0, -1.0])
    share = (direction @ differences @ direction) / (direction @ moment @ direction)
    assert share >= 1.0 - 1e-12
    if baseline == 0.5:
        assert share == pytest.approx(2.0)
        assert "the share is 0, for every baseline" in told("E13")
        assert "centred on the baseline it is 2" in told("E13")


def test_the_information_of_a_comparison_across_the_box() -> None:
    z = 2.0
    real = float(expit(2 * z) * expit(-2 * z))
    printed = 1.0 / (math.exp(z) + math.exp(-z) + 2.0)
    assert real == pytest.approx(1.0 / (math.exp(2 * z) + math.exp(-2 * z) + 2.0))
    assert (f"{real:.4f}", f"{printed:.3f}", round(printed / real)) == ("0.0177", "0.105", 6)
    assert "0.0177, and the printed constant takes 0.105, six times that" in told("E05")
