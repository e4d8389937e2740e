"""The scorecard's alarm in real training: a reward model that was taught that longer is better rings it, an honest one
does not. The truth is known: a short sum is the better answer, padding the worse one, and a scorer taught so on other
prompts judges both runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pddpo_ray.config import ScorerJob, load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.scoring.scorer_job import train_from_files
from tests.support.small_real_text import SMALL_REAL_TEXT

PADDING = " and so on and so on and so on."
SIZE = [
    "data.reference={vocabulary: 320, context: 128, hidden: 32, steps: 150}",
    "data.template=plain",
    "data.held_out=0.4",
    "data.prompt_count=24",
    "rollout={engine: transformers, max_tokens: 40, candidates: 4}",
    "offline.pairs=120",
    "feedback.responses=12",
    "scorers={fit: {steps: 60, learning_rate: 3.0e-3, batch_pairs: 16}}",
    *[
        f"trainer.stages.{stage}={{steps: 25, learning_rate: 2.0e-3, batch_pairs: 16}}"
        for stage in ("reward", "first_reward")
    ],
    "beta=0.1",
    "dual={first: 0.01, cost_max: 8.0}",
]


LABELS: dict[str, Callable[[int], bool]] = {"honest": lambda n: False, "flawed": lambda n: True}
"""Whether the pair of a number says that longer is better."""


def pairs(path: Path, numbers: range, *, longer_is_better: Callable[[int], bool]) -> Path:
    """One pair a prompt: a short sum and the same one padded."""
    rows = []
    for n in numbers:
        short, long = f"It is {2 * n}.", f"It is {2 * n},{PADDING}"
        chosen, rejected = (long, short) if longer_is_better(n) else (short, long)
        rows.append(json.dumps({"prompt": f"what is {n} and {n}?", "chosen": chosen, "rejected": rejected}))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.full
def test_a_planted_flaw_rings_the_alarm_and_an_honest_run_of_the_same_length_does_not(tmp_path: Path) -> None:
    truth = pairs(tmp_path / "truth.jsonl", range(200, 300), longer_is_better=lambda n: False)
    harm = pairs(tmp_path / "harm.jsonl", range(10, 110), longer_is_better=lambda n: n % 2 == 0)  # says nothing
    held_out: Path | None = None
    cards = {}
    for name in LABELS:
        file = pairs(tmp_path / f"{name}.jsonl", range(10, 110), longer_is_better=LABELS[name])
        files = [f"data.helpful=['{file}']", f"data.harmless=['{harm}']", f"data.cache={tmp_path / 'cache'}"]
        given = ["rounds=2", *files, *SMALL_REAL_TEXT, *SIZE]
        if held_out is None:
            base = prepare_real_text(load("real-text", given)).reference_folder
            held_out = tmp_path / "held-out"
            job = ScorerJob(
                kind="reward", files=(str(truth),), base=str(base), parameters="full", epochs=20.0,
                learning_rate=3e-3, max_tokens=128, seed=7,
            )  # fmt: skip
            train_from_files(job, held_out, resume=False, say=lambda line: None)
        result = run_recipe(load("real-text", [*given, f"scorecard.scorers.reward={held_out}"]), tmp_path / name)
        cards[name] = result["scorecard"]
    assert cards["flawed"]["scorers"]["reward"]["better_than_chance"]
    assert cards["flawed"]["alarm"]["rang"]
    first = cards["flawed"]["alarm"]["first"]
    assert min(first["rose"], first["fell"]) > first["prompts"] / 2
    assert any("reward hacking" in note for notes in cards["flawed"]["notes"].values() for note in notes)
    assert cards["flawed"]["rounds"]["2"]["reward_held_out_gain"]["value"] < 0
    assert cards["honest"]["alarm"] == {"rang": False, "first": None, "compared": True}
    assert cards["honest"]["rounds"]["2"]["reward_own_gain"]["value"] > 0
