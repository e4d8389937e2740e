"""Questions in people's hands: given back on leaving, recalled by a lead, kept by nobody for ever; and hours worked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from deploy.annotation.app import create_app
from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.queue_rules import Outcome, QueueError
from pddpo_ray.annotation.queue.worklog import WorkLog, as_csv, worked_ms
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.journal.annotation_schema import answer
from pddpo_ray.journal.schema import run
from tests.support.annotation_api import API, GENEROUS, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, expire, safety_questions

SAFE = Submission("label", {"safety": "safe"})


def take(queue: FreshQueue, person: Person) -> Lease:
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    return lease


def test_a_page_that_closes_takes_nothing_from_the_page_that_follows_it(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    ana = queue.person("ana")
    closed = take(queue, ana)
    queue.wait(1)
    opened = take(queue, ana)
    assert opened.id == closed.id
    assert not queue.leases.release(ana, closed.id, closed.expires_ms)
    assert [one.handle for one in queue.leases.held()] == ["ana"]
    assert queue.leases.release(ana, opened.id, opened.expires_ms)
    assert queue.leases.held() == []
    assert queue.leases.release(ana, opened.id, opened.expires_ms), "again: it is free"
    assert imbalances(queue.store) == []


def test_a_question_is_kept_by_heartbeats_for_two_hours_and_no_longer(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    ana, ben = queue.person("ana"), queue.person("ben")
    lease, began, beats = take(queue, ana), queue.now_ms, 0
    while queue.now_ms < began + 7199 * 1000 - 60_000:
        queue.wait(60)
        assert expire(queue.leases) == 0
        assert queue.leases.heartbeat(ana, lease.id) <= began + 7200 * 1000
        beats += 1
    assert beats == 119
    queue.wait(60)
    assert expire(queue.leases) == 1
    with pytest.raises(QueueError, match="no longer reserved"):
        queue.leases.heartbeat(ana, lease.id)
    assert take(queue, ben).prompt == lease.prompt


def test_a_lead_recalls_a_question_and_what_comes_late_still_counts(service: FreshService) -> None:
    queue = service.queue
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    ana = queue.person("ana")
    lease = take(queue, ana)
    lead = service.client(Role.LEAD)
    (held,) = lead.get(f"{API}/leases").json()["leases"]
    assert (held["handle"], held["round"], held["id"]) == ("ana", 1, lease.id)
    assert lead.post(f"{API}/leases/{lease.id}/recall", json={"reason": "gone home"}).status_code == 200
    assert is_problem(lead.post(f"{API}/leases/{lease.id}/recall", json={}), 409)
    assert is_problem(lead.post(f"{API}/leases/nothing0/recall", json={}), 404)
    assert lead.get(f"{API}/leases").json()["leases"] == []
    receipt = queue.answers.answer(ana, "key-00001", lease.id, SAFE)
    assert (receipt.outcome, receipt.late) == (Outcome.COUNTED, True)
    events = service.client(Role.ADMIN).get(f"{API}/audit").json()["events"]
    assert [(one["actor"], one["data"]) for one in events if one["action"] == "lease.recall"] == [
        (service.people[Role.LEAD].id, {"reason": "gone home"})
    ]
    assert imbalances(queue.store) == []


def test_signing_out_gives_questions_back_with_the_last_session(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(3), labels_each=1)
    browsers = []
    for _ in range(2):
        client = service.client()
        me = client.post(f"{API}/session", json={"token": service.tokens[Role.ANNOTATOR]}).json()
        client.headers["X-CSRF-Token"] = me["csrf"]
        browsers.append(client)
    version = browsers[0].get(f"{API}/notice").json()["version"]
    browsers[0].post(f"{API}/consent", json={"version": version})
    assert browsers[0].post(f"{API}/lease", json={}).json()["task"]
    browsers[1].delete(f"{API}/session")
    assert len(service.queue.leases.held()) == 1
    browsers[0].delete(f"{API}/session")
    assert service.queue.leases.held() == []


def test_two_runs_on_one_host_do_not_sign_each_other_out(service: FreshService) -> None:
    """Browsers send a host's cookies to all its ports."""
    with service.queue.engine.begin() as connection:
        connection.execute(insert(run).values(id="other", recipe={}, fixed_settings={}, created_ms=0))
    one = service.client()
    assert one.post(f"{API}/session", json={"token": service.tokens[Role.ANNOTATOR]}).status_code == 200
    other = TestClient(create_app(service.queue.engine, "other", service.queue.rules, GENEROUS), cookies=one.cookies)
    assert other.post(f"{API}/session", json={"token": service.tokens[Role.LEAD]}).status_code == 200
    one.cookies.update(other.cookies)
    assert one.get(f"{API}/me").json()["handle"] == "the annotator"
    assert other.get(f"{API}/me").json()["handle"] == "the lead"


def test_a_new_deadline_is_counted_by_the_servers_clock(service: FreshService) -> None:
    status = service.queue.rounds.open(1, "safety", safety_questions(1), labels_each=1, deadline_ms=0)
    lead = service.client(Role.LEAD)
    path = f"{API}/rounds/{status.id}/decision"
    moved = lead.post(path, json={"decision": "extend", "after_s": 90}).json()
    assert moved["deadline_ms"] == service.queue.now_ms + 90_000
    assert is_problem(lead.post(path, json={"decision": "extend", "after_s": 90, "deadline_ms": 5}), 422)


@pytest.mark.parametrize(
    ("given", "worked"),
    [
        ([], []),
        ([(0, 40)], [40]),
        ([(0, 40), (10, 70)], [40, 30]),  # fetched in advance: counts from the answer before
        ([(0, 40), (500, 520)], [40, 20]),  # a break
        ([(0, 900)], [100]),  # walked away with the question open
        ([(0, 40), (10, 900)], [40, 100]),
        ([(60, 40), (50, 55)], [0, 5]),  # handed out again after it was taken back
    ],
)
def test_work_is_counted_between_question_and_answer_and_never_beyond_the_idle_limit(
    given: list[tuple[int, int]], worked: list[int]
) -> None:
    assert worked_ms(given, idle_ms=100) == worked


@pytest.mark.slow
def test_hours_come_from_the_servers_clock_whatever_the_browser_says(service: FreshService) -> None:
    queue = service.queue
    status = queue.rounds.open(1, "safety", safety_questions(4), labels_each=1)
    ana = queue.person("ana")
    for number, (seconds, claimed) in enumerate([(30, 9_999_999), (90, 0), (4000, 50)]):
        lease = take(queue, ana)
        queue.wait(seconds)
        queue.answers.answer(ana, f"key-{number:05d}", lease.id, replace(SAFE, ms_spent=claimed))
    lease = take(queue, ana)
    queue.wait(6)
    queue.answers.answer(ana, "key-00009", lease.id, Submission("skip", reason="other"))
    with queue.engine.connect() as connection:
        times = [row.ms_spent for row in connection.execute(answer.select().order_by(answer.c.seq))]
    assert times == [30_000, 0, 50, 0], "nobody spent more time than passed"
    log = WorkLog(queue.store, idle_s=600)
    (day,) = log.days()
    assert (day.handle, day.answers, day.refusals, day.seconds) == ("ana", 3, 1, 30 + 90 + 600 + 6)
    assert log.seconds(status.id) == 726
    lead = service.client(Role.LEAD)
    assert lead.get(f"{API}/worklog").json()["days"][0]["seconds"] == 726
    text = lead.get(f"{API}/worklog.csv?rate=20").text
    assert text == as_csv([day], 20.0)
    assert text.splitlines()[1] == f"ana,{day.day},3,1,12.10,4.03,20.00"
    assert as_csv([replace(day, handle="=1+1")], 0.0).splitlines()[1].startswith("'=1+1,")
