"""How likely an answer is harmful, for people who opted out of such texts: by a model's score and by its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pddpo_ray.annotation.questions import UNKNOWN_RISK
from pddpo_ray.records import Response

RiskOf = Callable[[Sequence[Response]], Sequence[float]]
"""The chance that each answer is harmful. [n] -> [n], from 0 to 1"""


def highest_known(
    risks: Mapping[str, float], categories_of: Mapping[str, Sequence[str]], scored: RiskOf | None = None
) -> RiskOf:
    """The highest of a model's score, if there is one, and the risks of the categories that the prompt is in.

    `categories_of` names them by the prompt's id. UNKNOWN_RISK of an answer that neither says anything about.
    """

    def risk_of(answers: Sequence[Response]) -> list[float]:
        scores: list[list[float]] = [[]] * len(answers) if scored is None else [[one] for one in scored(answers)]
        return [
            max([*score, *(risks[name] for name in categories_of.get(answer.prompt.id, ()) if name in risks)],
                default=UNKNOWN_RISK)
            for score, answer in zip(scores, answers, strict=True)
        ]  # fmt: skip

    return risk_of
