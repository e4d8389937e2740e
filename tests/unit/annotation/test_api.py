"""The HTTP API: statuses of answers, limits, paging, one error shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.annotation.access import PUBLIC
from deploy.annotation.queue_service import WebSettings
from deploy.web.http_errors import ApiError
from deploy.web.request_limits import RateLimit
from pddpo_ray.annotation.people.accounts import Role
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, safety_questions

SAFE: dict[str, Any] = {"kind": "label", "given": {"safety": "safe"}}


def take(client: Any) -> str:
    lease: str = client.post(f"{API}/lease", json={}).json()["task"]["lease"]
    return lease


@pytest.mark.slow
def test_answers_get_201_200_202_and_409(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    slow, quick = service.client(Role.ANNOTATOR), service.client(Role.LEAD)
    late = take(slow)
    service.queue.wait(901)
    lease = take(quick)
    stored = quick.put(f"{API}/answers/quick-001", json={"lease": lease, **SAFE})
    assert (stored.status_code, stored.json()["round"], stored.json()["policy_versions"]) == (201, 1, [2])
    assert quick.put(f"{API}/answers/quick-001", json={"lease": lease, **SAFE}).status_code == 200
    surplus = slow.put(f"{API}/answers/slow-0001", json={"lease": late, **SAFE})
    assert (surplus.status_code, surplus.json()["accepted"]) == (202, False)
    assert slow.get(f"{API}/answers/slow-0001").json()["outcome"] == "surplus"
    foreign = slow.put(f"{API}/answers/slow-0002", json={"lease": lease, **SAFE})
    assert is_problem(foreign, 409, "not_yours")
    assert is_problem(slow.get(f"{API}/answers/quick-001"), 404)


def test_a_late_answer_with_a_free_place_gets_201_and_a_cancelled_round_410(service: FreshService) -> None:
    round_ = service.queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    client = service.client(Role.ANNOTATOR)
    one = take(client)
    service.queue.wait(901)
    late = client.put(f"{API}/answers/late-0001", json={"lease": one, **SAFE})
    assert (late.status_code, late.json()["late"]) == (201, True)
    other = take(client)
    assert service.client(Role.ADMIN).post(f"{API}/rounds/{round_.id}/cancel").status_code == 200
    assert is_problem(client.put(f"{API}/answers/gone-0001", json={"lease": other, **SAFE}), 410, "round_closed")


def test_a_trainer_opens_a_round_and_reads_its_snapshot_over_http(service: FreshService) -> None:
    trainer, person = service.client(Role.SERVICE), service.client(Role.ANNOTATOR)
    question = {"kind": "safety", "item": "r1", "prompt": "p", "first": "f", "policy_version": 3}
    batch = {"round": 2, "purpose": "safety", "labels_each": 1, "questions": [question]}
    opened = trainer.post(f"{API}/rounds", json=batch)
    assert opened.status_code == 201
    assert trainer.post(f"{API}/rounds", json=batch).json() == opened.json()
    assert is_problem(trainer.post(f"{API}/rounds", json=batch | {"labels_each": 2}), 409, "conflict")
    id_ = opened.json()["id"]
    assert trainer.get(f"{API}/backlog").json() == {"labels": 1}
    assert is_problem(trainer.post(f"{API}/rounds/{id_}/freeze", json={}), 409, "conflict")
    person.put(f"{API}/answers/key-00001", json={"lease": take(person), **SAFE})
    frozen = trainer.post(f"{API}/rounds/{id_}/freeze", json={}).json()
    assert trainer.get(f"{API}/rounds/{id_}/snapshot").json() == frozen
    assert [(entry["item"], entry["given"]) for entry in frozen["answers"]] == [("r1", {"safety": "safe"})]
    wrong = batch | {"purpose": "other", "questions": [question | {"second": "s"}]}
    assert is_problem(trainer.post(f"{API}/rounds", json=wrong), 422, "malformed")


def test_undo_release_and_heartbeat_over_http(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    client = service.client(Role.ANNOTATOR)
    lease = take(client)
    assert client.post(f"{API}/leases/{lease}/heartbeat").json()["expires_ms"] > service.queue.now_ms
    client.put(f"{API}/answers/key-00001", json={"lease": lease, **SAFE})
    assert client.post(f"{API}/leases/{lease}/undo").json()["task"]["lease"] == lease
    assert client.post(f"{API}/leases/{lease}/release").json() == {"released": True}
    assert is_problem(client.post(f"{API}/leases/{lease}/heartbeat"), 410, "too_late")


def test_the_lead_sees_rounds_agreement_standing_disagreements_and_export(service: FreshService) -> None:
    round_ = service.queue.rounds.open(1, "safety", safety_questions(2), labels_each=2)
    lead = service.client(Role.LEAD)
    for role, label in ((Role.ANNOTATOR, "safe"), (Role.ADMIN, "unsafe")):
        client = service.client(role)
        for number in range(2):
            body = {"lease": take(client), "kind": "label", "given": {"safety": label}, "ms_spent": 3000}
            assert client.put(f"{API}/answers/{role.value}-000{number}", json=body).status_code == 201
    listed = lead.get(f"{API}/rounds").json()
    assert [(one["id"], one["missing"]) for one in listed["rounds"]] == [(round_.id, 0)]
    agreement = lead.get(f"{API}/rounds/{round_.id}/agreement").json()["agreement"]["safety"]
    assert (agreement["pairwise"], agreement["alpha"]) == (0.0, pytest.approx(-0.5))
    assert len(lead.get(f"{API}/rounds/{round_.id}/disagreements").json()["disagreements"]) == 2
    assert {row["handle"] for row in lead.get(f"{API}/quality").json()["people"]} == {"the annotator", "the admin"}
    first = lead.get(f"{API}/rounds/{round_.id}/export?limit=3").json()
    rest = lead.get(f"{API}/rounds/{round_.id}/export?limit=3&after={first['next']}").json()
    assert ([row["seq"] for row in first["answers"] + rest["answers"]], rest["next"]) == ([1, 2, 3, 4], None)
    assert lead.get(f"{API}/effects").json() == {"effects": []}
    assert is_problem(lead.get(f"{API}/rounds/nothing/agreement"), 404)


def test_an_admin_makes_people_guidelines_and_reads_the_log(service: FreshService) -> None:
    admin = service.client(Role.ADMIN)
    made = admin.post(f"{API}/people", json={"handle": "ana", "role": "annotator"})
    assert made.status_code == 201
    token = made.json()["token"]
    ana = service.client()
    assert ana.get(f"{API}/me", headers={"Authorization": f"Bearer {token}"}).json()["handle"] == "ana"
    assert is_problem(admin.post(f"{API}/people", json={"handle": "ana"}), 409, "conflict")
    assert token not in admin.get(f"{API}/people").text
    assert admin.put(f"{API}/guidelines", json={"markdown": "# New\n<script>x</script>"}).json() == {"version": 1}
    html = service.client(Role.ANNOTATOR).get(f"{API}/guidelines").json()["html"]
    assert "<script" not in html
    log = admin.get(f"{API}/audit").json()
    assert [event["action"] for event in log["events"]][-2:] == ["person.create", "guidelines.set"]
    assert (log["broken_links"], log["imbalances"]) == ([], [])
    assert token not in admin.get(f"{API}/audit").text
    assert len(admin.get(f"{API}/audit?limit=2").json()["events"]) == 2
    assert "/api/v1/lease" in admin.get(f"{API}/openapi.json").json()["paths"]


def test_the_description_says_how_to_sign_in_and_every_error(service: FreshService) -> None:
    described = service.client(Role.ADMIN).get(f"{API}/openapi.json").json()
    schemes = described["components"]["securitySchemes"]
    assert schemes["token"] == {"type": "http", "scheme": "bearer"}
    assert schemes["session"]["in"] == "cookie"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if (method.upper(), path) in PUBLIC:
                assert operation["security"] == []
                continue
            assert {"token": []} in operation["security"], (method, path)
            assert {"401", "403", "422", "429"} <= set(operation["responses"]), (method, path)
            if "{" in path:
                assert "404" in operation["responses"], (method, path)
            for status, answer in operation["responses"].items():
                assert int(status) < 400 or list(answer["content"]) == ["application/problem+json"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_gets_413(service: FreshService, chunked: bool) -> None:
    client = service.client(Role.ANNOTATOR)
    big = b'{"lease": "' + b"x" * 100_000 + b'"}'
    content = iter([big[:50_000], big[50_000:]]) if chunked else big
    assert is_problem(client.put(f"{API}/answers/key-00001", content=content), 413, "too_large")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"lease": "\\ud800", "kind": "skip"}', b"\xff\xfe", b"null"])
def test_broken_bodies_get_the_one_error_shape(service: FreshService, content: bytes) -> None:
    client = service.client(Role.ANNOTATOR)
    response = client.put(f"{API}/answers/key-00001", content=content, headers={"Content-Type": "application/json"})
    assert is_problem(response, 422, "malformed") or is_problem(response, 400), response.text


def test_too_many_requests_get_429_and_others_are_unharmed(queue: FreshQueue) -> None:
    service = FreshService(queue, WebSettings(requests_per_second=0.001, burst=5))
    client = service.client(Role.ANNOTATOR)
    answers = [client.get(f"{API}/me") for _ in range(6)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    assert is_problem(answers[5], 429, "too_many_requests")
    assert int(answers[5].headers["retry-after"]) > 0
    assert service.client(Role.LEAD).get(f"{API}/me").status_code == 200


def test_guessing_tokens_is_slowed_down(queue: FreshQueue) -> None:
    service = FreshService(queue, WebSettings(sign_ins_per_second=0.001, sign_in_burst=3))
    client = service.client()
    codes = [client.post(f"{API}/session", json={"token": f"guess {n}"}).status_code for n in range(4)]
    assert codes == [401, 401, 401, 429]


def test_wrong_tokens_of_an_address_lock_nobody_out_who_has_a_right_one(queue: FreshQueue) -> None:
    service = FreshService(queue, WebSettings(sign_ins_per_second=0.001, sign_in_burst=3))
    client = service.client()
    codes = [client.post(f"{API}/session", json={"token": f"guess {n}"}).status_code for n in range(30)]
    assert codes == [401] * 3 + [429] * 27
    for role in (Role.ANNOTATOR, Role.LEAD):
        assert client.post(f"{API}/session", json={"token": service.tokens[role]}).status_code == 200
    assert is_problem(client.post(f"{API}/session", json={"token": "guess 31"}), 429)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Ana", "ana", True), ("ana", "\u0430na", True), ("ana b", "ana_b", True), ("ana", "ana ", True),
        ("Ian", "lan", True), ("b0b", "bob", True), ("al1", "all", True), ("Jos\u00e9", "jose", True),
        ("ana", "anna", False), ("person 1", "person 11", False), ("simulated-1 11", "simulated-11 1", False),
    ],
)  # fmt: skip
def test_a_handle_that_looks_like_anothers_is_refused(service: FreshService, one: str, other: str, alike: bool) -> None:
    admin = service.client(Role.ADMIN)
    assert admin.post(f"{API}/people", json={"handle": one}).status_code == 201
    second = admin.post(f"{API}/people", json={"handle": other})
    assert second.status_code == (409 if alike else 201)
    if alike:
        assert "looks like" in second.json()["detail"]


def test_a_bucket_fills_again_with_time() -> None:
    now = 0.0
    limit = RateLimit(2.0, 1.0, lambda: now)
    limit.take("a")
    with pytest.raises(ApiError):
        limit.take("a")
    now = 0.5
    limit.take("a")


def test_a_daily_cap_is_a_friendly_429(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(3), labels_each=1)
    admin, client = service.client(Role.ADMIN), service.client(Role.ANNOTATOR)
    admin.patch(f"{API}/people/{service.people[Role.ANNOTATOR].id}", json={"daily_cap": 1})
    client.put(f"{API}/answers/key-00001", json={"lease": take(client), **SAFE})
    assert is_problem(client.post(f"{API}/lease", json={}), 429)
    admin.put(f"{API}/campaign", json={"paused": True})
    assert service.client(Role.LEAD).post(f"{API}/lease", json={}).json()["reason"] == "paused"


def test_an_unexpected_error_tells_a_number_and_nothing_else(
    service: FreshService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("pddpo_ray.annotation.queue.answers.Answers.progress", explode)
    response = service.client(Role.ANNOTATOR).get(f"{API}/progress")
    assert is_problem(response, 500, "internal")
    assert "secret" not in response.text
    assert response.json()["detail"].split()[-1] in caplog.text


def test_a_limits_own_question_has_its_heading_and_its_guidelines(service: FreshService) -> None:
    asks = "# Does it run the brand down?\n\nIrony counts. <script>alert(1)</script>"
    questions = [replace(one, asks=asks) for one in safety_questions(1)]
    service.queue.rounds.open(1, "measure-answers-brand", questions, labels_each=1)
    client = service.client(Role.ANNOTATOR)
    task = client.post(f"{API}/lease", json={}).json()["task"]
    assert task["kind"] == "safety"
    assert task["asks"]["heading"] == "Does it run the brand down?"
    assert "Irony counts." in task["asks"]["html"]
    assert "<script>" not in task["asks"]["html"]
    yes = {"kind": "label", "given": {"safety": "unsafe"}}
    client.put(f"{API}/answers/key-00001", json={"lease": task["lease"], **yes})
    again = client.post(f"{API}/leases/{task['lease']}/undo").json()["task"]
    assert again["asks"] == task["asks"]
    assert again["earlier"] == {"safety": "unsafe"}


def test_a_question_without_a_text_of_its_own_is_the_same_as_before(service: FreshService) -> None:
    (plain,) = safety_questions(1)
    assert plain.digest() != replace(plain, asks="Is it rude?").digest()
    assert plain.digest() == "d003e56e31f23a6ae4f449ee273eeb5673793a6ba1dc441117fab58ef5ca5a41"
    service.queue.rounds.open(1, "safety", [plain], labels_each=1)
    assert service.client(Role.ANNOTATOR).post(f"{API}/lease", json={}).json()["task"]["asks"] is None


def test_operations_have_short_names_of_their_own(service: FreshService) -> None:
    named = [one["operationId"] for path in service.app.openapi()["paths"].values() for one in path.values()]
    assert sorted(set(named)) == sorted(named)
    assert {"lease", "answer", "history", "erase"} <= set(named)
