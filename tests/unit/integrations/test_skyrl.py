"""Limits in SkyRL: the environment by hand, and one of SkyRL's own, made by its own registry, where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.integrations.answer_scores import AnswerScores, Asked, Scored
from pddpo_ray.integrations.skyrl import limited

LIMITS: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10]}}
LONG, SHORT = "one two three four five six seven eight", "one two"
ASKED = [{"role": "user", "content": "How?"}]


class Turns:
    """What SkyRL asks of an environment: an answer after `turns`, each of which earns the number that it began with."""

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        self.left, self.each = extras.get("turns", 1), extras["each"]

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        self.left -= 1
        return {"observations": [], "reward": self.each, "done": self.left == 0, "metadata": {}}

    def get_metrics(self) -> dict[str, Any]:
        return {"turns_left": self.left}


def owner(folder: Path, answers_a_step: int = 2) -> AnswerScores:
    return AnswerScores(LIMITS, journal=folder / "limits.jsonl", answers_a_step=answers_a_step)


def episode(environment: Any, answer: str, **extras: Any) -> Any:
    env = environment(env_config=None, extras=extras)
    env.init(ASKED)
    return env, env.step(answer)


def test_the_last_reward_is_the_score_under_the_limits(tmp_path: Path) -> None:
    """Words 8 and 2, rewards 1 and 3: means 5 and 2, spreads 3 and 1."""
    limits = owner(tmp_path)
    environment = limited(Turns, limits)
    assert environment.__name__ == "LimitedTurns"
    env, first = episode(environment, LONG, each=1.0)
    assert (first["reward"], first["done"]) == (1.0, True)
    assert env.get_metrics() == {
        "turns_left": 0,
        "helpful": 1.0,
        "limit/length": 8.0,
        "missing/length": 0.0,
        "multiplier/length": 0.0,
    }
    assert episode(environment, SHORT, each=3.0)[1]["reward"] == 3.0
    weight = limits.multipliers["length"]
    assert weight > 0
    assert episode(environment, LONG, each=4.0)[1]["reward"] == pytest.approx((4 - 2) / 1 - weight * (8 - 5) / 3)


def test_an_episode_of_several_turns_is_one_answer(tmp_path: Path) -> None:
    limits = owner(tmp_path, 9)
    env, first = episode(limited(Turns, limits), SHORT, each=2.0, turns=2)
    assert (first["reward"], first["done"], "helpful" in env.get_metrics()) == (0.0, False, False)
    assert env.step(LONG)["reward"] == 4.0, "both turns' rewards, before any spread is known"
    assert env.get_metrics()["limit/length"] == 8.0


def test_the_question_is_the_one_that_the_environment_asks_and_the_group_the_rows(tmp_path: Path) -> None:
    class Asks(Turns):
        def init(self, prompt: Any) -> Any:
            return [{"role": "system", "content": "Be brief."}, *prompt], {}

    seen: list[Asked] = []

    class Seen:
        def score(self, asked: Asked) -> Scored:
            seen.append(asked)
            return Scored([0.0], {}, {})

    episode(limited(Asks, Seen()), SHORT, each=1.0)
    assert (seen[0].prompts, seen[0].groups) == (["Be brief.\n\nHow?"], ["How?"])


def test_answers_of_another_split_move_nothing(tmp_path: Path) -> None:
    limits = owner(tmp_path, 1)
    episode(limited(Turns, limits), LONG, each=1.0, split="validation")
    assert limits.step == 0
    episode(limited(Turns, limits), LONG, each=1.0)
    assert limits.step == 1


def test_an_environment_of_skyrls_own_is_made_by_its_registry(tmp_path: Path) -> None:
    gym = pytest.importorskip("skyrl_gym", reason="SkyRL's skyrl-gym is not installed here")
    gsm8k = pytest.importorskip("skyrl_gym.envs.gsm8k.env")
    registry = pytest.importorskip("skyrl_gym.envs.registration")
    limits = owner(tmp_path)
    registry.register(id="limited-gsm8k", entry_point=limited(gsm8k.GSM8kEnv, limits))
    try:
        extras = {"reward_spec": {"ground_truth": "4"}, "split": "train"}
        rewards = []
        for answer in ("two and two are #### 4", "four it is and nothing else at all #### 5"):
            env = gym.make("limited-gsm8k", env_config=None, extras=extras)
            assert env.init(ASKED)[0] == ASKED
            rewards.append(env.step(answer)["reward"])
            assert set(env.get_metrics()) == {"helpful", "limit/length", "missing/length", "multiplier/length"}
            env.close()
        assert rewards == [1.0, 0.0]
        assert limits.step == 1
    finally:
        registry.deregister("limited-gsm8k")
