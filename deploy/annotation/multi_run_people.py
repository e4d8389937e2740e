"""Several runs on one server: one sign-in for all of them, one notice, one day's limits.

Each run keeps its queue, cookie and pages under `/runs/NAME/`. A person is the same in every database: the first
sign-in makes the account wherever it is missing.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from deploy.annotation.queue_service import QueueService
from pddpo_ray.annotation.people.accounts import SESSION_S, Person
from pddpo_ray.annotation.people.shared_people import adopt, today_in
from pddpo_ray.annotation.queue.assignment import Today


def others(parts: QueueService) -> list[QueueService]:
    return [queue for queue in parts.together.values() if queue is not parts]


def elsewhere(parts: QueueService) -> list[QueueService]:
    """One run of each other database: runs in one PostgreSQL share their people."""
    databases = {
        queue.store.engine.url: queue for queue in others(parts) if queue.store.engine.url != parts.store.engine.url
    }
    return list(databases.values())


def introduce(parts: QueueService, token: str) -> None:
    """A person with this token in one run gets an account in all of them."""
    source = next((queue for queue in (parts, *others(parts)) if queue.people.by_token(token) is not None), None)
    if source is None:
        return
    for queue in elsewhere(source):
        if queue.people.by_token(token) is None:
            adopt(token, source.store, queue.store)


def known_at(parts: QueueService, token: str) -> str | None:
    """Name of another run that knows this token."""
    return next((name for name, queue in parts.together.items() if queue.people.by_token(token) is not None), None)


def open_session(parts: QueueService, response: Response, cookie: str) -> None:
    response.set_cookie(
        parts.cookie, cookie, max_age=SESSION_S, httponly=True, samesite="strict", secure=parts.settings.secure_cookies
    )


def open_sessions_elsewhere(parts: QueueService, response: Response, token: str) -> None:
    """Signs in to all other runs that know the token."""
    for queue in others(parts):
        session = queue.people.sign_in(token)
        if session is not None:
            open_session(queue, response, session[0])


def signed_in(parts: QueueService, request: Request) -> dict[str, tuple[QueueService, Person]]:
    """Runs of this server in which the browser has a session, by name, and as whom."""
    cookies = {name: request.cookies.get(queue.cookie) for name, queue in parts.together.items()}
    people = {name: parts.together[name].people.by_cookie(cookie) for name, cookie in cookies.items() if cookie}
    return {name: (parts.together[name], person) for name, person in people.items() if person is not None}


def end_sessions(parts: QueueService, request: Request, response: Response, person: Person) -> None:
    """Ends the browser's session in every run; where it was the person's last, their questions go back."""
    sessions = [(parts, person), *(pair for pair in signed_in(parts, request).values() if pair[0] is not parts)]
    for queue, account in sessions:
        queue.people.sign_out(request.cookies.get(queue.cookie, ""))
        response.delete_cookie(queue.cookie)
        if not queue.people.has_session(account.id):
            queue.leases.release_all(account.id)


def consent_everywhere(parts: QueueService, request: Request, person: Person, version: str) -> None:
    """Records agreement to the notice in all runs in which this browser is signed in."""
    parts.consents.give(person.id, version)
    for queue, account in signed_in(parts, request).values():
        if queue is not parts:
            queue.consents.give(account.id, version)


def today_elsewhere(parts: QueueService, person: Person) -> Today:
    return today_in([queue.leases for queue in elsewhere(parts)], person.id)


def rotate_everywhere(parts: QueueService, person_id: str, *, by: str) -> str:
    """A new token in every run that knows the person; it replaces the old one."""
    token = parts.people.rotate(person_id, by=by)
    for queue in elsewhere(parts):
        if any(account.id == person_id for account in queue.people.all()):
            queue.people.rotate(person_id, by=by, token=token)
    return token


def listed(parts: QueueService, request: Request) -> list[dict[str, Any]]:
    """The runs that this browser may switch between; empty where the server has one run."""
    return [{"name": name, "here": queue is parts} for name, (queue, _) in signed_in(parts, request).items()]
