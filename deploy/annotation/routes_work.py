"""Routes of the people who label: sign in, take a question, answer, think again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from deploy.annotation import multi_run_people as together
from deploy.annotation.access import API
from deploy.annotation.queue_service import Caller, Parts, QueueService
from deploy.annotation.rendering import render, visible
from deploy.annotation.schemas import AnswerBody, CodeBody, ConsentBody, LeaseRequest, ReleaseBody, SignIn
from deploy.web.http_errors import ApiError
from deploy.web.web_app import address
from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.people.notice import TEXT, VERSION
from pddpo_ray.annotation.queue.answers import Receipt, Submission
from pddpo_ray.annotation.queue.assignment import Lease, NoQuestion
from pddpo_ray.annotation.queue.queue_rules import Outcome, QueueError

router = APIRouter(prefix=API, tags=["work"])

LeaseId = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9]+$")]
Key = Annotated[str, Path(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
"""Made by the client, once per answer; the same key is the same answer, however often it is sent."""


@router.post("/session")
def sign_in(body: SignIn, request: Request, response: Response, parts: Parts) -> dict[str, Any]:
    """Opens a browser session with a person's token. Only wrong tokens count against the address that sends them."""
    together.introduce(parts, body.token)
    session = parts.people.sign_in(body.token)
    if session is None:
        parts.sign_ins.take(address(request))
        run = together.known_at(parts, body.token)
        hint = f"run {run} knows it: open /runs/{run}/" if run else "ask the person who sent it for a new one"
        raise ApiError(401, "this token is not known here", hint=hint)
    together.open_sessions_elsewhere(parts, response, body.token)
    return _sign_in(parts, response, *session)


@router.post("/invitation", status_code=201)
def accept(body: CodeBody, request: Request, response: Response, parts: Parts) -> dict[str, Any]:
    """Makes the account of an invitation's link and opens a browser session; the token is shown this once."""
    try:
        person, token = parts.invitations.accept(body.code)
    except QueueError:
        parts.sign_ins.take(address(request))
        raise
    together.introduce(parts, token)
    together.open_sessions_elsewhere(parts, response, token)
    return _sign_in(parts, response, *parts.people.open_session(person)) | {"token": token}


@router.delete("/session")
def sign_out(request: Request, response: Response, parts: Parts, person: Caller) -> dict[str, bool]:
    """Ends the browser session; with the last one of a person, the questions in their hands go back."""
    together.end_sessions(parts, request, response, person)
    return {"signed_out": True}


@router.get("/me")
def me(parts: Parts, person: Caller) -> dict[str, Any]:
    """Who is calling, the CSRF token of a browser session, and the idle limit of the page."""
    return _me(parts, person)


@router.get("/runs")
def runs(request: Request, parts: Parts, person: Caller) -> dict[str, Any]:
    """The runs of this server in which the browser is signed in; none where the server has one run."""
    return {"runs": together.listed(parts, request)}


@router.post("/lease")
def lease(body: LeaseRequest, parts: Parts, person: Caller) -> dict[str, Any]:
    """The next question, or `task: null` with a reason and the seconds after which to ask again. A browser's person
    has agreed to the notice before."""
    if person.csrf is not None:
        parts.consents.demand(person.id)
    offer = parts.leases.lease(person, body.holding, together.today_elsewhere(parts, person))
    if isinstance(offer, NoQuestion):
        if offer.reason == "daily_cap":
            raise ApiError(
                429, "that is enough for today, thank you", hint="come back tomorrow",
                headers={"Retry-After": str(offer.retry_s)},
            )  # fmt: skip
        return {"task": None, "reason": offer.reason, "retry_s": offer.retry_s}
    return {"task": _question_view(parts, offer), "reason": "", "retry_s": 0}


@router.post("/leases/{lease_id}/heartbeat")
def heartbeat(lease_id: LeaseId, parts: Parts, person: Caller) -> dict[str, int]:
    """Keeps a question reserved."""
    return {"expires_ms": parts.leases.heartbeat(person, lease_id)}


@router.post("/leases/{lease_id}/release")
def release(lease_id: LeaseId, parts: Parts, person: Caller, body: ReleaseBody | None = None) -> dict[str, bool]:
    """Gives a question back; with `expires_ms`, only if nobody renewed it since."""
    return {"released": parts.leases.release(person, lease_id, body.expires_ms if body else None)}


@router.post("/leases/{lease_id}/undo")
def undo(lease_id: LeaseId, parts: Parts, person: Caller) -> dict[str, Any]:
    """Takes one's answer back and returns the question, with what was answered."""
    return {"task": _question_view(parts, parts.answers.undo(person, lease_id))}


@router.put(
    "/answers/{key}",
    status_code=201,
    responses={200: {"description": "The same answer again"}, 202: {"description": "Kept as surplus"}},
)
def answer(key: Key, body: AnswerBody, response: Response, parts: Parts, person: Caller) -> dict[str, Any]:
    """Stores an answer: 201 stored, 200 the same key again, 202 late and the question had all its labels."""
    submission = Submission(body.kind, body.given, body.reason, body.note, body.ms_spent, body.revealed)
    receipt = parts.answers.answer(person, key, body.lease, submission)
    if receipt.repeated:
        response.status_code = 200
    elif receipt.outcome is Outcome.SURPLUS:
        response.status_code = 202
    return _receipt(receipt, person)


@router.get("/answers/{key}")
def receipt(key: Key, parts: Parts, person: Caller) -> dict[str, Any]:
    """What became of one's answer."""
    return _receipt(parts.answers.receipt(person, key), person)


@router.get("/answers")
def answers(
    parts: Parts,
    person: Caller,
    before: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    """One's own answers, the newest first; `next` continues."""
    rows = parts.answers.receipts(person, before, limit)
    return {"answers": [_receipt(row, person) for _, row in rows], "next": rows[-1][0] if len(rows) == limit else None}


@router.get("/history")
def history(
    parts: Parts,
    person: Caller,
    before: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
) -> dict[str, Any]:
    """What one answered, the newest first, as it was on the screen; `changeable`: it can still be taken back."""
    entries = parts.history.of(person, before, limit)
    items = [asdict(entry) | {name: visible(getattr(entry, name)) for name in ("prompt", "note")} for entry in entries]
    return {"answers": items, "next": entries[-1].seq if len(entries) == limit else None}


@router.get("/progress")
def progress(parts: Parts, person: Caller) -> dict[str, int]:
    """One's own numbers, and the labels that all open batches together have and want."""
    return parts.answers.progress(person) | parts.rounds.progress()


@router.get("/guidelines")
def guidelines(parts: Parts, person: Caller) -> dict[str, Any]:
    """What to look for, as safe HTML and as Markdown."""
    version, markdown = parts.campaign.guidelines()
    return {"version": version, "markdown": markdown, "html": render(markdown)}


@router.get("/notice")
def notice(person: Caller) -> dict[str, str]:
    """What people agree to before their first question, as safe HTML."""
    return {"version": VERSION, "html": render(TEXT)}


@router.post("/consent")
def give_consent(body: ConsentBody, request: Request, parts: Parts, person: Caller) -> dict[str, bool]:
    """Agrees to the notice of this version."""
    together.consent_everywhere(parts, request, person, body.version)
    return {"consented": True}


def _sign_in(parts: QueueService, response: Response, cookie: str, person: Person) -> dict[str, Any]:
    together.open_session(parts, response, cookie)
    return _me(parts, person)


def _me(parts: QueueService, person: Person) -> dict[str, Any]:
    names: dict[str, Any] = {"id": person.id, "handle": person.handle, "role": person.role.value}
    return (
        names
        | {"daily_cap": person.daily_cap, "csrf": person.csrf, "idle_s": parts.rules.idle_s}
        | {"consented": parts.consents.given(person.id)}
    )


def _question_view(parts: QueueService, question: Lease) -> dict[str, Any]:
    """A question for the screen. Nothing in it tells who wrote the texts, how risky they are, or whether it is gold."""
    sides: dict[str, Any] = {
        name: None if text is None else {"html": render(text), "text": visible(text)}
        for name, text in (("prompt", question.prompt), ("left", question.left), ("right", question.right))
    }
    return sides | {
        "lease": question.id,
        "kind": question.kind,
        "expires_ms": question.expires_ms,
        "blurred": question.risk >= parts.settings.blur_from,
        "asks": None if question.asks is None else _heading_and_details(question.asks),
        "bounds": question.bounds,
        "guideline": question.guideline,
        "earlier": question.earlier,
        "note": question.note,
        "language": question.language,
        "turns": [{"role": role, "html": render(text), "text": visible(text)} for role, text in question.turns],
    }


def _heading_and_details(question: str) -> dict[str, str]:
    """A limit's own question: its first line as the heading, and what else it says as safe HTML."""
    heading, _, details = question.strip().partition("\n")
    return {"heading": visible(heading.strip("# ")), "html": render(details) if details.strip() else ""}


def _receipt(receipt: Receipt, person: Person) -> dict[str, Any]:
    """An annotator's receipt hides what would unblind them: the texts' policies and the round of the answer."""
    content = asdict(receipt) | {"accepted": receipt.outcome is not Outcome.SURPLUS}
    if person.role is Role.ANNOTATOR:
        del content["round"], content["policy_versions"]
    return content
