"""Sessions, answers on their way, and reserved questions in a real browser: nothing that a person said is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import now_ms
from tests.browser.screen import LOW_CONTRAST, WIDE, Screen, pairs, safety, stored, until, wait_for_answers
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import RULES, FreshQueue, create_run
from tests.support.annotation_server import serving

pytestmark = pytest.mark.browser

KEPT = "Object.keys(localStorage).filter((name) => name.startsWith('pddpo-outbox')).length"


def end_sessions(service: FreshService, role: Role) -> None:
    """As after twelve hours, or when an admin has rotated the token."""
    for active in (False, True):
        service.queue.people.change(service.people[role].id, by="test", active=active)


def type_token(screen: Screen, token: str) -> None:
    expect(screen.page.locator("#token")).to_be_focused()
    screen.page.keyboard.type(token)
    screen.page.keyboard.press("Enter")


def sign_in_from_another_tab(screen: Screen, token: str) -> None:
    """A new session in the same browser: its cookie replaces the first one's."""
    tab = screen.page.context.new_page()
    tab.goto(f"{screen.url}/static/icon.svg")
    tab.goto(screen.url)
    status = tab.evaluate(
        "(token) => fetch('/api/v1/session', {method: 'POST', headers: {'Content-Type': 'application/json'},"
        " body: JSON.stringify({token})}).then((reply) => reply.status)",
        token,
    )
    assert status == 200
    tab.close()
    screen.page.bring_to_front()


def test_a_session_that_ends_with_a_question_open_goes_on_with_it_after_signing_in(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    token, page = service.tokens[Role.ANNOTATOR], screen.page
    screen.sign_in(token)
    expect(page.locator("#task")).to_be_visible()
    screen.one_ahead()
    first = page.locator("#prompt").inner_text()
    end_sessions(service, Role.ANNOTATOR)
    screen.keys("r", "s")
    expect(page.locator("#sign-in")).to_be_visible()
    expect(page.locator("#banner")).to_have_text("Signed out. 1 answer is kept here and will be sent.")
    type_token(screen, token)
    expect(page.locator("#task")).to_be_visible()
    expect(page.locator("#sign-in")).to_be_hidden()
    assert page.locator("#prompt").inner_text() != first
    screen.keys("r", "u")
    rows = wait_for_answers(screen, service, 2)
    assert [row.given["safety"] for row in rows] == ["safe", "unsafe"]
    until(page, lambda: page.evaluate(KEPT) == 0, "the page knows that all have arrived")
    expect(page.locator("#banner")).to_be_hidden()


@pytest.mark.full
def test_signing_in_again_from_a_second_tab_loses_no_answer_of_the_first(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(screen.page.locator("#task")).to_be_visible()
    screen.one_ahead()
    sign_in_from_another_tab(screen, service.tokens[Role.ANNOTATOR])
    screen.keys("r", "u")
    (row,) = wait_for_answers(screen, service, 1)
    assert row.given == {"safety": "unsafe"}
    expect(screen.page.locator("#sign-in")).to_be_hidden()
    expect(screen.page.locator("#refused")).to_be_hidden()


@pytest.mark.full
def test_another_person_in_a_second_tab_gets_no_answer_of_the_first_one(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    page = screen.page
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.one_ahead()
    sign_in_from_another_tab(screen, service.tokens[Role.LEAD])
    screen.keys("r", "u")
    expect(page.locator("#sign-in-error")).to_contain_text("the lead has signed in in this browser.")
    assert stored(service) == []
    assert page.evaluate(KEPT) == 1
    type_token(screen, service.tokens[Role.ANNOTATOR])
    (row,) = wait_for_answers(screen, service, 1)
    assert row.annotator == service.people[Role.ANNOTATOR].id
    expect(page.locator("#task")).to_be_visible()


SIGN_OUT = """fetch('/api/v1/me').then((reply) => reply.json()).then((me) =>
  fetch('/api/v1/session', {method: 'DELETE', headers: {'X-CSRF-Token': me.csrf}})).then((reply) => reply.status)"""


@pytest.mark.full
def test_a_wrong_clock_signing_out_in_another_tab_and_a_server_that_is_down_lose_no_answer(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two", "three", "four", "five"]), labels_each=1)
    token, page = service.tokens[Role.ANNOTATOR], screen.page
    tomorrow = service.queue.now_ms + 24 * 3600 * 1000
    page.clock.set_fixed_time(tomorrow)
    screen.sign_in(token)
    screen.veiled()
    screen.keys("r", "s")
    (row,) = wait_for_answers(screen, service, 1)
    assert row.at_ms == service.queue.now_ms, "the server's clock counts"

    screen.veiled()
    tab = page.context.new_page()
    tab.goto(f"{screen.url}/static/icon.svg")
    assert tab.evaluate(SIGN_OUT) == 200
    tab.close()
    page.bring_to_front()
    screen.keys("r", "u")
    expect(page.locator("#banner")).to_have_text("Signed out. 1 answer is kept here and will be sent.")
    type_token(screen, token)
    wait_for_answers(screen, service, 2)
    screen.veiled()
    page.route("**/api/v1/**", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    screen.keys("r", "s")
    expect(page.locator("#banner")).to_have_text("No connection. 1 answer is kept here and will be sent.")
    assert page.evaluate(KEPT) == 1
    page.unroute("**/api/v1/**")
    rows = wait_for_answers(screen, service, 3)
    assert [one.given["safety"] for one in rows] == ["safe", "unsafe", "safe"]
    until(page, lambda: page.evaluate(KEPT) == 0, "the page knows that all have arrived")
    expect(page.locator("#banner")).to_be_hidden()

    page.clock.set_fixed_time(tomorrow + 31 * 60 * 1000)
    screen.veiled()
    screen.keys("r", "s")
    wait_for_answers(screen, service, 4)
    expect(page.locator("#toast")).to_have_text("You have worked for half an hour. Take a short break.")


def test_an_answer_that_the_server_refuses_is_kept_until_the_person_deletes_it(
    service: FreshService, screen: Screen
) -> None:
    queue, page = service.queue, screen.page
    status = queue.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.one_ahead()
    queue.rounds.cancel(status.id, by="lead")
    screen.keys("r", "s")
    expect(page.locator("#refused-text")).to_contain_text("1 answer is not taken: this question was withdrawn")
    assert page.evaluate(LOW_CONTRAST) == []
    page.reload()
    expect(page.locator("#refused")).to_be_visible()
    assert page.evaluate(KEPT) == 1
    queue.rounds.reopen(status.id, by="lead")
    page.get_by_role("button", name="Try again").click()
    (row,) = wait_for_answers(screen, service, 1)
    assert row.given == {"safety": "safe"}
    expect(page.locator("#refused")).to_be_hidden()
    expect(page.locator("#task")).to_be_visible()
    queue.rounds.cancel(status.id, by="lead")
    screen.keys("r", "s")
    expect(page.locator("#refused")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#refused")).to_be_hidden()
    assert page.evaluate(KEPT) == 0
    assert len(stored(service)) == 1


@pytest.mark.full
def test_a_page_on_which_nothing_happens_gives_its_questions_back(browser: Browser, tmp_path: Path) -> None:
    engine = open_database(tmp_path / "journal.sqlite")
    create_run(engine)
    service = FreshService(FreshQueue(engine, replace(RULES, idle_s=3.0), now_ms=now_ms()))
    service.queue.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    with serving(service.app) as url:
        context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        context.set_default_timeout(15_000)
        screen = Screen(context.new_page(), url)
        screen.sign_in(service.tokens[Role.ANNOTATOR])
        expect(screen.page.locator("#task")).to_be_visible()
        expect(screen.page.get_by_role("heading", name="Are you still there?")).to_be_visible()
        expect(screen.page.locator("#empty-text")).to_contain_text("for 3 seconds")
        until(screen.page, lambda: service.queue.leases.held() == [], "the questions go back")
        screen.keys("ArrowDown")
        expect(screen.page.locator("#task")).to_be_visible()
        assert service.queue.leases.held() != []
        context.close()
    engine.dispose()


@pytest.mark.full
@pytest.mark.parametrize("leaves", ["closes the page", "signs out"])
def test_who_leaves_holds_nothing_any_more(service: FreshService, screen: Screen, leaves: str) -> None:
    service.queue.rounds.open(1, "safety", safety(["one", "two", "three"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(screen.page.locator("#task")).to_be_visible()
    screen.one_ahead()
    assert len(service.queue.leases.held()) == 2
    if leaves == "signs out":
        screen.page.get_by_role("button", name="Sign out").click()
        expect(screen.page.locator("#sign-in")).to_be_visible()
    else:
        screen.page.goto("about:blank")
    until(screen.page, lambda: service.queue.leases.held() == [], "the questions go back")


@pytest.mark.full
def test_an_answer_taken_back_shows_the_earlier_choice_also_after_a_reload(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "compare", pairs(2), labels_each=1)
    page = screen.page
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r", "1", "2", "s", "u", "Enter")
    first = wait_for_answers(screen, service, 1)[0]
    page.reload()
    expect(page.locator("#task")).to_be_visible()
    expect(page.locator("#undo")).to_be_enabled()
    screen.keys("z")
    expect(page.locator("#toast")).to_contain_text("Taken back")
    pressed = page.locator('#questions button[aria-pressed="true"]')
    expect(pressed).to_have_count(4)
    assert [one.split()[0] for one in pressed.all_inner_texts()] == ["Left", "Right", "Safe", "Unsafe"]
    screen.picture("annotate-undo")
    expect(page.locator("#submit")).to_be_enabled()
    screen.keys("Enter")
    again = wait_for_answers(screen, service, 2)[1]
    assert (again.task, again.given) == (first.task, first.given)


@pytest.mark.full
def test_enter_after_the_text_is_shown_does_not_hide_it(service: FreshService, screen: Screen) -> None:
    service.queue.rounds.open(1, "compare", pairs(1), labels_each=1)
    page = screen.page
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    page.locator("#reveal").focus()
    screen.keys("Enter")
    expect(page.locator("#left")).to_have_class("text")
    screen.keys("Enter")
    expect(page.locator("#left")).to_have_class("text")
    screen.keys("1", "2", "s", "u", "Enter")
    assert len(wait_for_answers(screen, service, 1)) == 1


LONG = "\n\n".join(
    f"Paragraph {n}: " + "a calm and careful sentence about sleep, worries and the exam of tomorrow. " * 6
    for n in range(12)
)


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, 900), (360, 740)])
def test_send_stays_in_sight_beside_twelve_paragraphs(
    service: FreshService, screen: Screen, size: tuple[int, int], scheme: str
) -> None:
    long = [replace(one, first=LONG, second=LONG[::-1]) for one in pairs(1)]
    service.queue.rounds.open(1, "compare", long, labels_each=1)
    page = screen.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r", "1", "2", "s")
    bar, last = page.locator(".bar").bounding_box(), page.locator("fieldset.active").bounding_box()
    assert bar is not None
    assert last is not None
    assert last["y"] + last["height"] <= bar["y"] + 1, "the question to answer is not under the bar"
    page.evaluate("scrollTo(0, 0)")
    screen.picture(f"long-{size[0]}-{scheme}")
    for where in ("0", "document.body.scrollHeight / 2", "document.body.scrollHeight"):
        page.evaluate(f"scrollTo(0, {where})")
        box = page.locator("#submit").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= size[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate(LOW_CONTRAST) == []


@pytest.mark.full
def test_a_lead_sees_who_holds_what_by_the_servers_clock_and_recalls_it(service: FreshService, screen: Screen) -> None:
    """The server's clock is a day behind the browser's."""
    queue, page = service.queue, screen.page
    queue.now_ms -= 24 * 3600 * 1000
    status = queue.rounds.open(2, "safety", safety(["one"]), labels_each=1, deadline_ms=queue.now_ms + 2 * 3600 * 1000)
    queue.leases.lease(queue.person("ana"))
    screen.sign_in(service.tokens[Role.LEAD])
    page.goto(f"{screen.url}/lead")
    expect(page.locator("#rounds")).to_contain_text("in 2.0 h")
    expect(page.locator("#held tr")).to_contain_text(["ana"])
    page.get_by_role("button", name="Move the deadline").click()
    page.get_by_label("From now").select_option("30 minutes")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#rounds")).to_contain_text("in 30 min")
    moved = queue.rounds.status(status.id).deadline_ms
    assert moved == queue.now_ms + 1800 * 1000
    page.get_by_role("button", name="Recall").click()
    expect(page.locator("#held")).to_contain_text("Nobody holds a question now.")
    assert queue.leases.held() == []
    queue.wait(1800 + 58)
    page.reload()
    expect(page.locator("#rounds")).to_contain_text("passed 58 s ago")
    screen.picture("lead-hands")
