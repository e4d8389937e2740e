"""What a lead reads and does on the lead's page about guidelines and single labels, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from pddpo_ray.annotation.answers import Submission
from pddpo_ray.annotation.leases import Lease
from pddpo_ray.annotation.people import DEFAULT_GUIDELINES, Campaign, Person, Role
from tests.annotation_api import FreshService
from tests.annotation_queue import safety_questions
from tests.browser.screen import LOW_CONTRAST, Screen
from tests.browser.test_accessible import findings

pytestmark = pytest.mark.browser


def answers(service: FreshService, person: Person, said: str) -> None:
    lease = service.queue.leases.lease(person)
    assert isinstance(lease, Lease)
    service.queue.answers.answer(person, f"key-of-{person.handle}", lease.id, Submission("label", {"safety": said}))


@pytest.mark.parametrize("width", [1440, 360])
def test_a_lead_reads_every_version_of_the_guidelines_and_which_one_an_answer_saw(
    service: FreshService, screen: Screen, width: int
) -> None:
    queue, page = service.queue, screen.page
    page.set_viewport_size({"width": width, "height": 900})
    queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    answers(service, queue.person("ana"), "safe")
    Campaign(queue.store).set_guidelines("# Ours\n\nJudge <i>harm</i> alone.", by=service.people[Role.ADMIN].id)
    answers(service, queue.person("ben"), "unsafe")
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    versions = page.locator("#versions tr")
    expect(versions).to_have_count(2)
    expect(versions.first).to_contain_text("1 (read now)the admin")
    expect(versions.last).to_contain_text("0comes with the package–1")
    expect(page.locator("#guidelines-form")).to_be_hidden()
    page.get_by_role("button", name="Show version 1").click()
    text = page.locator("#version-text")
    expect(text).to_have_text("# Ours\n\nJudge <i>harm</i> alone.")
    assert page.evaluate(LOW_CONTRAST) == []
    assert findings(page) == []
    screen.picture(f"lead-guidelines-{width}")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Show version 0").click()
    expect(text).to_have_text(DEFAULT_GUIDELINES)
    page.keyboard.press("Escape")
    page.locator("#disagreements summary").click()
    expect(page.locator("#disagreements")).to_contain_text("ana: safety safe (guidelines version 0)")
    expect(page.locator("#disagreements")).to_contain_text("ben: safety unsafe (guidelines version 1)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    screen.picture(f"lead-versions-{width}")
    assert screen.clean()
