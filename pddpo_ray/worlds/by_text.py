"""A world's truth looked up by text, for simulated annotators: they see what people see, words on a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pddpo_ray.worlds.oracle import Array


@dataclass(frozen=True)
class TruthByText:
    """Reward and cost of an answer to a prompt, both given as text. Unknown text is the worst there is."""

    prompts: Mapping[str, int]
    answers: Mapping[str, int]
    reward_table: Array
    """[X, Y] or [X, Y + 1]"""
    cost_table: Array
    worst: tuple[float, float]
    """Reward and cost of text that the world does not know."""

    @classmethod
    def of(
        cls, prompts: Sequence[str], answers: Sequence[str], reward: Array, cost: Array, worst: tuple[float, float]
    ) -> TruthByText:
        """Tables [X, Y...] whose rows are `prompts` and whose first columns are `answers`."""
        indices = {text: index for index, text in enumerate(prompts)}
        return cls(indices, {text: index for index, text in enumerate(answers)}, reward, cost, worst)

    def scores(self, prompt: str, answer: str) -> tuple[float, float]:
        """(reward, cost)"""
        cell = (self.prompts.get(prompt.strip()), self.answers.get(answer.strip()))
        if cell[0] is None or cell[1] is None:
            return self.worst
        return float(self.reward_table[cell]), float(self.cost_table[cell])
