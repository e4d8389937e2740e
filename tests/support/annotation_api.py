"""The annotation service in process, with one person of every role."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from deploy.annotation.app import create_app
from deploy.annotation.queue_service import WebSettings
from pddpo_ray.annotation.people.accounts import Person, Role
from tests.support.annotation_queue import FreshQueue

API = "/api/v1"
GENEROUS = WebSettings(requests_per_second=1e6, burst=1e6, sign_ins_per_second=1e6, sign_in_burst=1e6)


@dataclass
class FreshService:
    """A queue with a web service in front of it."""

    queue: FreshQueue
    settings: WebSettings = GENEROUS
    app: FastAPI = field(init=False)
    people: dict[Role, Person] = field(default_factory=dict)
    tokens: dict[Role, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = create_app(self.queue.engine, "demo", self.queue.rules, self.settings, lambda: self.queue.now_ms)
        for role in Role:
            self.people[role], self.tokens[role] = self.queue.people.create(f"the {role.value}", role, by="test")

    def client(self, role: Role | None = None) -> TestClient:
        """A client with this role's token, or with none."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)


def is_problem(response: Any, status: int, code: str | None = None) -> bool:
    """Whether a response is an error of the one shape."""
    body = response.json()
    return bool(
        response.status_code == status
        and response.headers["content-type"] == "application/problem+json"
        and body["status"] == status
        and set(body) - {"hint"} == {"type", "title", "status", "code", "detail"}
        and (code is None or body["code"] == code)
    )
