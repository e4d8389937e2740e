"""Routes of those who watch over the labels: rounds, agreement, refusals, people's quality, effects, export."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from deploy.annotation.access import API
from deploy.annotation.queue_service import Caller, Parts, QueueService
from deploy.annotation.routes_work import Key
from deploy.annotation.schemas import AdjudicateBody, DecisionBody, ExtendBody, FlagBody, RecallBody, VoidBody
from pddpo_ray.annotation.label_rows import write_empty, write_label_file
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError
from pddpo_ray.annotation.queue.worklog import RULE, as_csv
from pddpo_ray.annotation.review.decisions import Decision
from pddpo_ray.annotation.review.given_labels import authors_of, labels_of
from pddpo_ray.storage.whole_files import finite

router = APIRouter(prefix=API, tags=["lead"])

RoundId = Annotated[str, InPath(max_length=64, pattern=r"^[A-Za-z0-9]+$")]
LeaseId = Annotated[str, InPath(max_length=64, pattern=r"^[A-Za-z0-9]+$")]
Version = Annotated[int, InPath(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]
Few = Annotated[int, Query(ge=1, le=100)]


def _page(name: str, items: Sequence[Any], offset: int, limit: int) -> dict[str, Any]:
    """One page of a list; `next` is the offset of the next page, None if this one is not full."""
    return {name: items, "next": offset + limit if len(items) == limit else None}


@router.get("/rounds")
def rounds(
    parts: Parts, person: Caller, offset: Offset = 0, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> dict[str, Any]:
    """Batches of questions, the newest first; `next` continues."""
    batches = parts.rounds.all()
    page = batches[offset : offset + limit]
    has_more = offset + limit < len(batches)
    return {
        "rounds": [_round(parts, status) for status in page],
        "next": offset + limit if has_more else None,
        "backlog": parts.rounds.backlog(),
        "paused": parts.campaign.paused,
        "now_ms": parts.store.clock(),
    }


@router.get("/rounds/{round_id}")
def round_(round_id: RoundId, parts: Parts, person: Caller) -> dict[str, Any]:
    """How far one batch is."""
    return _round(parts, parts.rounds.status(round_id))


@router.get("/rounds/{round_id}/agreement")
def agreement(round_id: RoundId, parts: Parts, person: Caller) -> dict[str, Any]:
    """Krippendorff's alpha with its interval and pairwise agreement, per question asked."""
    parts.rounds.status(round_id)
    return {"agreement": finite(parts.quality.agreement(round_id))}


@router.get("/rounds/{round_id}/disagreements")
def disagreements(
    round_id: RoundId,
    parts: Parts,
    person: Caller,
    offset: Offset = 0,
    limit: Few = 20,
) -> dict[str, Any]:
    """Questions on which people differ most."""
    parts.rounds.status(round_id)
    decisions = parts.adjudications.newest(round_id)
    items = [
        row | {"adjudicated": decisions.get(row["task"])}
        for row in parts.quality.disagreements(round_id, offset, limit)
    ]
    return _page("disagreements", finite(items), offset, limit)


@router.get("/rounds/{round_id}/refusals")
def refusals(
    round_id: RoundId,
    parts: Parts,
    person: Caller,
    offset: Offset = 0,
    limit: Few = 20,
) -> dict[str, Any]:
    """Questions that people skipped, could not judge or flagged, with the reasons of flags."""
    parts.rounds.status(round_id)
    return _page("refusals", parts.quality.refused(round_id, offset, limit), offset, limit)


@router.get("/rounds/{round_id}/labels")
def labels_of_round(
    round_id: RoundId,
    parts: Parts,
    person: Caller,
    of: Annotated[str | None, Query(alias="person", max_length=64)] = None,
    offset: Offset = 0,
    limit: Few = 20,
) -> dict[str, Any]:
    """Labels of a batch, the newest first; of one person where their id is given. `fixed` says why one can be taken out
    no more, `people` who labelled."""
    parts.rounds.status(round_id)
    rows = labels_of(parts.store, round_id, person=of, offset=offset, limit=limit)
    return _page("labels", [asdict(row) for row in rows], offset, limit) | {"people": authors_of(parts.store, round_id)}


@router.post("/answers/{key}/void")
def void(key: Key, body: VoidBody, parts: Parts, person: Caller) -> dict[str, bool]:
    """Takes a label out of the count, with a reason; it stays stored, and others are asked while its batch is open.
    410: the run has used it."""
    parts.answers.void(key, by=person.id, reason=body.reason)
    return {"voided": True}


@router.get("/rounds/{round_id}/export")
def export(
    round_id: RoundId,
    parts: Parts,
    person: Caller,
    after: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """Every stored action of a batch in order of arrival; `next` continues."""
    parts.rounds.status(round_id)
    rows = parts.quality.export(round_id, after, limit)
    return {"answers": rows, "next": rows[-1]["seq"] if len(rows) == limit else None}


@router.post("/rounds/{round_id}/decision")
def decide(round_id: RoundId, body: DecisionBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """Decides about a batch; `choices` of the batch says what is possible. The audit log keeps who and why."""
    deadline = body.deadline_ms
    if body.after_s is not None:
        if deadline is not None:
            raise QueueError(Problem.MALFORMED, "give after_s or deadline_ms, not both")
        deadline = parts.store.clock() + int(1000 * body.after_s)
    status = parts.decisions.decide(round_id, body.decision, by=person.id, reason=body.reason, deadline_ms=deadline)
    return _round(parts, status)


@router.post("/rounds/{round_id}/extend")
def extend(round_id: RoundId, body: ExtendBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """Moves the deadline; null removes it."""
    return _round(parts, parts.decisions.decide(round_id, Decision.EXTEND, by=person.id, deadline_ms=body.deadline_ms))


@router.post("/rounds/{round_id}/unblock")
def unblock(round_id: RoundId, parts: Parts, person: Caller) -> dict[str, int]:
    """Asks questions again that too many people refused."""
    return {"reopened": parts.rounds.reopen_blocked(round_id, by=person.id)}


@router.get("/leases")
def held(parts: Parts, person: Caller) -> dict[str, Any]:
    """Who holds which question, since when and until when."""
    return {"leases": [asdict(lease) for lease in parts.leases.held()], "now_ms": parts.store.clock()}


@router.post("/leases/{lease_id}/recall")
def recall(lease_id: LeaseId, body: RecallBody, parts: Parts, person: Caller) -> dict[str, bool]:
    """Takes a question out of somebody's hands: others may get it. An answer that comes all the same is a late one."""
    parts.leases.recall(lease_id, by=person.id, reason=body.reason)
    return {"recalled": True}


@router.get("/worklog")
def worklog(parts: Parts, person: Caller) -> dict[str, Any]:
    """Work by person and day, by the server's clock."""
    return {"days": [asdict(day) for day in parts.worklog.days()], "rule": RULE}


@router.get("/worklog.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def worklog_csv(
    parts: Parts,
    person: Caller,
    rate: Annotated[float, Query(ge=0, le=1e6, description="pay per hour without a rate of one's own")] = 0.0,
) -> Response:
    """The same as a CSV file with pay."""
    content = as_csv(parts.worklog.days(), rate)
    headers = {"Content-Disposition": 'attachment; filename="worklog.csv"'}
    return Response(content, media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/labels", response_class=FileResponse, responses={200: {"content": {"application/octet-stream": {}}}})
def labels(
    parts: Parts, person: Caller, to: Literal["labels", "pku"] = "labels", form: Literal["jsonl", "parquet"] = "jsonl"
) -> FileResponse:
    """What people said as a file: every answer with who (a pseudonym), times and versions, or the labels that count as
    PKU-SafeRLHF rows."""
    folder = Path(tempfile.mkdtemp(prefix="pddpo-labels-"))
    file = folder / f"{to}.{form}"
    written = write_label_file(parts.store, file, to)
    if not written.rows:
        write_empty(file, to)
    return FileResponse(file, filename=file.name, background=BackgroundTask(shutil.rmtree, folder))


@router.get("/quality")
def quality(parts: Parts, person: Caller) -> dict[str, Any]:
    """Each person's speed, control questions, sides chosen, agreement with the others, flags with their evidence, and
    what was decided about them."""
    decisions = parts.flag_decisions.newest()
    rows = [
        row | {"decided": asdict(decisions[row["id"]]) if row["id"] in decisions else None}
        for row in parts.quality.people()
    ]
    return {"people": finite(rows)}


@router.post("/people/{person_id}/flags")
def decide_flags(person_id: RoundId, body: FlagBody, parts: Parts, person: Caller) -> dict[str, int]:
    """Decides what a person's flags lead to; `labels`: how many of them were taken out of the count, or count now."""
    labels = parts.flag_decisions.decide(
        person_id, body.decision, by=person.id, reason=body.reason, evidence=body.evidence
    )
    return {"labels": labels}


@router.post("/questions/{task_id}/adjudicate")
def adjudicate(task_id: RoundId, body: AdjudicateBody, parts: Parts, person: Caller) -> dict[str, bool]:
    """Decides about a pair on which people differ, in terms of first and second, while its batch is open."""
    answer = {str(name): value for name, value in body.given.items()}
    parts.adjudications.decide(task_id, answer, by=person.id, reason=body.reason)
    return {"adjudicated": True}


@router.get("/guidelines/versions")
def guideline_versions(parts: Parts, person: Caller) -> dict[str, Any]:
    """All versions of the guidelines, the newest first: by whom, when, and how many answers saw each."""
    return {"versions": [asdict(version) for version in parts.campaign.versions()]}


@router.get("/guidelines/versions/{version}")
def guideline_text(version: Version, parts: Parts, person: Caller) -> dict[str, Any]:
    """The text of one version, in Markdown."""
    number, markdown = parts.campaign.guidelines(version)
    return {"version": number, "markdown": markdown}


@router.get("/effects")
def effects(parts: Parts, person: Caller) -> dict[str, Any]:
    """What each round's labels changed: cost estimate and multiplier."""
    return {"effects": finite(parts.quality.effects())}


def _round(parts: QueueService, status: RoundStatus) -> dict[str, Any]:
    return asdict(status) | {"missing": status.missing} | parts.quality.pace(status) | parts.decisions.about(status)
