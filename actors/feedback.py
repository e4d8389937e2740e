"""A labeller as a Ray actor: a world's truth or a scoring model in a process of its own.

Labels follow from the items and a seed, so a lost process is simply asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray

from actors.calls import ask_again, wait_for_actor
from actors.placement import beside_driver
from pddpo_ray.parts import Labeller
from pddpo_ray.records import LabelledPair, Pair, Response, SafetyLabels

MakeLabeller = Callable[[], Labeller]


class FeedbackActor:
    """One labeller."""

    def __init__(self, make_labeller: MakeLabeller) -> None:
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
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._attempts = restarts + 1
        self._actor = (
            ray.remote(FeedbackActor)
            .options(
                num_cpus=0,
                num_gpus=gpus,
                max_restarts=restarts,
                max_task_retries=0,
                scheduling_strategy="DEFAULT" if gpus else beside_driver(),
            )
            .remote(make_labeller)
        )

    def wait_ready(self) -> None:
        wait_for_actor(self._actor.ready.remote(), deadline_s=self._start_deadline_s, who=f"labeller {self.name}")

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        labels: list[SafetyLabels] = self._call(
            "safety", items, labels_each, seed, what=f"{len(items)} x {labels_each} safety labels"
        )
        return labels

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        labels: list[LabelledPair] = self._call("compare", pairs, seed, what=f"{len(pairs)} comparisons")
        return labels

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
            who=f"labeller {self.name}",
            what=what,
        )
