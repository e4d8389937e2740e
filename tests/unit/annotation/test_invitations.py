"""Invitations by link: one account, once, and not for ever."""

from __future__ import annotations

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.people.invitations import Invitation, Invitations
from pddpo_ray.annotation.queue.queue_rules import QueueError
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue


def test_a_link_makes_one_account_once_and_ends_after_its_time(queue: FreshQueue) -> None:
    desk = Invitations(queue.store)
    replaced = desk.make("ana", Role.ANNOTATOR, by="admin")
    code = desk.make("ana", Role.LEAD, by="admin", sees_harmful=False, daily_cap=7, expires_s=3600)
    assert desk.open() == [Invitation("ana", "lead", queue.now_ms + 3_600_000)]
    with pytest.raises(QueueError, match="used or has expired"):
        desk.accept(replaced)
    person, token = desk.accept(code)
    assert (person.handle, person.role, person.sees_harmful, person.daily_cap) == ("ana", Role.LEAD, False, 7)
    assert queue.people.by_token(token) == person
    for used in (code, "never"):
        with pytest.raises(QueueError, match="used or has expired"):
            desk.accept(used)
    late = desk.make("ben", Role.ANNOTATOR, by="admin", expires_s=60)
    queue.wait(61)
    assert desk.open() == []
    with pytest.raises(QueueError, match="used or has expired"):
        desk.accept(late)
    with pytest.raises(QueueError, match="already"):
        desk.make("ana", Role.ANNOTATOR, by="admin")
    with pytest.raises(QueueError, match="looks like"):
        desk.make("Ana", Role.ANNOTATOR, by="admin")


def test_who_took_the_handle_meanwhile_keeps_it_and_the_link_stays_unused(queue: FreshQueue) -> None:
    desk = Invitations(queue.store)
    code = desk.make("ana", Role.ANNOTATOR, by="admin")
    queue.person("ana")
    with pytest.raises(QueueError, match="already"):
        desk.accept(code)
    assert [one.handle for one in desk.open()] == ["ana"]


def test_an_admin_invites_over_the_api_and_the_link_signs_in(service: FreshService) -> None:
    admin, nobody = service.client(Role.ADMIN), service.client()
    assert is_problem(service.client(Role.LEAD).post(f"{API}/invitations", json={"handle": "ana"}), 403)
    made = admin.post(f"{API}/invitations", json={"handle": "ana", "expires_s": 600})
    assert made.status_code == 201
    assert [one["handle"] for one in admin.get(f"{API}/invitations").json()["invitations"]] == ["ana"]
    assert is_problem(nobody.post(f"{API}/invitation", json={"code": "wrong"}), 404)
    accepted = nobody.post(f"{API}/invitation", json={"code": made.json()["code"]})
    assert accepted.status_code == 201
    assert accepted.json()["handle"] == "ana"
    assert nobody.get(f"{API}/me").json()["handle"] == "ana", "the link opened a session"
    assert service.queue.people.by_token(accepted.json()["token"]) is not None
    assert is_problem(nobody.post(f"{API}/invitation", json={"code": made.json()["code"]}), 404)
