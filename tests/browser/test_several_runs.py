"""One page for several runs: one sign-in, and the work goes on in the run that has questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.journal.transactions import now_ms
from tests.browser.screen import LOW_CONTRAST, PHONE, WIDE, Screen, safety, until
from tests.browser.test_accessible import findings
from tests.support.annotation_server import serving
from tests.support.annotation_together import TwoRuns, two_runs

pytestmark = pytest.mark.browser


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[TwoRuns]:
    with two_runs(tmp_path, now_ms()) as made:
        yield made


@pytest.fixture
def screen(browser: Browser, runs: TwoRuns) -> Iterator[Screen]:
    with serving(runs.app) as url:
        context = browser.new_context(viewport=WIDE, color_scheme="light")  # type: ignore[arg-type]
        context.set_default_timeout(15_000)
        yield Screen(context.new_page(), url)
        context.close()


def test_who_signs_in_once_answers_both_runs_without_a_click_between_them(runs: TwoRuns, screen: Screen) -> None:
    first, second = runs.queues["first"], runs.queues["second"]
    first.rounds.open(1, "safety", safety(["one"]), labels_each=1)
    second.rounds.open(1, "safety", safety(["two", "three"]), labels_each=1)
    page = screen.page
    screen.sign_in(runs.token("first", "ana"))
    expect(page.locator("#task")).to_be_visible()
    assert page.url == f"{screen.url}/runs/first/"
    expect(page.locator("#runs a")).to_have_text(["first", "second"])
    expect(page.locator("#runs a[aria-current=page]")).to_have_text("first")
    screen.keys("r", "s")
    page.wait_for_url(f"{screen.url}/runs/second/")
    for _ in range(2):
        expect(page.locator("#left")).to_have_class("text veiled")
        screen.keys("r", "u")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    until(page, lambda: first.rounds.all()[0].complete and second.rounds.all()[0].complete, "both runs are complete")
    # new work in the first run is come back to
    first.rounds.open(2, "safety", safety(["four"]), labels_each=1)
    page.wait_for_url(f"{screen.url}/runs/first/", timeout=20_000)
    expect(page.locator("#left")).to_have_class("text veiled")
    screen.keys("r", "s")
    until(page, lambda: all(one.complete for one in first.rounds.all()), "the new question is answered")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert page.evaluate(LOW_CONTRAST) == []
    assert findings(page) == []
    assert screen.clean()


ROWS = """
(() => {
  const middles = [...document.querySelectorAll('header > *, header nav > *')].filter(e => e.offsetParent)
    .filter(e => e.tagName !== 'NAV').map(e => e.getBoundingClientRect()).map(r => (r.top + r.bottom) / 2);
  return middles.sort((a, b) => a - b).filter((at, n, all) => !n || at - all[n - 1] > 12).length;
})()
"""


def test_the_header_of_several_runs_takes_one_row_at_a_desk_and_three_on_a_phone(runs: TwoRuns, screen: Screen) -> None:
    runs.queues["first"].rounds.open(1, "safety", safety(["one"]), labels_each=1)
    page = screen.page
    screen.sign_in(runs.token("first", "lea", Role.ADMIN))
    expect(page.locator("#lead-link")).to_be_visible()
    for address, on_a_phone in (("", 3), ("lead", 2)):
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(f"{screen.url}/runs/first/{address}")
        expect(page.locator("#runs a")).to_have_text(["first", "second"])
        expect(page.locator("#pause" if address else "#batch-text")).to_be_visible()
        assert page.evaluate(ROWS) == 1
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert page.evaluate(ROWS) == on_a_phone
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert screen.clean()


@pytest.mark.full
def test_an_answer_that_waits_for_the_connection_stays_with_its_run(runs: TwoRuns, screen: Screen) -> None:
    first, second = runs.queues["first"], runs.queues["second"]
    first.rounds.open(1, "safety", safety(["one", "two"]), labels_each=1)
    second.rounds.open(1, "safety", safety(["three"]), labels_each=1)
    page = screen.page
    screen.sign_in(runs.token("first", "ana"))
    expect(page.locator("#task")).to_be_visible()
    screen.one_ahead()
    page.context.set_offline(True)
    screen.keys("r", "s")
    expect(page.locator("#banner")).to_contain_text("1 answer is kept here")
    page.locator("#runs a", has_text="second").click()
    expect(page.locator("#toast")).to_contain_text("not sent yet: this page stays")
    assert page.url == f"{screen.url}/runs/first/"
    page.context.set_offline(False)
    until(page, lambda: first.rounds.all()[0].counted == 1, "the answer arrives")
    page.locator("#runs a", has_text="second").click()
    page.wait_for_url(f"{screen.url}/runs/second/")
    expect(page.locator("#task")).to_be_visible()
    expect(page.locator("#refused")).to_be_hidden()
    assert first.leases.held() == [], "the question that was open there went back"


@pytest.mark.full
def test_a_lead_changes_between_the_runs(runs: TwoRuns, screen: Screen) -> None:
    for number, queue in enumerate(runs.queues.values(), 1):
        queue.rounds.open(number, "safety", safety(["one"]), labels_each=1)
    page = screen.page
    screen.sign_in(runs.token("first", "lea", Role.LEAD))
    page.goto(f"{screen.url}/lead")
    expect(page.locator("#rounds")).to_contain_text("Round 1, safety")
    page.locator("#runs a", has_text="second").click()
    page.wait_for_url(f"{screen.url}/runs/second/lead")
    expect(page.locator("#rounds")).to_contain_text("Round 2, safety")
    page.get_by_role("link", name="Label").click()
    page.wait_for_url(f"{screen.url}/runs/second/")
    assert screen.clean()
