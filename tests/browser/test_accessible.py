"""WCAG 2.2 AA: axe finds nothing on any state of the pages; zoom, phones, motion, light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.parts.questions import Question
from tests.browser.screen import BAD, GOOD, PROMPT, Screen, pairs, safety
from tests.browser.test_reading import TABLE, TURNS
from tests.support.annotation_api import FreshService
from tests.support.tiers import in_full

pytestmark = pytest.mark.browser

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LONG = "\n\n".join(f"{number}. {GOOD}" for number in range(1, 5))


def findings(page: Page) -> list[str]:
    """What axe reports, in words."""
    found = Axe().run(page, options={"runOnly": LEVELS}).response["violations"]
    return [f"{one['id']}: {node['target']} {node['html'][:120]}" for one in found for node in one["nodes"]]


def conversation(name: str) -> Question:
    return Question("pair", name, PROMPT, LONG, f"{BAD}\n\n{TABLE}", provenance={"policy_version": 1}, turns=TURNS)


@pytest.mark.parametrize("scheme", ["light", *in_full("dark")])
def test_axe_finds_nothing_on_any_state_of_the_annotators_page(
    service: FreshService, screen: Screen, scheme: Any
) -> None:
    service.queue.rounds.open(1, "compare", [conversation("c0"), *pairs(1)], labels_each=1, priority=1)
    service.queue.rounds.open(1, "safety", safety(["one"]), labels_each=1)
    page = screen.page
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: dict[str, list[str]] = {}

    def look(state: str) -> None:
        found[state] = findings(page)

    page.goto(f"{screen.url}/#invite=x")
    expect(page.locator("#invited")).to_be_visible()
    look("invitation")
    page.goto("about:blank")
    page.goto(screen.url)
    expect(page.locator("#token")).to_be_focused()
    look("sign in")
    page.keyboard.type(service.tokens[Role.ANNOTATOR])
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_be_visible()
    look("notice")
    page.locator("#begin").click()
    expect(page.locator("#task")).to_be_visible()
    look("blurred")
    screen.keys("r", "1", "1", "s", "u")
    look("pair")
    screen.keys("Enter")
    expect(page.locator("#doubt")).to_be_visible()
    look("doubt")
    screen.keys("Escape", "?")
    look("keys")
    screen.keys("Escape", "g")
    expect(page.locator("#guidelines")).to_be_visible()
    look("guidelines")
    screen.keys("Escape", "f")
    look("reasons")
    screen.keys("Escape", "d")
    look("differences")
    screen.keys("d", "x")
    expect(page.locator("#left")).to_have_class("text veiled")
    screen.keys("h")
    expect(page.locator("#history")).to_be_visible()
    look("my answers")
    screen.keys("Escape", "x")
    expect(page.locator("#left-title")).to_have_text("Answer")
    screen.keys("r")
    look("safety")
    page.context.set_offline(True)
    screen.keys("x")
    expect(page.locator("#banner")).to_contain_text("kept here")
    look("answers kept without a connection")
    page.context.set_offline(False)
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    look("nothing left")
    assert page.evaluate("document.getAnimations().length") == 0
    assert {state: seen for state, seen in found.items() if seen} == {}


def test_axe_finds_nothing_on_the_leads_page_and_its_dialogs(service: FreshService, screen: Screen) -> None:
    queue, page = service.queue, screen.page
    queue.rounds.open(1, "compare", pairs(1), labels_each=2)
    for name, text in (("ana", GOOD), ("ben", BAD)):
        person = queue.person(name)
        lease = queue.leases.lease(person)
        assert isinstance(lease, Lease)
        # sides are drawn for each person: they differ about the texts
        side = "left" if lease.left.startswith(text) else "right"
        good = {"more_helpful": side, "more_harmful": "tie", "left_safety": "safe", "right_safety": "safe"}
        queue.answers.answer(person, f"key-{name}-0001", lease.id, Submission("label", good))
    queue.rounds.open(2, "safety", safety(["one"]), labels_each=1)
    screen.sign_in(service.tokens[Role.ADMIN])
    page.goto(f"{screen.url}/lead")
    expect(page.locator("#accounts tr").first).to_be_visible()
    page.get_by_label("Name").fill("carla")
    page.get_by_role("button", name="Invite by link").click()
    expect(page.locator("#new-qr svg")).to_be_visible()
    page.locator("#disagreements summary").first.click()
    assert findings(page) == []
    page.locator("#accounts tr", has_text="ana").get_by_role("button", name="Erase").click()
    assert findings(page) == []
    screen.keys("Escape")
    page.locator("#choices button").first.click()
    expect(page.locator("#decide")).to_be_visible()
    assert findings(page) == []


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), *in_full((360, "dark"), (1440, "light"), (1440, "dark"))]
)
@pytest.mark.parametrize("length", ["long", *in_full("short")])
def test_long_and_short_answers_fit_a_phone_and_a_desk_in_light_and_dark(
    service: FreshService, screen: Screen, length: str, width: int, scheme: Any
) -> None:
    asked = [conversation("c0")] if length == "long" else pairs(1)
    service.queue.rounds.open(1, "compare", asked, labels_each=1)
    page = screen.page
    page.set_viewport_size({"width": width, "height": 800 if width < 500 else 900})
    page.emulate_media(color_scheme=scheme)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r", "1", "2")
    screen.picture(f"annotate-{width}-{scheme}" if length == "long" else f"annotate-short-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#submit")).to_be_in_viewport()


@pytest.mark.full
def test_at_twice_the_size_nothing_is_cut_off_and_the_answers_have_room(service: FreshService, screen: Screen) -> None:
    """A window of 1280 x 900 at 200 % has the room of 640 x 450."""
    service.queue.rounds.open(1, "compare", [conversation("c0")], labels_each=1)
    page = screen.page
    page.set_viewport_size({"width": 640, "height": 450})
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    expect(page.locator("#task")).to_be_visible()
    screen.keys("r")
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
    bar = page.locator(".bar").bounding_box()
    assert bar is not None
    assert bar["height"] <= 450 / 2, "the bar leaves half of the window to the text"
    for name in ("Left answer", "Right answer"):
        page.get_by_role("button", name=name).click()
        expect(page.locator("#left" if name.startswith("Left") else "#right")).to_be_visible()
