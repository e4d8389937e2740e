"""The queue against a model of it in a few lines, over random histories of leases, answers, undo, expiry and freezing.

The model knows nothing of tables: per question a set of people who sit, a set who hold it, a list of those who came
too late, and a count of refusals.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.queue_rules import Outcome, QueueError
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.journal.database import open_database
from tests.support.annotation_queue import FreshQueue, expire, safety_questions

QUESTIONS, PEOPLE, NEEDED = 3, 5, 2
people = st.integers(0, PEOPLE - 1)


@dataclass
class Asked:
    """The model of one question."""

    sitting: list[int] = field(default_factory=list)
    holding: dict[int, int] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    done: dict[int, Outcome] = field(default_factory=dict)
    refusals: int = 0

    @property
    def room(self) -> int:
        return NEEDED - len(self.sitting) - len(self.holding)

    def give_back(self, person: int) -> None:
        del self.holding[person]
        self.promote()

    def promote(self) -> None:
        while self.room > 0 and self.late:
            self.sitting.append(self.late.pop(0))


class QueueMachine(RuleBasedStateMachine):
    template: Path

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()
        shutil.copy(self.template, Path(self.folder) / "journal.sqlite")
        self.queue = FreshQueue(open_database(Path(self.folder) / "journal.sqlite"))
        self.people: list[Person] = [self.queue.person(f"p{n}") for n in range(PEOPLE)]
        self.round = self.queue.rounds.open(1, "safety", safety_questions(QUESTIONS), labels_each=NEEDED).id
        self.model = [Asked() for _ in range(QUESTIONS)]
        self.leases: dict[tuple[int, int], str] = {}
        self.keys = 0
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.frozen: list[str] | None = None

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.engine.dispose()
            shutil.rmtree(self.folder)

    def _expire(self) -> None:
        for asked in self.model:
            overdue = [person for person, end in asked.holding.items() if end <= self.queue.now_ms]
            for person in overdue:
                asked.give_back(person)

    @rule(person=people)
    def lease(self, person: int) -> None:
        self._expire()
        mine = [number for number, asked in enumerate(self.model) if person in asked.holding]
        found = self.queue.leases.lease(self.people[person], {self.leases[person, number] for number in mine})
        if isinstance(found, Lease):
            number = int(found.prompt.split()[1])
            asked = self.model[number]
            assert self.frozen is None
            assert asked.room > 0
            assert asked.refusals < self.queue.rules.refusals_max
            assert person not in asked.holding
            assert person not in asked.done
            asked.holding[person] = self.queue.now_ms + 900_000
            self.leases[person, number] = found.id
        elif self.frozen is None and len(mine) < self.queue.rules.leases_each:
            free = [
                asked
                for asked in self.model
                if asked.room > 0
                and asked.refusals < self.queue.rules.refusals_max
                and person not in asked.done
                and person not in asked.holding
            ]
            assert free == [], "there was a question for this person"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=st.sampled_from(["label", "label", "label", "skip"]))
    def answer(self, data: st.DataObject, kind: str) -> None:
        person, number = data.draw(st.sampled_from(sorted(self.leases)))
        self.keys += 1
        key, asked = f"k{self.keys}", self.model[number]
        submission = Submission("label", {"safety": "safe"}) if kind == "label" else Submission("skip", reason="other")
        if person in asked.done:
            with pytest.raises(QueueError, match="already"):
                self.queue.answers.answer(self.people[person], key, self.leases[person, number], submission)
            return
        asked.holding.pop(person, None)
        if kind == "skip":
            expected = Outcome.REFUSED
            asked.refusals += 1
        elif self.frozen is not None or asked.room <= 0:
            expected = Outcome.SURPLUS
            asked.late.append(person)
        else:
            expected = Outcome.COUNTED
            asked.sitting.append(person)
        asked.done[person] = expected
        receipt = self.queue.answers.answer(self.people[person], key, self.leases[person, number], submission)
        again = self.queue.answers.answer(self.people[person], key, self.leases[person, number], submission)
        assert (receipt.outcome, receipt.repeated, again.repeated) == (expected, False, True)
        self.acknowledged[key] = (person, number)

    @precondition(lambda self: self.leases and self.frozen is None)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        person, number = data.draw(st.sampled_from(sorted(self.leases)))
        asked = self.model[number]
        if person not in asked.done:
            with pytest.raises(QueueError, match="no answer of yours"):
                self.queue.answers.undo(self.people[person], self.leases[person, number])
            return
        try:
            self.queue.answers.undo(self.people[person], self.leases[person, number])
        except QueueError as error:
            assert "minutes" in str(error)  # noqa: PT017
            return
        outcome = asked.done.pop(person)
        if person in asked.sitting:
            asked.sitting.remove(person)
        if person in asked.late:
            asked.late.remove(person)
        asked.refusals -= outcome is Outcome.REFUSED
        if asked.room > 0:
            asked.holding[person] = self.queue.now_ms + 900_000

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        person, number = data.draw(st.sampled_from(sorted(self.leases)))
        self.queue.leases.release(self.people[person], self.leases[person, number])
        if person in self.model[number].holding:
            self.model[number].give_back(person)

    @rule(seconds=st.sampled_from([60, 500, 1000]))
    def wait(self, seconds: int) -> None:
        self.queue.wait(seconds)

    @rule()
    def expire(self) -> None:
        self._expire()
        expire(self.queue.leases)

    @precondition(lambda self: self.frozen is None)
    @rule(accept=st.booleans())
    def freeze(self, accept: bool) -> None:
        complete = all(len(asked.sitting) == NEEDED for asked in self.model)
        if not complete and not accept:
            with pytest.raises(QueueError, match="missing"):
                self.queue.rounds.freeze(self.round)
            return
        self.frozen = [entry.key for entry in self.queue.rounds.freeze(self.round, accept_missing=accept).answers]
        for asked in self.model:
            asked.holding.clear()

    @invariant()
    def the_books_balance(self) -> None:
        if hasattr(self, "queue"):
            assert imbalances(self.queue.store) == []

    @invariant()
    def those_sit_whom_the_model_seats(self) -> None:
        if not hasattr(self, "queue"):
            return
        names = {person.id: number for number, person in enumerate(self.people)}
        seated: dict[int, set[int]] = {number: set() for number in range(QUESTIONS)}
        for entry in self.queue.rounds.counted(self.round):
            seated[entry.position].add(names[entry.annotator])
        assert seated == {number: set(asked.sitting) for number, asked in enumerate(self.model)}

    @invariant()
    def no_acknowledged_answer_is_lost(self) -> None:
        if hasattr(self, "queue"):
            for key, (person, _) in list(self.acknowledged.items())[-3:]:
                assert self.queue.answers.receipt(self.people[person], key).key == key

    @invariant()
    def a_snapshot_never_changes(self) -> None:
        if getattr(self, "frozen", None) is not None:
            snapshot = self.queue.rounds.snapshot(self.round)
            assert snapshot is not None
            assert [entry.key for entry in snapshot.answers] == self.frozen


@pytest.mark.slow
def test_every_history_of_the_queue_agrees_with_the_model(empty_journal: Path) -> None:
    machine = type("Machine", (QueueMachine,), {"template": empty_journal})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),  # shrinking costs minutes; histories are short enough to read
        ),
    )
