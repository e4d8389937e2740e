"""People are paid at a rate of their own where an admin gave them one."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.worklog import Day, as_csv
from pddpo_ray.journal.annotation_schema import audit_event
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import safety_questions


def test_ones_own_rate_is_paid_and_the_default_to_the_others() -> None:
    """Half an hour at 18, at 20, and for nothing: 9, 10 and 0."""
    days = [Day("ana", "d", 3, 0, 1800.0, 18.0), Day("ben", "d", 2, 1, 1800.0), Day("cem", "d", 1, 0, 1800.0, 0.0)]
    assert as_csv(days, 20.0).splitlines() == [
        "person,day,answers,refusals,minutes,pay,rate",
        "ana,d,3,0,30.00,9.00,18.00",
        "ben,d,2,1,30.00,10.00,20.00",
        "cem,d,1,0,30.00,0.00,0.00",
    ]


def test_an_admin_sets_a_rate_and_takes_it_away_and_the_audit_log_keeps_both(service: FreshService) -> None:
    queue, admin, lead = service.queue, service.client(Role.ADMIN), service.client(Role.LEAD)
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    ana = queue.person("ana")
    held = queue.leases.lease(ana)
    assert isinstance(held, Lease)
    queue.wait(360)
    queue.answers.answer(ana, "key-00001", held.id, Submission("label", {"safety": "safe"}))
    path = f"{API}/people/{ana.id}"

    def pay() -> str:
        text: str = lead.get(f"{API}/worklog.csv?rate=10").text
        return text.splitlines()[1].split(",", 5)[5]

    assert pay() == "1.00,10.00"
    assert admin.patch(path, json={"hourly_rate": 25}).json()["hourly_rate"] == 25
    assert pay() == "2.50,25.00"
    assert lead.get(f"{API}/worklog").json()["days"][0]["rate"] == 25
    assert admin.patch(path, json={"daily_cap": 7}).json()["hourly_rate"] == 25, "another change leaves it"
    assert admin.patch(path, json={"hourly_rate": None}).json()["hourly_rate"] is None
    assert pay() == "1.00,10.00"
    with queue.engine.connect() as connection:
        events = connection.execute(select(audit_event).where(audit_event.c.action == "person.change"))
        said = [row.data for row in events.all() if "hourly_rate" in row.data]
    assert said == [{"hourly_rate": 25.0}, {"hourly_rate": None}]


@pytest.mark.parametrize("rate", [-1, 1e7, "much"])
def test_a_rate_that_is_none_is_refused(service: FreshService, rate: object) -> None:
    path = f"{API}/people/{service.people[Role.ANNOTATOR].id}"
    assert is_problem(service.client(Role.ADMIN).patch(path, json={"hourly_rate": rate}), 422)
    assert is_problem(service.client(Role.LEAD).patch(path, json={"hourly_rate": 5}), 403)
