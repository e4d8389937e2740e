"""Routes of the service token: a trainer on another machine opens rounds and reads snapshots over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from deploy.annotation.access import API
from deploy.annotation.queue_service import Caller, Parts
from deploy.annotation.routes_lead import RoundId
from deploy.annotation.schemas import FreezeBody, QuestionBody, RoundBody
from pddpo_ray.annotation.queue.batch_rows import Snapshot
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.parts.questions import Question

router = APIRouter(prefix=API, tags=["trainer"])


@router.post("/rounds", status_code=201)
def open_round(body: RoundBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """Opens a batch; the same batch again changes nothing, another one under its name is a conflict."""
    status = parts.rounds.open(
        body.round,
        body.purpose,
        [question_of(question) for question in body.questions],
        labels_each=body.labels_each,
        deadline_ms=body.deadline_ms,
        priority=body.priority,
        by=person.id,
    )
    return asdict(status)


@router.get("/rounds/{round_id}/snapshot")
def snapshot(round_id: RoundId, parts: Parts, person: Caller) -> dict[str, Any]:
    """What a frozen batch decided."""
    parts.rounds.status(round_id)
    frozen = parts.rounds.snapshot(round_id)
    if frozen is None:
        raise QueueError(Problem.NOT_FOUND, "this batch is not frozen")
    return _snapshot(frozen)


@router.post("/rounds/{round_id}/freeze")
def freeze(round_id: RoundId, body: FreezeBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """Closes a batch and fixes what counts."""
    return _snapshot(parts.rounds.freeze(round_id, accept_missing=body.accept_missing, by=person.id))


@router.get("/backlog")
def backlog(parts: Parts, person: Caller) -> dict[str, int]:
    """Labels that are still wanted."""
    return {"labels": parts.rounds.backlog()}


def question_of(body: QuestionBody, gold: dict[str, str] | None = None) -> Question:
    """Raises QueueError for a pair with one answer, or a safety question with two."""
    if (body.kind == "pair") != (body.second is not None):
        raise QueueError(Problem.MALFORMED, f"item {body.item}: a pair has two answers, a safety question one")
    provenance = {"policy_version": body.policy_version}
    if body.second_policy_version is not None:
        provenance["second_policy_version"] = body.second_policy_version
    return Question(
        body.kind, body.item, body.prompt, body.first, body.second, provenance, body.risk, body.priority, gold,
        language=body.language, turns=tuple((turn.role, turn.text) for turn in body.turns),
    )  # fmt: skip


def _snapshot(frozen: Snapshot) -> dict[str, Any]:
    return {"round": frozen.round_id, "sha256": frozen.sha256, "answers": [asdict(entry) for entry in frozen.answers]}
