"""What an admin does on the lead's page, in a real browser, without a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from pddpo_ray.annotation.people.accounts import Campaign, Person, Role
from pddpo_ray.annotation.people.personal_data import PersonalData
from pddpo_ray.annotation.queue.controls import Controls
from tests.browser.screen import LOW_CONTRAST, Screen, pairs, until
from tests.browser.test_accessible import findings
from tests.support.annotation_api import FreshService
from tests.support.tiers import in_full
from tests.unit.annotation.test_personal_data import NAME, worked

pytestmark = pytest.mark.browser


def person(service: FreshService, handle: str) -> Person:
    return next(one for one in service.queue.people.all() if one.handle == handle)


def changed(service: FreshService, handle: str) -> tuple[int, Role, float | None]:
    one = person(service, handle)
    return one.daily_cap, one.role, one.hourly_rate


def accounts_with_ben(service: FreshService, screen: Screen) -> Page:
    """The admin's page, on which there is an annotator ben."""
    service.queue.people.create("ben", Role.ANNOTATOR, by="admin")
    screen.sign_in(service.tokens[Role.ADMIN])
    screen.page.goto(f"{screen.url}/lead")
    return screen.page


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), *in_full((360, "dark"))])
def test_an_admin_invites_imports_control_questions_and_writes_guidelines(
    service: FreshService, screen: Screen, tmp_path: Path, width: int, scheme: Any
) -> None:
    page = screen.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    screen.sign_in(service.tokens[Role.ADMIN])
    page.goto(f"{screen.url}/lead")
    for name in ("ana", "ben", "carla"):
        page.get_by_label("Name").fill(name)
        page.get_by_role("button", name="Make a token").click()
        expect(page.locator("#new-token")).to_contain_text(f"{name} signs in with this token")
    token = page.locator("#new-token").inner_text().split()[-1]
    carla = service.queue.people.by_token(token)
    assert carla is not None
    assert carla.handle == "carla"
    mine = page.locator("#accounts tr", has_text="carla")
    mine.get_by_role("button", name="Mild texts only").click()
    expect(mine.get_by_role("button", name="All texts")).to_be_visible()
    mine.get_by_role("button", name="Pause").click()
    expect(mine.get_by_role("button", name="Resume")).to_be_visible()
    assert service.queue.people.by_token(token) is None
    page.get_by_label("Answers a day of ben", exact=True).fill("40")
    page.get_by_label("Answers a day of ben", exact=True).press("Tab")
    page.get_by_label("Role of ben").select_option("lead")
    pay = page.get_by_label("Pay per hour of ben")
    pay.fill("17.5")
    pay.press("Tab")
    until(page, lambda: changed(service, "ben") == (40, Role.LEAD, 17.5), "the new limit, role and rate")
    pay.fill("")
    pay.press("Tab")
    until(page, lambda: changed(service, "ben") == (40, Role.LEAD, None), "the default rate again")
    page.get_by_label("Role of the admin").select_option("annotator")
    expect(page.locator("#problem")).to_contain_text("this is the only admin: make another one first")
    expect(page.get_by_label("Role of the admin")).to_have_value("admin")

    lines = [
        {"kind": "safety", "item": f"g{n}", "prompt": f"gold {n}", "first": "x", "gold": {"safety": "unsafe"}}
        for n in range(20)
    ]
    bad = lines[0] | {"item": "bad", "gold": {"safety": "no"}}
    file = tmp_path / "gold.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, bad]))
    page.get_by_label("Import (one JSON object a line)").set_input_files(file)
    page.get_by_role("button", name="Check the file").click()
    said, previewed = page.locator("#gold-said"), page.locator("#gold-lines tr")
    expect(said).to_have_text("20 would be added, 0 are there already, 1 are refused")
    expect(previewed.first).to_contain_text("is refused: control question bad: safety is safe or unsafe, not 'no'")
    expect(previewed.last).to_have_text("20gold 19safety: unsafeis added")
    page.locator("#gold-preview").evaluate("(one) => one.closest('section').scrollIntoView()")
    screen.picture(f"lead-controls-{width}")
    assert findings(page) == []
    page.locator("#gold-back").click()
    expect(page.locator("#gold-preview")).to_be_hidden()
    assert Controls(service.queue.store).all() == [], "a preview adds nothing"
    page.get_by_role("button", name="Check the file").click()
    page.get_by_role("button", name="Add 20 control questions").click()
    expect(said).to_have_text("20 control questions added")
    expect(page.locator("#gold tr")).to_have_count(20)
    page.get_by_label("Import (one JSON object a line)").set_input_files(file)
    page.get_by_role("button", name="Check the file").click()
    expect(said).to_have_text("0 would be added, 20 are there already, 1 are refused")
    expect(page.locator("#gold-add")).to_be_disabled()
    page.locator("#gold tr").first.get_by_role("button", name="Delete").click()
    expect(page.locator("#gold tr")).to_have_count(19)

    page.get_by_label("Text (Markdown)").fill("## Ours\n\nJudge harm alone.")
    page.get_by_role("button", name="Save as a new version").click()
    expect(page.locator("#guidelines-said")).to_contain_text("version 1")
    assert Campaign(service.queue.store).guidelines() == (1, "## Ours\n\nJudge harm alone.")
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#accounts").scroll_into_view_if_needed()
    screen.picture(f"lead-admin-{width}")


def test_an_admin_hands_out_what_is_stored_about_a_person_and_erases_it(service: FreshService, screen: Screen) -> None:
    person, _, _ = worked(service.queue)
    page = screen.page
    screen.sign_in(service.tokens[Role.ADMIN])
    page.goto(f"{screen.url}/lead")
    row = page.locator("#accounts tr", has_text=NAME)
    with page.expect_download() as download:
        row.get_by_role("button", name="Data").click()
    assert json.loads(Path(download.value.path()).read_text())["account"]["handle"] == NAME
    row.get_by_role("button", name="Erase").click()
    page.get_by_label("To be sure, type who it is").fill("somebody else")
    page.get_by_label("Why (kept in the audit log: leave out who it is)").fill("asked for it")
    assert page.evaluate(LOW_CONTRAST) == []
    page.locator("#erase").get_by_role("button", name="Erase").click()
    expect(page.locator("#erase-problem")).to_contain_text(NAME)
    page.get_by_label("To be sure, type who it is").fill(NAME)
    page.locator("#erase").get_by_role("button", name="Erase").click()
    expect(page.locator("#new-token")).to_contain_text("1 answers stay, under erased")
    expect(page.locator("#accounts")).not_to_contain_text(NAME)
    assert NAME not in json.dumps(PersonalData(service.queue.store, service.queue.rules).of(person.id))
    assert screen.clean()


@pytest.mark.full
def test_what_is_typed_while_an_earlier_change_is_answered_is_kept_and_sent(
    service: FreshService, screen: Screen
) -> None:
    page = accounts_with_ben(service, screen)
    cap = page.get_by_label("Answers a day of ben", exact=True)
    expect(cap).to_be_visible()
    held: list[Any] = []
    page.route("**/api/v1/people", lambda route: held.append(route))
    cap.fill("40")
    cap.press("Tab")
    until(page, lambda: changed(service, "ben")[0] == 40 and len(held) == 1, "the limit, and the question after it")
    dose = page.get_by_label("Unsafe answers a day of ben", exact=True)
    expect(dose).to_be_focused()
    page.keyboard.type("7")
    with page.expect_response("**/api/v1/people"):
        held.pop().continue_()
    page.unroute("**/api/v1/people")
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")  # the page has read the reply
    service.queue.people.create("cleo", Role.ANNOTATOR, by="admin")
    page.keyboard.type("5")
    page.keyboard.press("Tab")
    until(page, lambda: person(service, "ben").harmful_cap == 75, "the dose that was typed meanwhile")
    expect(page.get_by_label("Pay per hour of cleo")).to_be_visible()
    expect(page.get_by_label("Pay per hour of ben")).to_be_focused()
    assert screen.clean()


@pytest.mark.full
def test_what_a_field_holds_is_still_selected_when_an_earlier_change_is_answered(
    service: FreshService, screen: Screen
) -> None:
    page = accounts_with_ben(service, screen)
    held: list[Any] = []
    page.get_by_label("Answers a day of ben", exact=True).fill("40")
    page.route("**/api/v1/people", lambda route: held.append(route))
    page.keyboard.press("Tab")
    until(page, lambda: changed(service, "ben")[0] == 40 and len(held) == 1, "the limit, and the question after it")
    service.queue.people.create("abe", Role.ANNOTATOR, by="admin")
    held.pop().continue_()
    expect(page.get_by_label("Pay per hour of abe")).to_be_visible()
    page.keyboard.type("75")
    page.keyboard.press("Tab")
    until(page, lambda: held != [], "the change is sent")
    assert person(service, "ben").harmful_cap == 75
    expect(page.get_by_label("Pay per hour of ben")).to_be_focused()
    assert screen.clean()


@pytest.mark.full
def test_a_refusal_can_be_read_until_something_else_is_done(service: FreshService, screen: Screen) -> None:
    page = screen.page
    service.queue.rounds.open(1, "compare", pairs(1), labels_each=1)
    screen.sign_in(service.tokens[Role.ADMIN])
    page.goto(f"{screen.url}/lead")
    page.get_by_label("Role of the admin").select_option("annotator")
    refused = page.locator("#problem")
    expect(refused).to_contain_text("this is the only admin")
    with page.expect_response("**/guidelines/versions"):
        page.get_by_role("button", name="Round 1, compare").click()
    page.wait_for_timeout(200)  # the page has read the reply
    expect(refused).to_contain_text("this is the only admin")
    page.locator("#pause").click()
    expect(refused).to_be_empty()
