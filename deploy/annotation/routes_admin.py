"""Routes of administration: people, tokens, guidelines, control questions, pause, the audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy import select

from deploy.annotation import multi_run_people as together
from deploy.annotation.access import API
from deploy.annotation.control_files import gold_question, preview
from deploy.annotation.queue_service import Caller, Parts
from deploy.annotation.rendering import qr_path
from deploy.annotation.routes_lead import RoundId
from deploy.annotation.schemas import (
    ErasureBody,
    GoldBody,
    GoldFileBody,
    GuidelinesBody,
    InvitationBody,
    NewPerson,
    PauseBody,
    PersonChange,
)
from pddpo_ray.annotation.people.accounts import Person
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.journal.annotation_schema import audit_event
from pddpo_ray.journal.database import reading

router = APIRouter(prefix=API, tags=["admin"])

PersonId = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9]+$")]


@router.get("/people")
def people(parts: Parts, person: Caller) -> dict[str, Any]:
    """All people who have an account."""
    return {"people": [_public(account) for account in parts.people.all()]}


@router.post("/people", status_code=201)
def create(body: NewPerson, parts: Parts, person: Caller) -> dict[str, Any]:
    """A new person; the token is shown this once."""
    account, token = parts.people.create(
        body.handle, body.role, by=person.id, sees_harmful=body.sees_harmful, daily_cap=body.daily_cap,
        harmful_cap=body.harmful_cap, languages=body.languages,
    )  # fmt: skip
    return _public(account) | {"token": token}


@router.get("/invitations")
def invitations(parts: Parts, person: Caller) -> dict[str, Any]:
    """Links that can still be used."""
    return {"invitations": [asdict(invitation) for invitation in parts.invitations.open()]}


@router.post("/invitations", status_code=201)
def invite(body: InvitationBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """A link's code, shown this once; it makes one account, once. With `page`, the link too, also as a QR code: the
    side of its square and an SVG path of the dark modules."""
    code = parts.invitations.make(
        body.handle, body.role, by=person.id, sees_harmful=body.sees_harmful, daily_cap=body.daily_cap,
        harmful_cap=body.harmful_cap, languages=body.languages, expires_s=body.expires_s,
    )  # fmt: skip
    content = {"handle": body.handle, "code": code}
    if not body.page:
        return content
    link = f"{body.page.rstrip('/')}/#invite={code}"
    return content | {"link": link, "qr": qr_path(link)}


@router.patch("/people/{person_id}")
def change(person_id: PersonId, body: PersonChange, parts: Parts, person: Caller) -> dict[str, Any]:
    """Changes what is given; someone set inactive is signed out at once."""
    changes = body.model_dump(exclude_none=True, mode="json")
    if "hourly_rate" in body.model_fields_set:
        changes["hourly_rate"] = body.hourly_rate
    return _public(parts.people.change(person_id, by=person.id, **changes))


@router.post("/people/{person_id}/token")
def rotate(person_id: PersonId, parts: Parts, person: Caller) -> dict[str, str]:
    """A new token, shown this once; the old one ends."""
    return {"token": together.rotate_everywhere(parts, person_id, by=person.id)}


@router.get("/people/{person_id}/data")
def data_of(person_id: PersonId, parts: Parts, person: Caller) -> JSONResponse:
    """All that is stored about a person, as a file for them."""
    headers = {"Content-Disposition": f'attachment; filename="data-{person_id[:16]}.json"'}
    return JSONResponse(parts.personal_data.of(person_id), headers=headers)


@router.post("/people/{person_id}/erase")
def erase(person_id: PersonId, body: ErasureBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """Erases what names a person; their labels stay under the pseudonym."""
    return asdict(parts.personal_data.erase(person_id, by=person.id, reason=body.reason))


@router.put("/guidelines")
def set_guidelines(body: GuidelinesBody, parts: Parts, person: Caller) -> dict[str, int]:
    """A new version of the guidelines."""
    return {"version": parts.campaign.set_guidelines(body.markdown, by=person.id)}


@router.post("/gold", status_code=201)
def gold(body: GoldBody, parts: Parts, person: Caller) -> dict[str, int]:
    """Adds control questions."""
    return {"added": parts.rounds.add_gold([gold_question(question) for question in body.questions], by=person.id)}


@router.post("/gold/preview")
def preview_gold(body: GoldFileBody, parts: Parts, person: Caller) -> dict[str, Any]:
    """What importing a file of control questions would do with each line, and why; nothing is added."""
    return preview(body.lines, parts.controls)


@router.get("/gold")
def stock(parts: Parts, person: Caller) -> dict[str, Any]:
    """Control questions, and how people did on them."""
    return {"gold": [asdict(control) for control in parts.controls.all()]}


@router.delete("/gold/{gold_id}")
def retire(gold_id: RoundId, parts: Parts, person: Caller) -> dict[str, bool]:
    """Asks a control question no more; one that nobody ever got is deleted."""
    return {"deleted": parts.controls.retire(gold_id, by=person.id)}


@router.put("/campaign")
def pause(body: PauseBody, parts: Parts, person: Caller) -> dict[str, bool]:
    """Stops or starts handing out questions; answers are always taken."""
    parts.campaign.pause(body.paused, by=person.id)
    return {"paused": body.paused}


@router.post("/rounds/{round_id}/cancel")
def cancel(round_id: RoundId, parts: Parts, person: Caller) -> dict[str, bool]:
    """Withdraws a batch of questions."""
    parts.rounds.cancel(round_id, by=person.id)
    return {"cancelled": True}


@router.get("/audit")
def audit(
    parts: Parts,
    person: Caller,
    after: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """The log of administration, and whether log and queue are sound; `next` continues."""
    query = select(audit_event).where(audit_event.c.seq > after).order_by(audit_event.c.seq).limit(limit)
    with reading(parts.store.engine) as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]
    return {
        "events": rows,
        "next": rows[-1]["seq"] if len(rows) == limit else None,
        "broken_links": broken_links(parts.store),
        "imbalances": imbalances(parts.store),
    }


@router.get("/openapi.json")
def openapi(request: Request, person: Caller) -> dict[str, Any]:
    """This description."""
    schema: dict[str, Any] = request.app.openapi()
    return schema


def _public(person: Person) -> dict[str, Any]:
    content = asdict(person)
    del content["csrf"]
    return content
