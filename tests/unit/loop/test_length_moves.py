"""A limit on length, by a rule, moves the length of fresh draws of a language model that learned words from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.journal import read_journal
from pddpo_ray.loop.before import calibration_answers
from pddpo_ray.loop.run import run_recipe
from pddpo_ray.storage.whole_files import JOURNAL
from tests.small_real_text import SMALL_REAL_TEXT


def length_run(folder: Path) -> Config:
    reference = "{vocabulary: 320, context: 192, hidden: 32, heads: 1, intermediate: 64, steps: 150, batch: 8}"
    fits = "{epochs: 2, learning_rate: 5.0e-3, batch_pairs: 24}"
    return load(
        "real-text",
        [
            *SMALL_REAL_TEXT,
            "limits.length={mean: {rule: words}, at_most: 3, bounds: [0, 30]}",
            f"world.reference={reference}",
            "rounds=3", "world.prompt_count=16", "feedback.responses=64", "offline.pairs=60",
            "beta=0.1", "dual.rho=2.0",
            "rollout={engine: transformers, max_tokens: 64, candidates: 4, canaries: 2}",
            "explore.calibration=96", "trainer.support.weight=0.0",
            *[f"trainer.{stage}={fits}" for stage in ("first_cost", "cost")],
            f"world.cache={folder / 'cache'}", "report.html=false", "report.tensorboard=false",
        ],
    )  # fmt: skip


@pytest.mark.slow
def test_a_limit_on_length_shortens_fresh_answers(tmp_path: Path) -> None:
    """The limit is half of what the reference writes. Its own answers teach: those of the pairs are other people's."""
    run_recipe(length_run(tmp_path), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        before = [len(answer.text.split()) for answer in calibration_answers(journal)]
        after = [len(answer.text.split()) for answer in journal.samples(3, "cost")]
        fits = [entry.payload["curve"] for entry in journal.phases() if entry.phase == "fit-cost"]
        steps = [metrics["fit/cost_steps"] for number, metrics in journal.metrics().items() if number > 0]
    error = np.hypot(np.std(before) / len(before) ** 0.5, np.std(after) / len(after) ** 0.5)
    assert np.mean(after) < np.mean(before) - 3.0 * error
    assert [len(curve["better"]) for curve in fits] == steps
    assert all(np.mean(curve["better"][-3:]) > np.mean(curve["worse"][-3:]) for curve in fits)
