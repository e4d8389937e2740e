"""A lead's day without a terminal: from inviting people to paying them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select

from pddpo_ray.annotation.people.accounts import Person, Role
from pddpo_ray.annotation.queue.answer_forms import screen_form
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.journal.annotation_schema import lease
from tests.browser.screen import HEADINGS, LOW_CONTRAST, Screen, pairs, safety
from tests.support.annotation_api import FreshService

pytestmark = pytest.mark.browser

PREFERS_FIRST = {"more_helpful": "first", "more_harmful": "second", "first_safety": "safe", "second_safety": "unsafe"}
PREFERS_SECOND = {"more_helpful": "second", "more_harmful": "tie", "first_safety": "safe", "second_safety": "safe"}


def joins(browser: Browser, url: str, link: str) -> str:
    """Somebody opens the link that they were sent, makes the account and begins. Returns their token."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(link)
    expect(page.get_by_role("heading", name="You are invited")).to_be_visible()
    assert page.evaluate(LOW_CONTRAST) == []
    page.get_by_role("button", name="Make my account").click()
    expect(page.locator("#invited-text")).to_contain_text("Keep this token")
    token = page.locator("#invited-token").inner_text()
    page.get_by_role("button", name="I have kept it: continue").click()
    expect(page.get_by_role("heading", name="Before you begin")).to_be_visible()
    page.locator("#begin").click()
    expect(page.get_by_role("heading", name="Before you begin")).to_be_hidden()
    page.goto("about:blank")
    page.goto(link)
    page.get_by_role("button", name="Make my account").click()
    expect(page.locator("#invited-error")).to_contain_text("was used or has expired")
    context.close()
    return token


def works(service: FreshService, person: Person, says: Any, most: int = 1000) -> None:
    """Answers up to `most` questions; `says` gives the stored form for a question."""
    queue = service.queue
    queue.leases.release_all(person.id)
    for _ in range(most):
        held = queue.leases.lease(person)
        if not isinstance(held, Lease):
            return
        with queue.engine.connect() as connection:
            swap = connection.execute(select(lease.c.swap).where(lease.c.id == held.id)).scalar_one()
        queue.wait(20)
        shown = screen_form(held.kind, says(held), swap)
        queue.answers.answer(person, held.id[:40], held.id, Submission("label", shown, ms_spent=20_000))


def shows(page: Page, batch: str) -> None:
    page.get_by_role("button", name=batch).click()
    expect(page.locator("#agreement-of")).to_have_text(f"({batch[0].lower()}{batch[1:]})")


def decides(page: Page, decision: str, reason: str) -> None:
    page.locator(f"#choices [data-name={decision}]").click()
    page.locator("#decide-reason").fill(reason)
    page.locator("#decide").get_by_role("button", name="Do it").click()
    expect(page.locator("#decide")).to_be_hidden()


def test_a_lead_finishes_a_day_without_a_terminal(
    browser: Browser, service: FreshService, screen: Screen, tmp_path: Path
) -> None:
    queue, page = service.queue, screen.page
    page.set_viewport_size({"width": 1440, "height": 900})
    screen.sign_in(service.tokens[Role.ADMIN])
    page.goto(f"{screen.url}/lead")

    # invite three people
    people = {}
    for name in ("ana", "ben", "carla"):
        page.get_by_label("Name").fill(name)
        page.get_by_role("button", name="Invite by link").click()
        expect(page.locator("#new-token")).to_contain_text(f"Send {name} this link")
        person = queue.people.by_token(joins(browser, screen.url, page.locator("#new-token").inner_text().split()[-1]))
        assert person is not None
        people[name] = person
    page.reload()
    expect(page.locator("#accounts tr", has_text="carla")).to_contain_text("active")

    # import twenty control questions
    file = tmp_path / "gold.jsonl"
    line = {"kind": "safety", "first": "x", "gold": {"safety": "unsafe"}}
    file.write_text("".join(json.dumps(line | {"item": f"g{n}", "prompt": f"known {n}"}) + "\n" for n in range(20)))
    page.get_by_label("Import (one JSON object a line)").set_input_files(file)
    page.get_by_role("button", name="Check the file").click()
    page.get_by_role("button", name="Add 20 control questions").click()
    expect(page.locator("#gold-said")).to_have_text("20 control questions added")

    # a coin tosser is flagged, within sixty answers
    deadline = queue.now_ms + 3_600_000
    safe = queue.rounds.open(1, "safety", safety(["Rest."] * 60), labels_each=5, deadline_ms=deadline, priority=1)
    compare = queue.rounds.open(1, "compare", pairs(4), labels_each=1, labels_of={"p0": 3})
    others = [queue.person(name) for name in ("dora", "emil")]
    for person in (people["ana"], people["ben"], *others):
        works(service, person, lambda one: {"safety": "safe"}, most=60)
    rng = np.random.default_rng(3)
    works(service, people["carla"], lambda one: {"safety": "unsafe" if rng.random() < 0.5 else "safe"}, most=50)
    page.reload()
    row = page.locator("#people tr", has_text="carla")
    expect(row).to_contain_text("agrees too rarely")
    expect(page.locator("#people .flagged")).to_have_count(1)
    page.locator("#people").scroll_into_view_if_needed()
    screen.picture("lead-flag")

    # exclude them
    row.get_by_role("button", name="Decide about carla").click()
    expect(page.locator("#judge-evidence")).to_contain_text("differs from the others")
    page.get_by_label("Exclude from now on").check()
    page.locator("#judge-reason").fill("answers like a coin")
    screen.picture("lead-decide-person")
    page.locator("#judge").get_by_role("button", name="Do it").click()
    expect(row).to_contain_text("Exclude from now on (the admin: answers like a coin)")
    assert not next(one for one in queue.people.all() if one.handle == "carla").active

    # extend the deadline
    shows(page, "Round 1, safety")
    decides(page, "extend", "one person left")
    extended = queue.rounds.status(safe.id).deadline_ms
    assert extended is not None
    assert extended != deadline

    # adjudicate a disagreement
    shows(page, "Round 1, compare")
    pair = lambda given: lambda one: {"safety": "safe"} if one.kind == "safety" else given  # noqa: E731
    works(service, people["ana"], pair(PREFERS_FIRST))
    works(service, people["ben"], pair(PREFERS_SECOND))
    page.reload()
    shows(page, "Round 1, compare")
    split = page.locator("#disagreements details").first
    split.locator("summary").click()
    split.get_by_label("more harmful").select_option("second")
    split.get_by_label("second safety").select_option("unsafe")
    split.get_by_label("more helpful").select_option("first")
    split.get_by_label("Reason for this decision").fill("the second answer is dangerous")
    screen.picture("lead-adjudicate")
    split.get_by_role("button", name="Decide").click()
    expect(split).to_contain_text("Decided by the admin: more helpful first, more harmful second")

    # accept a partial round
    shows(page, "Round 1, safety")
    missing = queue.rounds.status(safe.id).missing
    assert missing > 0
    expect(page.locator("#outlook")).to_contain_text(f"with the {missing} missing labels")
    decides(page, "accept", "enough is known")
    expect(page.locator("#situation")).to_have_text("The run continues without the missing labels.")
    assert queue.rounds.status(compare.id).missing > 0
    shows(page, "Round 1, compare")
    decides(page, "accept", "one decided pair is enough")
    snapshot = queue.rounds.snapshot(compare.id)
    assert snapshot is not None
    assert list(snapshot.adjudicated.values()) == [PREFERS_FIRST]

    # pay
    page.get_by_label("Default pay per hour").fill("18")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    rows = [one.split(",") for one in Path(download.value.path()).read_text().splitlines()]
    paid = {one[0]: float(one[5]) for one in rows[1:]}
    worked = {one[0]: float(one[4]) for one in rows[1:]}
    assert set(paid) == {"ana", "ben", "carla", "dora", "emil"}
    assert all(paid[name] == pytest.approx(18 * worked[name] / 60, abs=0.01) for name in paid)
    assert page.evaluate(HEADINGS) == ["Labelling: lead"]
    assert page.evaluate(LOW_CONTRAST) == []
    assert imbalances(queue.store) == []
    assert broken_links(queue.store) == []
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#people").scroll_into_view_if_needed()
    screen.picture("lead-flag-phone")
    assert screen.clean()
