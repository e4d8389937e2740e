"""The text world in one process: a real model, trained, sampled and broken off in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.evaluate.world import evaluate_run
from pddpo_ray.journal import read_journal
from pddpo_ray.plan.cost_model import work
from pddpo_ray.storage.whole_files import JOURNAL
from tests.unit.loop.small_run import story

pytestmark = pytest.mark.slow


def tiny_text(*overrides: str) -> Config:
    """Three rounds that say nothing about quality: the third fits what a resumed run remembers."""
    fits = ["trainer.fit.steps=4"]
    return load(
        "text-world",
        [
            "rounds=3",
            "cluster={mode: in-process}",
            "rollout={engine: transformers, max_tokens: 40, candidates: 4}",
            "feedback.responses=12",
            "limits.cost.labels_each=5",
            "offline.pairs=48",
            "explore.calibration=120",
            "explore.rank=16",
            "explore.prompts=6",
            "explore.picks=2",
            *fits,
            *overrides,
        ],
    )


class PowerCut(BaseException):
    pass


@pytest.mark.full
def test_a_text_run_broken_off_in_mid_round_equals_the_unbroken_one(tmp_path: Path) -> None:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (2, "safety"):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(tiny_text(), tmp_path / "cut" / "run", progress=cut)
    resumed = run_recipe(tiny_text(), tmp_path / "cut" / "run", resume=True)
    whole = run_recipe(tiny_text(), tmp_path / "whole" / "run")
    broken, unbroken = story(tmp_path / "cut" / "run"), story(tmp_path / "whole" / "run")
    # A new process scores texts in other batches than the first one did, which moves the last bits of a feature.
    for ours, theirs in zip(broken.pop("exact"), unbroken.pop("exact"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert broken == unbroken
    assert resumed["g_last"] == whole["g_last"]
    assert whole["weights_verified"] is True
    assert 0.0 <= whole["off_support_last"] < 1.0
    with read_journal(tmp_path / "whole" / "run" / JOURNAL, "run") as journal:
        deliveries = journal.deliveries()
        drawn = {number: Counter(sample.id.split("-")[1] for sample in journal.samples(number)) for number in range(4)}
    assert all(entry.verified and entry.canary_difference < 1e-4 for entry in deliveries if entry.canary_difference)
    assert {entry.delivery.version for entry in deliveries} == {0, 2, 4, 6}
    with read_journal(tmp_path / "whole" / "run" / JOURNAL, "run-offline") as journal:
        compared = [sample for number in range(1, 4) for sample in journal.samples(number)]
    planned = work(tiny_text())
    assert len(compared) == planned["before"]["answers"].pop("comparison")
    assert drawn[0].pop("offline") <= planned["before"]["answers"].pop("offline")
    assert [drawn[number] for number in range(4)] == [
        planned[name]["answers"] for name in ("before", "first_round", "round", "round")
    ]


@pytest.mark.full
def test_a_run_on_a_drawn_world_is_evaluated_under_its_rate(tmp_path: Path) -> None:
    """The limit, g and the optimum are of the unsafe rate, not of the mean logit."""
    family = "world.family={kind: drawn, limit: {kind: rate, at_most: 0.05}}"
    rate = [
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.at_most=0.05",
        "dual.cost_max=6.0",
        "dual.rho=null",
    ]
    result = run_recipe(tiny_text("rounds=1", "world.seed=3", family, *rate), tmp_path / "run")
    assert result["multiplier_optimum"] > 0
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        metrics = journal.metrics()[1]
        values = evaluate_run(Config.model_validate(journal.recipe), tmp_path / "run", journal)
    assert values["optimum"]["unsafe_rate"] == pytest.approx(0.05, abs=1e-6)
    last = values["policy-1"]
    assert last["unsafe_rate"] - 0.05 == pytest.approx(last["g"], abs=1e-9)
    assert metrics["exact/g_policy"] == pytest.approx(last["g"], abs=1e-9)
    assert metrics["exact/gap_policy"] == pytest.approx(last["gap"], abs=1e-9)
    assert last["gap"] > 0


def test_an_engine_that_merges_adapters_in_bfloat16_is_verified_without_a_tolerance_of_ones_own(tmp_path: Path) -> None:
    """The trainer computes with the adapter beside its weights, the engine with their rounded sum: 0.004 a token."""
    narrow = ["model.dtype=bfloat16", "model.parameters.kind=lora", "offline.compare_rounds=0"]
    run_recipe(tiny_text("rounds=1", *narrow), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        deliveries = journal.deliveries()
    assert all(entry.verified for entry in deliveries)
    assert max(entry.canary_difference or 0.0 for entry in deliveries) > 1e-4
