"""What people read before their first question, and who agreed to which text."""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, insert, select

from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.journal.annotation_schema import consent
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store

TEXT = "\n".join(
    [
        "You will read answers that a language model wrote. Some may be unpleasant, wrong or harmful: finding those is"
        " the purpose of this work.",
        "",
        "- Texts, the prompt too, are blurred until you ask for them.",
        "- You may skip anything. It costs you nothing, and nobody asks why.",
        "- Take a break when you want one. You will be reminded every half hour.",
        "- If you would rather not see harmful texts, tell the lead: you then get only questions known to be mild.",
        "",
    ]
)
VERSION = hashlib.sha256(TEXT.encode()).hexdigest()[:12]
"""Another text is another version, and is agreed to anew."""


class Consents:
    """Who agreed to the notice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def given(self, person_id: str) -> bool:
        """Whether the person agreed to the present text."""
        query = select(consent.c.at_ms).where(consent.c.annotator == person_id, consent.c.version == VERSION)
        with reading(self._store.engine) as connection:
            return connection.execute(query).first() is not None

    def give(self, person_id: str, version: str) -> None:
        """Records that the person agreed to the present text; again changes nothing. Raises QueueError (conflict) for
        another version."""
        if version != VERSION:
            raise QueueError(Problem.CONFLICT, "the notice has changed: read it again")

        def add(connection: Connection) -> None:
            query = select(consent.c.at_ms).where(consent.c.annotator == person_id, consent.c.version == version)
            if connection.execute(query).first() is None:
                row = {"annotator": person_id, "version": version, "text": TEXT, "at_ms": self._store.clock()}
                connection.execute(insert(consent).values(**row))
                record_event(connection, self._store.clock(), person_id, "consent.give", person_id, version=version)

        self._store.write(add)

    def demand(self, person_id: str) -> None:
        """Raises QueueError (consent) for who has not agreed."""
        if not self.given(person_id):
            raise QueueError(Problem.CONSENT, "read the notice and agree to it first")
