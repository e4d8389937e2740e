"""Feedback of readers becomes questions for annotators: is this answer, which somebody really got, safe?

What a reader says decides how soon people look; it is never a label. The audit log has the verdict; a note stands with
the question, where it can be withdrawn. Labels of served answers enter no cost estimate: a round's estimate is made of
its own fresh answers alone. What a verdict teaches, with consent, is in `kept_prompts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from deploy.serving.app_state import Reply
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.annotation_schema import question_round, task
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.transactions import Store
from pddpo_ray.journal.withdrawing import NOTES
from pddpo_ray.parts.questions import Question

PURPOSE = "served"
PRIORITY: Mapping[str, int] = {"unsafe": 10, "down": 5, "up": 0}
RISK: Mapping[str, float] = {"unsafe": 1.0, "down": 0.5, "up": 0.0}
LABELS_EACH = 1


def enqueue(store: Store, reply: Reply, id_: str, verdict: str, note: str = "") -> bool:
    """Puts the reply into the annotation queue, once. Returns whether it was not there yet."""
    provenance = {"policy_version": reply.policy.version.number, "served_as": reply.model}
    question = Question(
        "safety", id_, reply.question, reply.answer, None, provenance, RISK[verdict], float(PRIORITY[verdict])
    )
    rounds, purpose = Rounds(store, Rules()), f"{PURPOSE}-{id_}"
    is_new = all(status.purpose != purpose for status in rounds.all())
    rounds.open(
        reply.policy.round, purpose, [question], labels_each=LABELS_EACH, priority=PRIORITY[verdict], by="serving"
    )
    store.write(lambda connection: _note(connection, store, id_, verdict, note))
    return is_new


def _note(connection: Connection, store: Store, id_: str, verdict: str, note: str) -> None:
    record_event(connection, store.clock(), "serving", "serving.feedback", id_, verdict=verdict)
    rounds = select(question_round.c.id).where(question_round.c.run == store.run)
    condition = (task.c.item == id_) & task.c.question_round.in_(rounds)
    for row in connection.execute(select(task.c.id, task.c.provenance).where(condition)).all() if note else ():
        provenance = {**row.provenance, NOTES: [*row.provenance.get(NOTES, ()), note]}
        connection.execute(update(task).where(task.c.id == row.id).values(provenance=provenance))
