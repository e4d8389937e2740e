"""A labeller as a Ray actor: a world's truth or a scoring model in a process of its own.

Labels follow from the items and a seed, so a lost process is simply asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ray
from ray import cloudpickle

from actors.calls import Answerer
from actors.placement import beside_driver
from pddpo_ray.parts import Labeller
from pddpo_ray.records import LabelledPair, Pair, Response, SafetyLabels

MakeLabeller = Callable[[], Labeller]
PIECE = 64 * 2**10
"""Bytes. Ray copies arguments below 100 KiB into the description of an actor, from which it is started again; a larger
one is an object that a restart may no longer find."""


class FeedbackActor:
    """One labeller; `pieces` are those of its pickled maker."""

    def __init__(self, *pieces: bytes) -> None:
        make_labeller: MakeLabeller = cloudpickle.loads(b"".join(pieces))
        self._labeller = make_labeller()

    def ready(self) -> bool:
        return True

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        return self._labeller.safety(items, labels_each, seed)

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return self._labeller.compare(pairs, seed)


class FeedbackHandle:
    """A labeller in another process; satisfies `pddpo_ray.parts.Labeller`.

    Raises RunError that names the labeller when its deadline passes or its process was lost too often.
    """

    def __init__(
        self,
        name: str,
        make_labeller: MakeLabeller,
        *,
        deadline_s: float,
        start_deadline_s: float = 300.0,
        gpus: float = 0.0,
        restarts: int = 3,
    ) -> None:
        self.name = name
        pickled = cloudpickle.dumps(make_labeller)
        actor = (
            ray.remote(FeedbackActor)
            .options(
                num_cpus=0,
                num_gpus=gpus,
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy="DEFAULT" if gpus else beside_driver(),
            )
            .remote(*(pickled[start : start + PIECE] for start in range(0, len(pickled), PIECE)))
        )
        self._answerer = Answerer(actor, f"labeller {name}", restarts, deadline_s, start_deadline_s)

    def wait_ready(self) -> None:
        self._answerer.wait_ready()

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        labels: list[SafetyLabels] = self._answerer.ask(
            "safety", items, labels_each, seed, what=f"{len(items)} x {labels_each} safety labels"
        )
        return labels

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        labels: list[LabelledPair] = self._answerer.ask("compare", pairs, seed, what=f"{len(pairs)} comparisons")
        return labels

    def close(self) -> None:
        self._answerer.close()
