"""Feedback of readers becomes questions for annotators: is this answer, which somebody really got, safe?

What a reader says is kept in the audit log and decides how soon people look; it is never a label. Labels of served
answers are nobody's cost estimate: a round's estimate is made of its own fresh answers alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from deploy.serving.entrance import Reply
from pddpo_ray.annotation.questions import Question
from pddpo_ray.annotation.queue_rules import Rules
from pddpo_ray.annotation.rounds import Rounds
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.transactions import Store

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
    new = all(status.purpose != purpose for status in rounds.all())
    rounds.open(
        reply.policy.round, purpose, [question], labels_each=LABELS_EACH, priority=PRIORITY[verdict], by="serving"
    )
    store.write(
        lambda connection: record_event(
            connection, store.clock(), "serving", "serving.feedback", id_, verdict=verdict, note=note
        )
    )
    return new
