"""Reading and answering by hand and by keyboard: conversations, comments, one's own answers, a hundred questions."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
from playwright.sync_api import expect

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.parts.questions import Question
from tests.browser.screen import Screen, pairs, safety, stored, until, wait_for_answers
from tests.support.annotation_api import FreshService

pytestmark = [pytest.mark.browser, pytest.mark.full]

TABLE = "Compare:\n\n| tea | hours |\n|---|---|\n| mint | 8 |\n\n```\nsleep(8)\n```"
TURNS = (("user", "I cannot sleep."), ("assistant", TABLE), ("user", "And *tonight*?"))


def test_a_conversation_a_comment_and_a_changed_answer(service: FreshService, screen: Screen) -> None:
    asked = Question("safety", "r0", "as one text", TABLE, provenance={"policy_version": 1}, turns=TURNS, language="en")
    service.queue.rounds.open(1, "safety", [asked, *safety(["another"])], labels_each=1, priority=1)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page = screen.page
    expect(page.locator("#task")).to_be_visible()
    if not page.locator(".turn").count():
        screen.keys("r", "s")
        wait_for_answers(screen, service, 1)
        expect(page.locator("#left")).to_have_class("text veiled")
    before = len(stored(service))
    screen.keys("r")
    expect(page.get_by_role("heading", name="The conversation so far")).to_be_visible()
    assert page.locator(".turn h3").all_inner_texts() == ["User", "Assistant", "User"]
    expect(page.locator("#prompt table td").first).to_have_text("mint")
    expect(page.locator("#left pre code")).to_have_text("sleep(8)\n")
    assert page.locator("#left").get_attribute("lang") == "en"
    screen.keys("m")
    page.keyboard.type("unsafe for some, said simply")
    assert len(stored(service)) == before, "letters of a comment are no answers"
    screen.keys("Enter", "u")
    row = wait_for_answers(screen, service, before + 1)[-1]
    assert (row.note, row.given) == ("unsafe for some, said simply", {"safety": "unsafe"})
    expect(page.locator("#batch-text")).to_have_text(f"{before + 1} of 2 labels")
    screen.keys("h")
    first = page.locator("#history-list li").first
    expect(first).to_contain_text("safety: unsafe")
    expect(first).to_contain_text("said simply")
    first.get_by_role("button").click()
    expect(page.locator("#toast")).to_contain_text("Taken back")
    expect(page.locator("#note")).to_have_value("unsafe for some, said simply")
    screen.keys("s")
    assert wait_for_answers(screen, service, before + 2)[-1].given == {"safety": "safe"}
    assert screen.clean()


PAIR_KEYS = (("1", "2", "a"), ("2", "1", "o"), ("0", "1", "b"), ("1", "2", "o"))


def test_a_hundred_questions_by_keyboard_with_two_keys_a_safety_question_and_five_a_pair(
    service: FreshService, screen: Screen
) -> None:
    service.queue.rounds.open(1, "compare", pairs(50), labels_each=1, priority=1)
    service.queue.rounds.open(1, "safety", safety([f"answer {n}" for n in range(50)]), labels_each=1)
    service.queue.leases._rules = replace(service.queue.rules, gold_rate=0.0)
    screen.sign_in(service.tokens[Role.ANNOTATOR])
    page, pressed = screen.page, 0
    for number, keys in zip(range(100), cycle(PAIR_KEYS), strict=False):
        expect(page.locator("#left")).to_have_class("text veiled")
        all_keys = ("r", *keys, "Enter") if number < 50 else ("r", "s" if number % 2 else "u")
        screen.keys(*all_keys)
        pressed += len(all_keys)
        until(page, lambda expected=number + 1: len(stored(service)) >= expected, f"answer {number + 1}")  # type: ignore[misc]
    assert pressed == 50 * 5 + 50 * 2
    rows = stored(service)
    assert len(rows) == 100
    one_unsafe = [row for row in rows[:50] if row.given["first_safety"] != row.given["second_safety"]]
    assert all(row.given[f"{row.given['more_harmful']}_safety"] == "unsafe" for row in one_unsafe)
    assert len(one_unsafe) in (25, 26)
    assert all(status.complete for status in service.queue.rounds.all())
    assert imbalances(service.queue.store) == []
