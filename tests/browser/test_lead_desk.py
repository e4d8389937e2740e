"""What a lead reads and does on the lead's page about guidelines and single labels, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, expect

from deploy.annotation.app import create_app
from pddpo_ray.annotation.people.accounts import DEFAULT_GUIDELINES, Campaign, People, Person, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.question_files import read_questions
from pddpo_ray.annotation.queue.question_store import RULES, add_questions, begin
from tests.browser.screen import LOW_CONTRAST, Screen, pairs, until
from tests.browser.test_accessible import findings
from tests.browser.test_lead_day import PREFERS_FIRST, PREFERS_SECOND, works
from tests.support.annotation_api import GENEROUS, FreshService
from tests.support.annotation_queue import safety_questions
from tests.support.annotation_server import serving
from tests.support.tiers import in_full

pytestmark = pytest.mark.browser


def answers(service: FreshService, person: Person, said: str, key: str = "") -> None:
    lease = service.queue.leases.lease(person)
    assert isinstance(lease, Lease)
    service.queue.answers.answer(
        person, key or f"key-of-{person.handle}", lease.id, Submission("label", {"safety": said})
    )


def opened_disagreement(service: FreshService, screen: Screen) -> Locator:
    """The pair of an open batch on which two people differ, opened on the lead's page."""
    works(service, service.queue.person("ana"), lambda one: PREFERS_FIRST)
    works(service, service.queue.person("ben"), lambda one: PREFERS_SECOND)
    screen.sign_in(service.tokens[Role.LEAD])
    screen.page.goto(f"{screen.url}/lead")
    split = screen.page.locator("#disagreements details")
    split.locator("summary").click()
    return split


@pytest.mark.full
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


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), *in_full((360, "dark"))])
def test_a_lead_takes_out_a_label_that_nobody_contradicts_and_reads_why_another_stays(
    service: FreshService, screen: Screen, width: int, scheme: Literal["light", "dark"]
) -> None:
    queue, page = service.queue, screen.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    batch = queue.rounds.open(1, "safety", safety_questions(1), labels_each=2)
    ana, ben = queue.person("ana"), queue.person("ben")
    for person in (ana, ben):
        answers(service, person, "safe")
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    labels = page.locator("#labels details")
    expect(labels).to_have_count(2)
    page.get_by_label("Of", exact=True).select_option("ana")
    expect(labels).to_have_count(1)
    labels.locator("summary").click()
    page.get_by_role("button", name="Take out").click()
    expect(page.locator("#problem")).not_to_be_empty()
    assert queue.rounds.status(batch.id).counted == 2, "nothing is taken out without a reason"
    page.get_by_label("Why the answer of ana should not count").fill("she told us of a slip")
    page.get_by_role("button", name="Take out").click()
    expect(labels.locator("summary")).to_contain_text("ana: safety safe (taken out)")
    expect(labels).to_contain_text("Taken out by the lead: she told us of a slip")
    expect(page.locator("#problem")).to_be_empty()
    assert queue.rounds.status(batch.id).counted == 1
    assert page.evaluate(LOW_CONTRAST) == []
    assert findings(page) == []
    answers(service, queue.person("cem"), "safe")
    queue.rounds.freeze(batch.id)
    page.reload()
    page.get_by_label("Of", exact=True).select_option("ben")
    expect(labels).to_have_count(1)
    labels.locator("summary").click()
    expect(labels).to_contain_text("It cannot be taken out: round 1, safety is closed and the run has used this label")
    expect(page.get_by_role("button", name="Take out")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#labels").evaluate("(one) => one.closest('section').scrollIntoView()")
    screen.picture(f"lead-labels-{width}")


@pytest.mark.full
def test_a_decision_half_written_stays_when_the_page_is_read_again(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    batch = queue.rounds.open(1, "compare", pairs(1), labels_each=2)
    split = opened_disagreement(service, screen)
    split.get_by_label("more helpful").select_option("tie")
    split.get_by_label("Reason for this decision").fill("both say")
    again = page.get_by_role("button", name="Round 1, compare")
    for _ in range(2):
        with page.expect_response("**/api/v1/effects"):
            again.click()
    expect(split.get_by_label("more helpful")).to_have_value("tie")
    expect(split.get_by_label("Reason for this decision")).to_have_value("both say")
    split.get_by_role("button", name="Decide").click()
    expect(split).to_contain_text("Decided by the lead: more helpful tie")
    expect(split.get_by_label("Reason for this decision")).to_be_empty()
    queue.wait(10)
    queue.rounds.freeze(batch.id)
    snapshot = queue.rounds.snapshot(batch.id)
    assert snapshot is not None
    assert [given["more_helpful"] for given in snapshot.adjudicated.values()] == ["tie"]
    assert screen.clean()


@pytest.mark.full
def test_a_decision_that_is_sent_while_the_page_is_read_again_is_no_draft(
    service: FreshService, screen: Screen
) -> None:
    queue, page = service.queue, screen.page
    queue.rounds.open(1, "compare", pairs(1), labels_each=2)
    split = opened_disagreement(service, screen)
    split.get_by_label("Reason for this decision").fill("both say")
    held: list[Any] = []
    page.route("**/adjudicate", lambda route: held.append(route))
    split.get_by_role("button", name="Decide").click()
    until(page, lambda: bool(held), "the decision is on its way")
    with page.expect_response("**/guidelines/versions"):
        page.get_by_role("button", name="Round 1, compare").click()
    held.pop().continue_()
    expect(split).to_contain_text("Decided by the lead")
    expect(split.get_by_label("Reason for this decision")).to_be_empty()
    assert screen.clean()


@pytest.mark.full
def test_a_reply_about_the_batch_before_is_not_shown_below_the_next_one(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    ana = queue.person("ana")
    for number in (1, 2):
        queue.rounds.open(number, "safety", safety_questions(1), labels_each=1)
        answers(service, ana, "safe", f"key-of-round-{number}")
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    held: list[Any] = []
    page.route("**/labels?*", lambda route: route.continue_() if held else held.append(route))
    page.get_by_role("button", name="Round 1, safety").click()
    until(page, lambda: bool(held), "the labels of the first batch are asked for")
    shown = page.locator("#labels details")
    page.get_by_role("button", name="Round 2, safety").click()
    expect(shown).to_have_attribute("data-name", "key-of-round-2")
    with page.expect_response("**/labels?*"):
        held.pop().continue_()
    page.wait_for_timeout(100)  # it has read the reply
    assert shown.get_attribute("data-name") == "key-of-round-2"
    assert screen.clean()


@pytest.mark.full
def test_a_decision_is_about_the_batch_that_its_dialog_names(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    safe = queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    compare = queue.rounds.open(2, "compare", pairs(1), labels_each=1)
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    page.get_by_role("button", name="Round 1, safety").click()
    shown = page.locator("#agreement-of")
    expect(shown).to_have_text("(round 1, safety)")
    held: list[Any] = []
    page.route("**/api/v1/rounds", lambda route: held.append(route))
    page.get_by_role("button", name="Round 2, compare").click()
    until(page, lambda: bool(held), "the other batch is asked for")
    page.locator("#choices [data-name=stop]").click()
    expect(page.locator("#decide-title")).to_have_text("Stop the run: round 1, safety")
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/rounds")
    expect(shown).to_have_text("(round 2, compare)")
    page.locator("#decide-reason").fill("the labels are wrong")
    page.locator("#decide").get_by_role("button", name="Do it").click()
    expect(page.locator("#decide")).to_be_hidden()
    assert queue.rounds.status(safe.id).state == "cancelled"
    assert queue.rounds.status(compare.id).state == "open"
    assert screen.clean()


@pytest.mark.full
def test_many_labels_are_read_page_by_page(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    queue.rounds.open(1, "safety", safety_questions(25), labels_each=1)
    ana = queue.person("ana")
    for number in range(25):
        answers(service, ana, "safe", f"key-{number:05d}")
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    labels, older, newer = page.locator("#labels details"), page.locator("#labels-older"), page.locator("#labels-newer")
    expect(labels).to_have_count(20)
    expect(newer).to_be_disabled()
    older.click()
    expect(labels).to_have_count(5)
    expect(older).to_be_disabled()
    newer.click()
    expect(labels).to_have_count(20)
    assert screen.clean()


@pytest.mark.full
def test_the_keyboard_stays_where_it_was_when_the_page_is_read_again(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    queue.rounds.open(1, "compare", pairs(2), labels_each=1)
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    again = page.get_by_role("button", name="Round 1, compare")
    reached = [again, page.locator("#choices button").first, page.locator("#versions button").first]
    for one in [again, *reached]:
        one.focus()
        with page.expect_response("**/guidelines/versions"):
            again.evaluate("(one) => one.click()")
        page.wait_for_timeout(100)  # it has read the reply
        expect(one).to_be_focused()
    assert screen.clean()


@pytest.mark.full
def test_a_lead_of_a_file_of_questions_reads_nothing_about_a_run(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"kind": "safety", "prompt": "Hi?", "response": "Hello."}\n')
    store = begin(tmp_path / "store")
    add_questions(store, read_questions(tmp_path / "q.jsonl"), labels_each=1)
    _, token = People(store).create("lead", Role.LEAD, by="test")
    with serving(create_app(store.engine, store.run, RULES, GENEROUS)) as url:
        screen = Screen(browser.new_page(), url)
        screen.sign_in(token)
        screen.page.goto(f"{url}/lead")
        expect(screen.page.locator("#situation")).to_have_text("People are being asked for these labels.")
        screen.page.get_by_role("button", name="Stop the batch").click()
        expect(screen.page.locator("#decide-means")).to_contain_text("Its answers stay stored")
        screen.page.get_by_role("textbox", name="Why (kept in the audit log)", exact=True).fill("enough")
        screen.page.get_by_role("button", name="Do it").click()
        expect(screen.page.locator("#situation")).to_have_text(
            "The batch is stopped: nobody is asked until it is open again."
        )
        assert "run" not in screen.page.locator("#situation").inner_text().split()
        assert screen.clean()
    store.engine.dispose()
