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
    return [one for one in parts.together.values() if one is not parts]


def elsewhere(parts: QueueService) -> list[QueueService]:
    """The other runs, one of each other database: runs in one PostgreSQL share their people."""
    databases = {one.store.engine.url: one for one in others(parts) if one.store.engine.url != parts.store.engine.url}
    return list(databases.values())


def introduce(parts: QueueService, token: str) -> None:
    """Who has this token in one of the runs gets an account in all of them."""
    known = next((one for one in (parts, *others(parts)) if one.people.by_token(token) is not None), None)
    if known is None:
        return
    for one in elsewhere(known):
        if one.people.by_token(token) is None:
            adopt(token, known.store, one.store)


def known_at(parts: QueueService, token: str) -> str | None:
    """Name of another run that knows this token."""
    return next((name for name, one in parts.together.items() if one.people.by_token(token) is not None), None)


def open_session(parts: QueueService, response: Response, cookie: str) -> None:
    response.set_cookie(
        parts.cookie, cookie, max_age=SESSION_S, httponly=True, samesite="strict", secure=parts.settings.secure_cookies
    )


def open_sessions_elsewhere(parts: QueueService, response: Response, token: str) -> None:
    """Signs in to all other runs that know the token."""
    for one in others(parts):
        opened = one.people.sign_in(token)
        if opened is not None:
            open_session(one, response, opened[0])


def signed_in(parts: QueueService, request: Request) -> dict[str, tuple[QueueService, Person]]:
    """Runs of this server in which the browser has a session, by name, and as whom."""
    cookies = {name: request.cookies.get(one.cookie) for name, one in parts.together.items()}
    people = {name: parts.together[name].people.by_cookie(cookie) for name, cookie in cookies.items() if cookie}
    return {name: (parts.together[name], person) for name, person in people.items() if person is not None}


def end_sessions(parts: QueueService, request: Request, response: Response, person: Person) -> None:
    """Ends the browser's session in every run; with the last one of a person, the questions in their hands go back."""
    ending = [(parts, person), *(pair for pair in signed_in(parts, request).values() if pair[0] is not parts)]
    for one, who in ending:
        one.people.sign_out(request.cookies.get(one.cookie, ""))
        response.delete_cookie(one.cookie)
        if not one.people.has_session(who.id):
            one.leases.release_all(who.id)


def consent_everywhere(parts: QueueService, request: Request, person: Person, version: str) -> None:
    """Who agrees to the notice agrees to it in all runs in which this browser is signed in."""
    parts.consents.give(person.id, version)
    for one, who in signed_in(parts, request).values():
        if one is not parts:
            one.consents.give(who.id, version)


def today_elsewhere(parts: QueueService, person: Person) -> Today:
    return today_in([one.leases for one in elsewhere(parts)], person.id)


def rotate_everywhere(parts: QueueService, person_id: str, *, by: str) -> str:
    """A new token in every run that knows the person: none still takes the old one."""
    token = parts.people.rotate(person_id, by=by)
    for one in elsewhere(parts):
        if any(known.id == person_id for known in one.people.all()):
            one.people.rotate(person_id, by=by, token=token)
    return token


def listed(parts: QueueService, request: Request) -> list[dict[str, Any]]:
    """Runs between which this browser's person may change; none where the server has one alone."""
    return [{"name": name, "here": one is parts} for name, (one, _) in signed_in(parts, request).items()]
