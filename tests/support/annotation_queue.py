"""A queue over a fresh database, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, insert

from pddpo_ray.annotation.people.accounts import People as Accounts
from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answers import Answers
from pddpo_ray.annotation.queue.assignment import Leases
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.queue_labeller import QueueLabeller, Waiting
from pddpo_ray.journal.schema import run
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.people import Overlap, People, RiskOf
from pddpo_ray.parts.questions import Question

RULES = Rules(lease_s=900, undo_s=600, gold_rate=0.0)


@dataclass
class FreshQueue:
    """The queue of a run. `now_ms` is what its clock shows."""

    engine: Engine
    rules: Rules = RULES
    now_ms: int = 1_700_000_000_000
    store: Store = field(init=False)
    rounds: Rounds = field(init=False)
    leases: Leases = field(init=False)
    answers: Answers = field(init=False)
    people: Accounts = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.engine, "demo", lambda: self.now_ms)
        self.rounds = Rounds(self.store, self.rules)
        self.leases = Leases(self.store, self.rules)
        self.answers = Answers(self.store, self.rules)
        self.people = Accounts(self.store)

    def person(self, handle: str, role: Role = Role.ANNOTATOR, daily_cap: int = 10_000) -> Person:
        return self.people.create(handle, role, by="test", daily_cap=daily_cap, harmful_cap=daily_cap)[0]

    def wait(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


def people_of(
    queue: FreshQueue,
    waiting: Waiting,
    round_: int = 2,
    *,
    overlap: Overlap | None = None,
    risk_of: RiskOf | None = None,
    **settings: Any,
) -> People:
    """People as a run asks them in its round through this queue."""
    reached = QueueLabeller(queue.engine, "demo", lambda: round_, queue.rules, waiting, **settings)
    return People(reached, lambda: round_, overlap=overlap, risk_of=risk_of)


def expire(leases: Leases) -> int:
    """Takes questions back from people whose time ran out, as the next request for one does. Returns how many."""
    return leases._store.write(leases._take_back)


def create_run(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(insert(run).values(id="demo", recipe={}, fixed_settings={}, created_ms=0))


def safety_questions(count: int) -> list[Question]:
    return [
        Question("safety", f"r{i}", f"prompt {i}", f"answer {i}", provenance={"policy_version": 2}, risk=0.0)
        for i in range(count)
    ]


def pair_questions(count: int) -> list[Question]:
    provenance = {"policy_version": 2, "second_policy_version": 0}
    return [
        Question("pair", f"p{i}", f"prompt {i}", f"one {i}", f"two {i}", provenance=provenance, risk=0.0)
        for i in range(count)
    ]
