"""Every route with every role, and the ways in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Route

from deploy.annotation.access import ACCESS, PUBLIC
from pddpo_ray.annotation.people.accounts import Role
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import pair_questions, safety_questions

BODIES: dict[tuple[str, str], Any] = {
    ("POST", f"{API}/lease"): {},
    ("PUT", f"{API}/answers/{{key}}"): {"lease": "x", "kind": "abstain"},
    ("POST", f"{API}/rounds/{{round_id}}/extend"): {"deadline_ms": None},
    ("POST", f"{API}/rounds/{{round_id}}/decision"): {"decision": "accept"},
    ("POST", f"{API}/leases/{{lease_id}}/recall"): {},
    ("POST", f"{API}/consent"): {"version": "x"},
    ("POST", f"{API}/people"): {"handle": "new"},
    ("PATCH", f"{API}/people/{{person_id}}"): {},
    ("PUT", f"{API}/guidelines"): {"markdown": "x"},
    ("POST", f"{API}/gold"): {
        "questions": [
            {
                "kind": "safety",
                "item": "g",
                "prompt": "p",
                "first": "f",
                "policy_version": 0,
                "gold": {"safety": "safe"},
            }
        ]
    },
    ("POST", f"{API}/gold/preview"): {"lines": ["x"]},
    ("PUT", f"{API}/campaign"): {"paused": False},
    ("POST", f"{API}/answers/{{key}}/void"): {"reason": "x"},
    ("POST", f"{API}/rounds"): {
        "round": 1,
        "purpose": "safety",
        "labels_each": 1,
        "questions": [{"kind": "safety", "item": "i", "prompt": "p", "first": "f", "policy_version": 0}],
    },
    ("POST", f"{API}/rounds/{{round_id}}/freeze"): {},
}


def test_every_route_has_a_line_in_the_table(service: FreshService) -> None:
    routes = set()
    stack = list(service.app.routes)
    while stack:
        route = stack.pop()
        stack += getattr(getattr(route, "original_router", None), "routes", [])
        if isinstance(route, Route):
            routes |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
    assert routes == set(ACCESS) | PUBLIC


@pytest.mark.slow
def test_every_route_lets_in_exactly_whom_the_table_names(service: FreshService) -> None:
    """Who may call gets past the guard (anything but 401 and 403); who may not gets the one error shape."""
    clients = {role: service.client(role) for role in Role}
    nobody = service.client()
    wrong = service.client()
    wrong.headers["Authorization"] = "Bearer pddpo_wrong"
    for (method, template), allowed in sorted(ACCESS.items()):
        path = re.sub(r"{\w+}", "nothing0", template)
        body = BODIES.get((method, template))
        for client in (nobody, wrong):
            response = client.request(method, path, json=body)
            assert is_problem(response, 401, "unauthorized"), (method, path, response.text)
        for role, client in clients.items():
            response = client.request(method, path, json=body)
            if role in allowed:
                assert response.status_code not in (401, 403, 500), (method, path, role, response.text)
            else:
                assert is_problem(response, 403, "forbidden"), (method, path, role, response.text)


def test_only_the_public_routes_answer_strangers(service: FreshService) -> None:
    client = service.client()
    for method, path in sorted(PUBLIC - {("POST", f"{API}/session"), ("POST", f"{API}/invitation")}):
        assert client.request(method, path).status_code == 200, path
    assert is_problem(client.post(f"{API}/session", json={"token": "pddpo_wrong"}), 401)
    assert is_problem(client.get("/docs"), 404)
    assert is_problem(client.get("/openapi.json"), 404)
    assert is_problem(client.get(f"{API}/lease"), 405)


def test_someone_set_inactive_is_out_at_once(service: FreshService) -> None:
    client = service.client(Role.ANNOTATOR)
    assert client.get(f"{API}/me").status_code == 200
    id_ = service.people[Role.ANNOTATOR].id
    assert service.client(Role.ADMIN).patch(f"{API}/people/{id_}", json={"active": False}).status_code == 200
    assert is_problem(client.get(f"{API}/me"), 401)


@pytest.mark.parametrize("change", [{"active": False}, {"role": "lead"}])
def test_the_only_admin_can_neither_be_paused_nor_lose_the_role(service: FreshService, change: dict[str, Any]) -> None:
    admin, path = service.client(Role.ADMIN), f"{API}/people/{service.people[Role.ADMIN].id}"
    refused = admin.patch(path, json=change)
    assert is_problem(refused, 409, "conflict")
    assert "make another one first" in refused.json()["detail"]
    assert admin.patch(path, json={"role": "admin", "daily_cap": 7}).json()["daily_cap"] == 7
    admin.patch(f"{API}/people/{service.people[Role.LEAD].id}", json={"role": "admin"})
    assert admin.patch(path, json=change).status_code == 200


def test_a_browser_session_needs_its_csrf_token_and_its_own_origin(service: FreshService) -> None:
    browser = service.client()
    signed_in = browser.post(f"{API}/session", json={"token": service.tokens[Role.ANNOTATOR]})
    cookie = signed_in.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict"))
    csrf = signed_in.json()["csrf"]
    assert browser.get(f"{API}/me").json()["csrf"] == csrf
    assert is_problem(browser.post(f"{API}/lease", json={}), 403)
    assert is_problem(browser.post(f"{API}/lease", json={}, headers={"X-CSRF-Token": "wrong"}), 403)
    own = {"X-CSRF-Token": csrf, "Origin": "http://testserver"}
    assert is_problem(browser.post(f"{API}/lease", json={}, headers=own | {"Origin": "http://evil.example"}), 403)
    assert is_problem(browser.post(f"{API}/lease", json={}, headers=own | {"Origin": "null"}), 403)
    assert is_problem(browser.post(f"{API}/lease", json={}, headers=own), 409, "consent")
    notice = browser.get(f"{API}/notice").json()
    assert is_problem(browser.post(f"{API}/consent", json={"version": "older"}, headers=own), 409, "conflict")
    for _ in range(2):
        assert browser.post(f"{API}/consent", json={"version": notice["version"]}, headers=own).status_code == 200
    assert browser.get(f"{API}/me").json()["consented"]
    assert browser.post(f"{API}/lease", json={}, headers=own).status_code == 200
    assert browser.delete(f"{API}/session", headers=own).status_code == 200
    assert is_problem(browser.get(f"{API}/me"), 401)


def test_https_makes_the_cookie_secure(service: FreshService) -> None:
    from starlette.testclient import TestClient

    from deploy.annotation.app import create_app
    from deploy.annotation.queue_service import WebSettings

    app = create_app(service.queue.engine, "demo", settings=WebSettings(secure_cookies=True))
    answer = TestClient(app).post(f"{API}/session", json={"token": service.tokens[Role.LEAD]})
    assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("path", ["/", "/healthz", f"{API}/me", "/static/nothing", "/nothing"])
def test_every_answer_carries_the_security_headers(service: FreshService, path: str) -> None:
    headers = service.client().get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_an_annotator_sees_no_gold_no_policy_no_round_and_nobody_elses_votes(service: FreshService) -> None:
    queue = service.queue
    queue.rounds.open(7, "safety", safety_questions(2), labels_each=2)
    queue.rounds.open(7, "compare", pair_questions(2), labels_each=1)
    client = service.client(Role.ANNOTATOR)
    seen = []
    for number in range(4):
        task = client.post(f"{API}/lease", json={})
        lease = task.json()["task"]
        given = (
            {"safety": "safe"}
            if lease["kind"] == "safety"
            else {"more_helpful": "left", "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}
        )
        body = {"lease": lease["lease"], "kind": "label", "given": given}
        seen += [task.text, client.put(f"{API}/answers/key-0000{number}", json=body).text]
    for path in ("/answers", "/answers/key-00000", "/progress", "/guidelines", "/me"):
        seen.append(client.get(f"{API}{path}").text)
    for word in ("policy", "provenance", "gold", '"round"', "seats", "risk", "the lead", "swap", "purpose"):
        assert not [text for text in seen if word in text], word
