"""Labellers and scorers as Ray actors: a world's truth, a judge or a score model, each in a process of its own.

Labels follow from the items and a seed, scores from the texts alone, so a lost process is simply asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray import cloudpickle

from actors.calls import Answerer, AnsweringActor, Handle
from actors.placement import beside_driver
from pddpo_ray.contracts import Labeller
from pddpo_ray.records import Array, LabelledPair, Pair, Response, SafetyLabels
from pddpo_ray.scoring.interface import AnswerScorer, TextPair
from pddpo_ray.training.device import device_for, loaded_on, release_cached_memory

MakeLabeller = Callable[[], Labeller]
SafetyQuestion = tuple[list[Response], int, int]
"""Items, labels each, seed."""
RESTARTS = 3
PIECE = 64 * 2**10
"""Bytes. Ray copies arguments below 100 KiB into the description of an actor, from which it is started again; a larger
one is an object that a restart may no longer find."""


class FeedbackActor(AnsweringActor):
    """One labeller; `pieces` is its pickled maker, cut up."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        make_labeller: MakeLabeller = cloudpickle.loads(b"".join(pieces))
        self._labeller = make_labeller()

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        return self._labeller.safety(items, labels_each, seed)

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return self._labeller.compare(pairs, seed)


class FeedbackHandle(Handle[FeedbackActor]):
    """A labeller in another process; satisfies `pddpo_ray.contracts.Labeller` and `EarlyLabeller`.

    Raises RunError that names the labeller when its deadline passes or its process was lost too often.
    """

    def __init__(
        self,
        name: str,
        make_labeller: MakeLabeller,
        *,
        deadline_s: float,
        start_deadline_s: float = 300.0,
    ) -> None:
        self.name = name
        maker = cloudpickle.dumps(make_labeller)
        actor = (
            ray.remote(FeedbackActor)
            .options(num_cpus=0, max_restarts=-1, max_task_retries=0, scheduling_strategy=beside_driver())
            .remote(*(maker[start : start + PIECE] for start in range(0, len(maker), PIECE)))
        )
        self._answerer = Answerer(actor, f"labeller {name}", RESTARTS, deadline_s, start_deadline_s)
        self._open_request: tuple[SafetyQuestion, Any] | None = None

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None:
        """The actor labels while the run continues; `safety` with the same arguments takes its answer."""
        question = (list(items), labels_each, seed)
        self._open_request = question, self._answerer.begin(FeedbackActor.safety, *question)

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        question = (list(items), labels_each, seed)
        begun = self._open_request[1] if self._open_request is not None and self._open_request[0] == question else None
        self._open_request = None
        task = f"{len(items)} x {labels_each} safety labels"
        return self._answerer.collect(task, begun, FeedbackActor.safety, *question)

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return self._answerer.ask(f"{len(pairs)} comparisons", FeedbackActor.compare, pairs, seed)


MakeScorer = Callable[[], AnswerScorer]


class ScorerActor(AnsweringActor):
    """One score model. `in_turns`: it is on its GPU only while it scores, and in the host's memory otherwise."""

    def __init__(self, make_scorer: MakeScorer, in_turns: bool) -> None:
        super().__init__()
        import torch

        torch.set_num_threads(1)
        with loaded_on("cpu" if in_turns else "auto"):
            self._scorer = make_scorer()
        self._offloaded_model = getattr(self._scorer, "model", None) if in_turns else None

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        with self._turn():
            return self._scorer.score_texts(texts)

    def score(self, responses: Sequence[Response]) -> Array:
        with self._turn():
            return self._scorer.score(responses)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            if self._offloaded_model is not None:
                self._offloaded_model.to(device_for())
            yield
        finally:
            if self._offloaded_model is not None:
                self._offloaded_model.to("cpu")
            release_cached_memory()


class ScorerHandle(Handle[ScorerActor]):
    """A score model in another process; satisfies `pddpo_ray.scoring.interface.AnswerScorer`.

    `__init__` only starts it. `take_turn` empties the GPU for a scorer that shares it: its model is there only while it
    scores. Raises RunError that names the scorer when its deadline passes or its process was lost too often.
    """

    def __init__(
        self,
        name: str,
        make_scorer: MakeScorer,
        *,
        deadline_s: float,
        start_deadline_s: float = 300.0,
        gpus: float = 0.0,
        take_turn: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._take_turn = take_turn
        actor = (
            ray.remote(ScorerActor)
            .options(num_cpus=0, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
            .remote(make_scorer, take_turn is not None)
        )
        self._answerer = Answerer(actor, f"scorer {name}", RESTARTS, deadline_s, start_deadline_s)

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        if self._take_turn is not None and texts:
            self._take_turn()
        return self._answerer.ask(f"scores of {len(texts)} texts", ScorerActor.score_texts, list(texts))

    def score(self, responses: Sequence[Response]) -> Array:
        if self._take_turn is not None and responses:
            self._take_turn()
        return self._answerer.ask(f"scores of {len(responses)} answers", ScorerActor.score, list(responses))
