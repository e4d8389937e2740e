"""The alarms of a released policy, one for each limit: their state between two starts, and what ringing does.

States stand in the audit log, so a restart keeps the earlier evidence; what was measured after the last
entry is forgotten, which says nothing about its values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select

from pddpo_ray.certificates.release_history import ALARM
from pddpo_ray.journal.annotation_schema import audit_event
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import Catalog, ServedPolicy
from pddpo_ray.theory.certificates.alarm import Alarm

MEASURED, RANG = "serving.measured", "serving.alarm"


@dataclass(frozen=True)
class Watched:
    """A policy, or the certified mixture, under one limit. `sha256`: the weights that it draws from, joined."""

    sha256: str
    limit: str


def released_weights(catalog: Catalog) -> str:
    """What `released` stands for: the hashes of its weights, joined; empty where nothing is released."""
    if catalog.released is not None:
        return catalog.policies[catalog.released].version.sha256
    name = catalog.released_mixture
    if name is None:
        return ""
    certificate = catalog.certificate_of(name, catalog.policies[catalog.rounds_of(name)[-1]])
    return "" if certificate is None else "+".join(certificate.sha256)


def answering_weights(catalog: Catalog, policy: ServedPolicy) -> str:
    """What an answer of `released` came from: as `released_weights`, or the round whose release is under way."""
    stage = catalog.stage
    staged = stage is not None and policy.round == stage.round
    return policy.version.sha256 if staged else released_weights(catalog)


class Alarms:
    """Reads and writes the states of one run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, watched: Watched, limit: float, level: float) -> Alarm:
        """The last state under this limit and level (both in [0, 1]); a new alarm where there is none."""
        query = select(audit_event.c.data).where(
            audit_event.c.action == MEASURED, audit_event.c.object == self._store.run
        )
        with reading(self._store.engine) as connection:
            for data in connection.execute(query.order_by(audit_event.c.seq.desc())).scalars():
                state = data["state"]
                same = (data["sha256"], data["limit"]) == (watched.sha256, watched.limit)
                if same and (state["limit"], state["level"]) == (limit, level):
                    return Alarm(**{**state, "wealth": tuple(state["wealth"])})
        return Alarm(limit, level)

    def write(self, watched: Watched, alarm: Alarm) -> None:
        self._record(MEASURED, sha256=watched.sha256, limit=watched.limit, state=asdict(alarm))

    def rang(self, watched: Watched, alarm: Alarm) -> None:
        self._record(RANG, sha256=watched.sha256, limit=watched.limit, answers=alarm.answers, evidence=alarm.evidence)

    def _record(self, action: str, **data: Any) -> None:
        self._store.write(
            lambda connection: record_event(connection, self._store.clock(), ALARM, action, self._store.run, **data)
        )
