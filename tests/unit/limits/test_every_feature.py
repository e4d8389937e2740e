"""Each kind of limit with each feature of a run: it works, or is refused with the reason (lab/studies/limits)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.parts.dual_step import journalled_estimates
from tests.unit.loop.small_run import MEASURED, finish, ledger

PAPERS = "limits.cost={%s: {world: cost}, at_most: %s, labels_each: 4%s}"
ON_SETS = ("tabular-limits", "prompts.plain.share=50 %", "prompts.private.share=50 %")
"""A whole number of prompts of each set in every round."""
KINDS: dict[str, tuple[str, ...]] = {
    "paper's logit": ("tabular", PAPERS % ("logit", "0.3", "")),
    "paper's rate": ("tabular", PAPERS % ("rate", "60 %", ", learned_from: comparisons")),
    "logit beside a rate": ON_SETS,
    "rate": (*ON_SETS, "limits.harm=null"),
    "difference": (*ON_SETS, "limits.harm=null", "limits.leaks.versus=reference", "limits.leaks.at_most=20 %"),
    "wins": ("tabular", "limits={cost: null, better: {rate: {world: reward}, versus: reference, at_least: 30 %}}"),
    "drift": ("tabular", "limits={cost: null, far: {kl: reference, at_most: 2}}"),
}
TOGETHER = ("feedback.rounds_late=1", "dual.first=0.3", "dual.upper=0.5", "dual.margin=0.01")


def limited(name: str, *overrides: str) -> Config:
    recipe, *limits = KINDS[name]
    return load(recipe, [*MEASURED, "rounds=3", "feedback.responses=12", *limits, *overrides])


@pytest.mark.run
@pytest.mark.parametrize("name", KINDS)
def test_late_labels_warm_start_box_margin_and_a_certificate_of_the_rounds_together(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixtures = [] if name == "drift" else ["certificate.mixtures=[1]"]
    config, run = limited(name, *TOGETHER, *mixtures), tmp_path / "run"
    with caplog.at_level(logging.INFO):
        steps = finish(config, run)["dual"]
    names = {one.limit.name for one in config.stated}
    with open_folder(run) as journal:
        late = [one.limits[0].rounds_late for one in journalled_estimates(journal)]
    assert late == ([0, 0, 0] if name == "drift" else [1, 1, 0]), "nobody is waited for where nobody is asked"
    assert {step.constraint for step in steps} == names
    assert all(f"the dual of {one} aims" in caplog.text for one in names)
    found = [entry.findings for entry in ledger(run)]
    assert [set(one) for one in found] == ([] if name == "drift" else [names])
    for one in names:
        first, *after = [(step.multiplier_before, step.multiplier_after) for step in steps if step.constraint == one]
        assert all(later <= first[0] * 0.5 / 0.3 + 1e-12 for _, later in [first, *after])
        assert after[0][0] == (first[1] if name == "drift" else first[0])


@pytest.mark.run
def test_a_drift_has_no_bound_to_certify_it_by(tmp_path: Path) -> None:
    for asked in ("dual.margin=certificate", "certificate.mixtures=[1]"):
        with pytest.raises(UserError, match="kl limit is never certified"):
            run_recipe(limited("drift", asked), tmp_path / "run")
        assert not (tmp_path / "run").exists()
