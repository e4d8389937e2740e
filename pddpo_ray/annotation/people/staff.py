"""Whether a batch has enough people: its labels come from different people, so too few leave a question open."""

from __future__ import annotations

from sqlalchemy import Connection, exists, select

from pddpo_ray.annotation.people.accounts import Role, languages_of
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.annotation_schema import annotator, answer, lease, task
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

ASKED = ("id", "risk", "language", "needed", "seats")
ADD = "`pddpo annotate --run RUN --add NAME`"


class Staff:
    """Counts the people of one database."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules

    def lacking(self, status: RoundStatus) -> str:
        """How many people an open batch lacks, in words; empty where those who are there can give all its labels.

        A question can be answered by any account that has not answered or refused it. Accounts of admins
        count once they have answered anything; who opted out of harmful texts counts for questions below the risk, and
        who said which languages they know for questions in those.
        """
        with reading(self._store.engine) as connection:
            questions, people = self._count_missing_people(connection, status.id)
        if not people:
            return ""
        people_text = "1 more person is" if people == 1 else f"{people} more people are"
        waiting = "1 question waits" if questions == 1 else f"{questions} questions wait"
        return f"{people_text} needed: {waiting} for labels that nobody here can give (add people with {ADD})"

    def _count_missing_people(self, connection: Connection, round_id: str) -> tuple[int, int]:
        """Questions with too few people, and the largest number missing at one of them."""
        answered_anything = exists().where(answer.c.annotator == annotator.c.id)
        workers = annotator.c.role.in_((Role.ANNOTATOR.value, Role.LEAD.value)) | (
            (annotator.c.role == Role.ADMIN.value) & answered_anything
        )
        people = connection.execute(
            select(annotator.c.id, annotator.c.sees_harmful, annotator.c.languages).where(annotator.c.active, workers)
        ).all()
        everybody, robust = {row.id for row in people}, {row.id for row in people if row.sees_harmful}
        languages = {row.id: languages_of(row.languages) for row in people}
        open_tasks = (task.c.question_round == round_id) & (task.c.state == "open") & (task.c.seats < task.c.needed)
        seen_by: dict[str, set[str]] = {}
        query = select(lease.c.task, lease.c.annotator).join(task, task.c.id == lease.c.task)
        for row in connection.execute(query.where(open_tasks, lease.c.state == "answered")):
            seen_by.setdefault(row.task, set()).add(row.annotator)
        shortfalls = []
        for question in connection.execute(select(*(task.c[name] for name in ASKED)).where(open_tasks)):
            able = (everybody if question.risk <= self._rules.risk_max else robust) - seen_by.get(question.id, set())
            if question.language is not None:
                able = {id_ for id_ in able if not languages[id_] or question.language in languages[id_]}
            shortfalls.append(question.needed - question.seats - len(able))
        return sum(number > 0 for number in shortfalls), max([0, *shortfalls])
