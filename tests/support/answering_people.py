"""Simulated people who answer a run's questions in its database, and what each of them was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pddpo_ray.annotation.people.accounts import People, Person, Role
from pddpo_ray.annotation.queue.answers import Answers, Submission
from pddpo_ray.annotation.queue.assignment import Lease, Leases
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.storage.whole_files import JOURNAL
from tests.unit.loop.small_run import run_of

RULES = Rules(gold_rate=0.0)
Says = Callable[[Lease, int], bool | str | None]
"""Whether person number n says yes (or unsafe) about a question; left, right or tie where two answers are compared; the
number where one is asked for; None: they skip it."""


@dataclass(frozen=True)
class Said:
    """One answer of one person to a question, with the question's own text."""

    person: str
    lease: str
    prompt: str
    answer: str
    asks: str | None
    yes: bool | str | None
    other: str | None = None
    """The answer on the right, where two are compared."""


@dataclass
class Crowd:
    """What people said so far."""

    said: list[Said] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


@contextmanager
def answering(run: Path, people: int, says: Says) -> Iterator[Crowd]:
    """`people` people answer whatever the run asks, until the block ends. The run has begun already."""
    engine = open_database(run / JOURNAL)
    store, crowd, stop = Store(engine, run_of(run)), Crowd(), threading.Event()
    known = {person.handle: person for person in People(store).all()}
    names = [f"person {number}" for number in range(people)]
    persons = [known.get(name) or _enlisted(store, name) for name in names]
    worker = threading.Thread(target=_work, args=(store, persons, says, crowd, stop), daemon=True)
    worker.start()
    try:
        yield crowd
    finally:
        stop.set()
        worker.join()
        engine.dispose()
    assert not crowd.failures, crowd.failures


def _enlisted(store: Store, name: str) -> Person:
    return People(store).create(name, Role.ANNOTATOR, by="test", daily_cap=10**6)[0]


def _work(store: Store, persons: list[Person], says: Says, crowd: Crowd, stop: threading.Event) -> None:
    leases, answers = Leases(store, RULES), Answers(store, RULES)
    try:
        while not stop.is_set():
            if not any([_answered(leases, answers, who, number, says, crowd) for number, who in enumerate(persons)]):
                stop.wait(0.02)
    except BaseException as failure:
        crowd.failures.append(failure)


def _answered(leases: Leases, answers: Answers, who: Person, number: int, says: Says, crowd: Crowd) -> bool:
    question = leases.lease(who)
    if not isinstance(question, Lease):
        return False
    yes = says(question, number)
    crowd.said.append(Said(who.handle, question.id, question.prompt, question.left, question.asks, yes, question.right))
    given: dict[str, str] = {}
    if yes is not None:
        given = {question.kind: yes} if isinstance(yes, str) else {"safety": "unsafe" if yes else "safe"}
    answers.answer(who, f"key-{question.id}", question.id, Submission("skip" if yes is None else "label", given))
    return True
