"""The reward files of docs/integrations.md for verl, OpenRLHF and SkyRL, as they stand, but for the Ray actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import limit_controller
from pddpo_ray.integrations.answer_scores import AnswerScores
from tests.support.tutorial_page import blocks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder; the multipliers live in this process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.yaml").write_text("limits:\n  length: {mean: {rule: words}, at_most: 3, bounds: [0, 10]}\n")

    def here(limits: str, *, journal: str, answers_a_step: int) -> AnswerScores:
        assert answers_a_step == 1024
        return AnswerScores(limits, journal=Path(journal), answers_a_step=answers_a_step)

    monkeypatch.setattr(limit_controller, "SharedLimits", here)
    return tmp_path


def script(trainer: str) -> dict[str, Any]:
    """What the page's file for a trainer defines."""
    (text,) = [one for one in blocks("integrations.md", "py") if f"integrations.{trainer} import" in one]
    told: dict[str, Any] = {}
    exec(compile(text, "integrations.md", "exec"), told)
    return told


def test_the_file_for_verl_scores_an_answer(folder: Path) -> None:
    found = script("verl")["compute_score"](
        "pans", "soak it in 4 litres", "4", {"index": 0, "split": "train", "question": "How?"}
    )
    assert (found["score"], found["limit/length"]) == (1.0, 5.0)
    assert (folder / "out" / "limits.jsonl").is_file()


def test_the_file_for_openrlhf_scores_a_batch(folder: Path) -> None:
    found = script("openrlhf")["reward_func"](["How?soak it", "How?in 4"], ["How?", "How?"], ["4", "4"])
    assert found["rewards"].tolist() == [0.0, 1.0]
    assert found["extra_logs"]["limit/length"].tolist() == [2.0, 2.0]


def test_the_lines_for_skyrl_make_an_environment(folder: Path) -> None:
    gym = pytest.importorskip("skyrl_gym", reason="SkyRL's skyrl-gym is not installed here: make trainers")
    registry = pytest.importorskip("skyrl_gym.envs.registration")
    script("skyrl")
    try:
        extras = {"reward_spec": {"ground_truth": "4"}, "split": "train"}
        env = gym.make("limited-gsm8k", env_config=None, extras=extras)
        env.init([{"role": "user", "content": "How many?"}])
        assert env.step("two and two are #### 4")["reward"] == 1.0
    finally:
        registry.deregister("limited-gsm8k")
