"""How many of 50 scorers on shuffled labels a run's gate stops, and how many of 50 sound ones it lets pass.

    python -m lab.studies.scorers.gate

Each scorer is `pddpo scorer train` on 400 pairs of its own, 80 of them held out: a head on a tiny frozen model. A sound
one learns from labels of which 5 % are wrong. Shuffled labels are coins.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from pddpo_ray.config import ScorerJob
from pddpo_ray.scoring.held_out import Trials
from pddpo_ray.scoring.scorer_job import train_from_files
from pddpo_ray.theory.intervals import clopper_pearson
from tests.support.scorer_rows import TEMPLATE, rows_of_words, write_rows
from tests.support.tiny_language_model import save_policy


def trials_of(folder: Path, seed: int, *, shuffled: bool, pairs: int) -> tuple[Trials, float, float]:
    """Held-out comparisons of one scorer, its expected calibration error, and that of exact probabilities."""
    rows = rows_of_words(pairs, 10_000 + seed, shuffled=shuffled, wrong=0.05)
    file = write_rows(folder / f"{seed}-{shuffled}.jsonl", rows)
    job = ScorerJob(
        kind="cost",
        files=(str(file),),
        base=str(folder / "base"),
        template=TEMPLATE,
        device="cpu",
        micro=256,
        seed=seed,
    )
    report = train_from_files(job, folder / f"out-{seed}-{shuffled}", resume=False, say=lambda line: None)
    fit = report["held_out"]["labels"]["reliability"]
    return Trials.of(report["held_out"]), fit["expected_calibration_error"], fit["error_if_calibrated"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scorers", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_policy(folder / "base", 0)
        for shuffled in (True, False):
            made = [trials_of(folder, seed, shuffled=shuffled, pairs=options.pairs) for seed in range(options.scorers)]
            passed = sum(trials.better_than_chance for trials, _, _ in made)
            low, high = clopper_pearson(passed, len(made))
            right = np.mean([trials.right / trials.count for trials, _, _ in made])
            within = sum(error <= expected for _, error, expected in made)
            print(
                f"{'shuffled' if shuffled else 'sound'}: {passed} of {len(made)} pass ({100 * low:.1f} to"
                f" {100 * high:.1f} %); mean held-out accuracy {right:.3f}; calibration error"
                f" {np.mean([error for _, error, _ in made]):.3f}, within that of exact probabilities in {within}"
            )


if __name__ == "__main__":
    main()
