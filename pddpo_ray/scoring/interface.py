"""What a scorer is. Rewards and costs are in logits: a difference of 1 is odds of e in a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pddpo_ray.records import Array, Message, Response

TextPair = tuple[str, str]
"""(prompt, answer)"""
AskedText = tuple[str | Sequence[Message], str]
"""(question or the turns of a conversation, answer)"""


class AnswerScorer(Protocol):
    """One number per answer: a reward model's, or a cost model's with its zero at the safety boundary."""

    @property
    def name(self) -> str: ...

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        """Scores of (prompt, answer) texts, in order. -> [n] float64"""
        ...

    def score(self, responses: Sequence[Response]) -> Array:
        """The same for answers of a run, whose token ids are used where the scorer shares their tokenizer. -> [n]"""
        ...


@dataclass(frozen=True)
class ModelScorer:
    """Reward and cost models side by side; satisfies `Scorer`."""

    reward: AnswerScorer
    cost: AnswerScorer

    def __call__(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        return self.reward.score(responses), self.cost.score(responses)
