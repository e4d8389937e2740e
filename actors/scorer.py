"""A reward or cost model as a Ray actor: the model lives there, labels are drawn from its scores by whoever asks.

Scores follow from the texts alone, so a lost process is simply asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray

from actors.calls import ask_again, wait_for_actor
from pddpo_ray.records import Response
from pddpo_ray.scoring.interface import AnswerScorer, Array, TextPair

MakeScorer = Callable[[], AnswerScorer]


class ScorerActor:
    """One score model."""

    def __init__(self, make_scorer: MakeScorer, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._scorer = make_scorer()

    def ready(self) -> bool:
        return True

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return self._scorer.score_texts(texts)

    def score(self, responses: Sequence[Response]) -> Array:
        return self._scorer.score(responses)


class ScorerHandle:
    """A score model in another process; satisfies `pddpo_ray.scoring.interface.AnswerScorer`.

    `__init__` only starts it. Raises RunError that names the scorer when its deadline passes or its process was lost
    too often.
    """

    def __init__(
        self,
        name: str,
        make_scorer: MakeScorer,
        *,
        deadline_s: float,
        start_deadline_s: float = 300.0,
        gpus: float = 0.0,
        threads: int = 1,
        restarts: int = 3,
    ) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._attempts = restarts + 1
        self._actor = (
            ray.remote(ScorerActor)
            .options(num_cpus=0, num_gpus=gpus, max_restarts=restarts, max_task_retries=0)
            .remote(make_scorer, threads)
        )

    def wait_ready(self) -> None:
        wait_for_actor(self._actor.ready.remote(), deadline_s=self._start_deadline_s, who=f"scorer {self.name}")

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        scores: Array = self._call("score_texts", list(texts), what=f"scores of {len(texts)} texts")
        return scores

    def score(self, responses: Sequence[Response]) -> Array:
        scores: Array = self._call("score", list(responses), what=f"scores of {len(responses)} answers")
        return scores

    def close(self) -> None:
        ray.kill(self._actor)

    def _call(self, method: str, *arguments: Any, what: str) -> Any:
        return ask_again(
            self._actor,
            method,
            arguments,
            attempts=self._attempts,
            deadline_s=self._deadline_s,
            start_deadline_s=self._start_deadline_s,
            who=f"scorer {self.name}",
            what=what,
        )
