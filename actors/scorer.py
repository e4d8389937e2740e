"""A reward or cost model as a Ray actor: the model lives there, labels are drawn from its scores by whoever asks.

Scores follow from the texts alone, so a lost process is simply asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ray

from actors.calls import Answerer, AnsweringActor
from pddpo_ray.records import Response
from pddpo_ray.scoring.interface import AnswerScorer, Array, TextPair

MakeScorer = Callable[[], AnswerScorer]


class ScorerActor(AnsweringActor):
    """One score model."""

    def __init__(self, make_scorer: MakeScorer, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._scorer = make_scorer()

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
        actor = (
            ray.remote(ScorerActor)
            .options(num_cpus=0, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
            .remote(make_scorer, threads)
        )
        self._answerer: Answerer[ScorerActor] = Answerer(
            actor, f"scorer {name}", restarts, deadline_s, start_deadline_s
        )

    def wait_ready(self) -> None:
        self._answerer.wait_ready()

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return self._answerer.ask(f"scores of {len(texts)} texts", ScorerActor.score_texts, list(texts))

    def score(self, responses: Sequence[Response]) -> Array:
        return self._answerer.ask(f"scores of {len(responses)} answers", ScorerActor.score, list(responses))

    def close(self) -> None:
        self._answerer.close()
