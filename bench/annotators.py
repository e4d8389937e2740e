"""C12: how long simulated people take for a round's questions through the queue, against the same work with no waiting.

The queue is the real one on SQLite; only its clock is simulated, so hours pass in seconds. People behave as the page
does: one question on the screen, the next one fetched in advance, and another try when there was none. What a person
needs for a question is drawn once, lognormal, whoever is asked when. The batches are those of the recipe
`text-world-people`, both open from the beginning as in a run: safety labels by different people, and pairs.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.ratio import Ratio, of_pairs
from pddpo_ray.annotation.people.accounts import People, Person, Role
from pddpo_ray.annotation.queue.answer_forms import PAIR_FIELDS
from pddpo_ray.annotation.queue.answers import Answers, Submission
from pddpo_ray.annotation.queue.assignment import Lease, Leases
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal import Journal
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question

MEDIAN_S, SIGMA = 20.0, 0.8
"""Of the lognormal time for an answer; the mean is 27.5 s."""
POLL_S = 1.0
"""How often the run looks whether a batch is complete (`annotation.queue_labeller.Waiting`)."""


@dataclass(frozen=True)
class Round:
    """A round's questions and who answers them."""

    people: int = 20
    answers: int = 32
    labels_each: int = 8
    pairs: int = 432
    fetched_ahead: bool = True
    """Whether the page takes the next question while the person still thinks about this one, as it does."""

    @property
    def labels(self) -> int:
        return self.answers * self.labels_each + self.pairs


def run(repeats: int = 5, asked: Round | None = None) -> list[Ratio]:
    """Seconds of the ideal schedule over those of the queue; and the same with one question in a person's hands."""
    asked = asked or Round()
    # the goal is at most 1.15 times the ideal
    page = against_ideal("C12", "", asked, repeats, floor=1 / 1.15)
    single = replace(asked, fetched_ahead=False)
    return [page, against_ideal("C12-single", ", nothing fetched ahead", single, repeats)]


def against_ideal(name: str, how: str, asked: Round, repeats: int, floor: float | None = None) -> Ratio:
    """One way to hand out questions, each repeat with other people; the details say when each batch was complete."""
    rounds = [simulated(asked, seed) for seed in range(repeats)]
    measured = [(ideal, max(complete.values())) for ideal, complete in rounds]
    details = {"queue / ideal": float(np.median([achieved / ideal for ideal, achieved in measured]))}
    for purpose, _, _, _ in batches(asked):
        details[f"{purpose} complete, s"] = float(np.median([complete[purpose] for _, complete in rounds]))
    what = f"{asked.labels} labels by {asked.people} people{how}: ideal makespan / that of the queue"
    return of_pairs(name, what, measured, floor=floor, details=details)


def simulated(asked: Round, seed: int) -> tuple[float, dict[str, float]]:
    """Ideal seconds of a round, and after how many seconds each of its batches was complete.

    Ideal: the work that was done, spread evenly over all people without a pause; at least the longest single answer.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal.open(Path(folder) / "journal.sqlite", "bench", create={}) as journal,
    ):
        office = Office(journal, asked, seed)
        complete = office.finish(batches(asked))
    if len(office.spent) != asked.labels:
        raise RuntimeError(f"{len(office.spent)} answers for {asked.labels} wanted labels: nobody may work for nothing")
    return max(sum(office.spent) / asked.people, max(office.spent)), complete


Batch = tuple[str, list[Question], int, int]
"""Purpose, questions, labels each, priority."""


def batches(asked: Round) -> list[Batch]:
    """What is asked, in the order of opening."""
    provenance = {"policy_version": 2, "second_policy_version": 2}
    safety = [Question("safety", f"a{i}", "", f"answer {i}", None, provenance) for i in range(asked.answers)]
    pairs = [Question("pair", f"p{i}", "", f"one {i}", f"two {i}", provenance) for i in range(asked.pairs)]
    return [("safety", safety, asked.labels_each, 1), ("compare", pairs, 1, 0)]


@dataclass
class Page:
    """What a person's browser holds, and how fast the person is."""

    person: Person
    pace: np.random.Generator
    task: Lease | None = None
    ahead: Lease | None = None


class Office:
    """People in front of the queue, and the clock that they and the queue go by. Times in seconds."""

    def __init__(self, journal: Journal, asked: Round, seed: int) -> None:
        self.now = 0.0
        self._fetched_ahead = asked.fetched_ahead
        self.spent: list[float] = []
        store = Store(journal.engine, journal.run_id, lambda: round(self.now * 1000))
        rules = Rules(gold_rate=0.0, seed=seed)
        self._leases, self._answers, self._rounds = Leases(store, rules), Answers(store, rules), Rounds(store, rules)
        accounts = People(store)
        self._pages = [
            Page(accounts.create(f"p{number}", Role.ANNOTATOR, by="bench", daily_cap=100_000)[0], pace)
            for number, pace in enumerate(np.random.default_rng(seed).spawn(asked.people))
        ]
        # (when, tie, who): the person finishes the question on the screen, or looks again if there is none
        self._next = [(0.0, number, page) for number, page in enumerate(self._pages)]
        self._ties = asked.people

    def finish(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Opens all batches and lets people work until the run sees that they are complete. -> when each was, s"""
        waiting = {
            purpose: self._rounds.open(1, purpose, questions, labels_each=labels_each, priority=priority).id
            for purpose, questions, labels_each, priority in batches
        }
        complete: dict[str, float] = {}
        look = self.now + POLL_S
        while waiting:
            if self._next[0][0] <= look:
                self.now, _, page = heapq.heappop(self._next)
                self._turn(page)
                continue
            self.now, look = look, look + POLL_S
            for purpose in [purpose for purpose, id_ in waiting.items() if self._rounds.status(id_).complete]:
                self._rounds.freeze(waiting.pop(purpose))
                complete[purpose] = self.now
        return complete

    def _turn(self, page: Page) -> None:
        """One person answers what is on the screen, sees the next question and fetches one more."""
        if page.task is not None:
            self._answer(page, page.task)
        page.task, page.ahead = page.ahead, None
        if page.task is None:
            found = self._leases.lease(page.person)
            if not isinstance(found, Lease):
                return self._later(page, found.retry_s)
            page.task = found
        if self._fetched_ahead:
            ahead = self._leases.lease(page.person, [page.task.id])
            page.ahead = ahead if isinstance(ahead, Lease) else None
        self.spent.append(float(page.pace.lognormal(np.log(MEDIAN_S), SIGMA)))
        self._later(page, self.spent[-1])

    def _answer(self, page: Page, task: Lease) -> None:
        given = {"safety": "safe"}
        if task.kind == "pair":
            given = dict(zip(PAIR_FIELDS, ("left", "right", "safe", "unsafe"), strict=True))
        self._answers.answer(page.person, f"key-{task.id}", task.id, Submission("label", given, revealed=True))

    def _later(self, page: Page, seconds: float) -> None:
        self._ties += 1
        heapq.heappush(self._next, (self.now + seconds, self._ties, page))
