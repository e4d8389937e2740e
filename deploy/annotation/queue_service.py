"""What every route works with: the parts of the queue, the settings of the web layer, and who is calling."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from sqlalchemy import Engine

from deploy.annotation.access import ACCESS
from deploy.web.http_errors import ApiError
from deploy.web.request_limits import RateLimit
from deploy.web.web_app import address, bearer_token
from pddpo_ray.annotation.people.accounts import Campaign, People, Person
from pddpo_ray.annotation.people.invitations import Invitations
from pddpo_ray.annotation.people.notice import Consents
from pddpo_ray.annotation.people.personal_data import PersonalData
from pddpo_ray.annotation.queue.answers import Answers
from pddpo_ray.annotation.queue.assignment import Leases
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.controls import Controls
from pddpo_ray.annotation.queue.history import History
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.queue.worklog import WorkLog
from pddpo_ray.annotation.review.adjudications import Adjudications
from pddpo_ray.annotation.review.decisions import Decisions
from pddpo_ray.annotation.review.flag_decisions import FlagDecisions
from pddpo_ray.annotation.review.quality import Quality
from pddpo_ray.journal.transactions import Clock, Store, now_ms

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class WebSettings:
    """Limits and cookies of the HTTP service."""

    secure_cookies: bool = False
    """Set when browsers reach the service by https (directly or through a proxy)."""
    blur_from: float = 0.0
    """Texts of at least this risk are blurred until asked for; 0 blurs everything."""
    requests_per_second: float = 20.0
    burst: float = 60.0
    sign_ins_per_second: float = 0.5
    sign_in_burst: float = 20.0


class QueueService:
    """The queue of one run behind HTTP."""

    def __init__(
        self,
        engine: Engine,
        run: str,
        rules: Rules,
        settings: WebSettings,
        clock: Clock = now_ms,
        together: Mapping[str, QueueService] | None = None,
    ) -> None:
        """`together`: all runs that this server serves, this one too, by name; none where it serves one alone."""
        self.store = store = Store(engine, run, clock)
        self.rules, self.settings = rules, settings
        self.leases, self.answers = Leases(store, rules), Answers(store, rules)
        self.history, self.rounds = History(store, rules), Rounds(store, rules)
        self.decisions, self.flag_decisions = Decisions(store, rules), FlagDecisions(store, rules)
        self.people, self.invitations = People(store), Invitations(store)
        self.campaign, self.consents = Campaign(store), Consents(store)
        self.controls, self.adjudications = Controls(store), Adjudications(store)
        self.personal_data = PersonalData(store, rules)
        self.quality, self.worklog = Quality(store, idle_s=rules.idle_s), WorkLog(store, idle_s=rules.idle_s)
        self.requests = RateLimit(settings.requests_per_second, settings.burst, time.monotonic)
        self.sign_ins = RateLimit(settings.sign_ins_per_second, settings.sign_in_burst, time.monotonic)
        self.together: Mapping[str, QueueService] = {} if together is None else together

    @property
    def cookie(self) -> str:
        """Name of the session's cookie: browsers send a host's cookies to all its ports, so each run has its own."""
        name = next((f"\0{name}" for name, queue in self.together.items() if queue is self), "")
        return f"pddpo_session_{hashlib.sha256(f'{self.store.run}{name}'.encode()).hexdigest()[:12]}"


def service(request: Request) -> QueueService:
    return cast(QueueService, request.app.state.service)


def guard(request: Request) -> Person:
    """Lets in whom the table allows: 401 without a valid token, 403 with the wrong role, 429 if too often."""
    parts = service(request)
    key = (request.method, request.scope["route"].path)
    person = _recognise(request, parts)
    if person is None:
        parts.sign_ins.take(f"failed {address(request)}")
        raise ApiError(401, "sign in first", hint="send a token as `Authorization: Bearer …`, or open a session")
    parts.requests.take(person.id)
    if person.role not in ACCESS[key]:
        allowed = ", ".join(sorted(role.value for role in ACCESS[key]))
        raise ApiError(403, f"your role, {person.role.value}, may not do this", hint=f"it is for: {allowed}")
    return person


def _recognise(request: Request, parts: QueueService) -> Person | None:
    token = bearer_token(request)
    if token is not None:
        return parts.people.by_token(token)
    cookie = request.cookies.get(parts.cookie)
    person = parts.people.by_cookie(cookie) if cookie else None
    if person is not None and request.method not in SAFE_METHODS:
        _demand_own_page(request, person)
    return person


def _demand_own_page(request: Request, person: Person) -> None:
    """Refuses requests that other sites make with our cookies: they lack our CSRF token and origin."""
    origin = request.headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    if foreign or request.headers.get("x-csrf-token") != person.csrf:
        raise ApiError(403, "this request did not come from the annotation page", hint="reload the page")


Parts = Annotated[QueueService, Depends(service)]
Caller = Annotated[Person, Depends(guard)]
