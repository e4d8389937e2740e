"""A browser's page with what it complained about, and what the tests of the pages share.

PDDPO_SCREENSHOTS=docs/images draws the pictures that are there again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from sqlalchemy import select

from pddpo_ray.journal.annotation_schema import answer
from pddpo_ray.parts.questions import Question
from tests.support.annotation_api import FreshService

PICTURES = os.environ.get("PDDPO_SCREENSHOTS")
WIDE, PHONE = {"width": 1100, "height": 860}, {"width": 390, "height": 844}

PROMPT = "I have not slept well for a week and I have an exam tomorrow. What should I do tonight?"
GOOD = (
    "That sounds exhausting. Try this tonight:\n\n1. Stop caffeine now.\n2. Dim the lights an hour before bed.\n"
    "3. Write tomorrow's worries on paper.\n\nIf it goes on for **more than a month**, please see a doctor."
)
BAD = "Just take three of your flatmate's sleeping pills with some wine. Works every time, nothing can go wrong."


def pairs(count: int) -> list[Question]:
    return [
        Question("pair", f"p{n}", PROMPT, GOOD, BAD, provenance={"policy_version": 4, "second_policy_version": 0})
        for n in range(count)
    ]


def safety(texts: list[str]) -> list[Question]:
    return [
        Question("safety", f"r{n}", f"Question {n}", text, provenance={"policy_version": 4})
        for n, text in enumerate(texts)
    ]


class Screen:
    """A page with what it complained about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(url) else self.foreign.append(request.url))
        self.asked = 0
        page.on("requestfinished", lambda request: self._count(request.url))

    def _count(self, url: str) -> None:
        self.asked += url.endswith("/lease")

    def one_ahead(self) -> None:
        """Until the page holds the question after the first one, which it asks for without showing it."""
        until(self.page, lambda: self.asked >= 2, "the page asks for the next question too")
        self.page.wait_for_timeout(100)  # it has read the reply

    def veiled(self) -> None:
        """Until a question is on the screen that nobody has looked at."""
        expect(self.page.locator("#task")).to_be_visible()
        expect(self.page.locator("#left")).to_have_class("text veiled")

    def sign_in(self, token: str) -> None:
        """With the keyboard alone."""
        self.page.goto(self.url)
        expect(self.page.locator("#token")).to_be_focused()
        self.page.keyboard.type(token)
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_role("heading", name="Before you begin")).to_be_visible()
        self.page.keyboard.press("Tab")
        self.page.locator("#begin").focus()
        self.page.keyboard.press("Enter")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def picture(self, name: str) -> None:
        if PICTURES and (file := Path(PICTURES) / f"{name}.png").exists():
            self.page.screenshot(path=str(file))

    def clean(self) -> bool:
        """No script error, no refused resource, no request to anyone else. A 401 before signing in is expected."""
        unexpected = [error for error in self.errors if "401" not in error]
        assert unexpected == []
        assert self.foreign == []
        return True


def stored(service: FreshService) -> list[Any]:
    with service.queue.engine.connect() as connection:
        return list(connection.execute(select(answer).order_by(answer.c.seq)))


def until(page: Page, condition: Callable[[], bool], what: str = "") -> None:
    """Until it holds, for twenty seconds: a busy machine is no fault of the page. Playwright's own waiting for a script
    is forbidden by the page's content policy."""
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(50)


def wait_for_answers(screen: Screen, service: FreshService, count: int) -> list[Any]:
    until(screen.page, lambda: len(stored(service)) >= count, f"{count} answers expected")
    return stored(service)


HEADINGS = "[...document.querySelectorAll('h1')].filter(e => e.offsetParent).map(e => e.textContent.trim())"
UNNAMED = """
[...document.querySelectorAll('button, input, a, [role]')].filter(e => e.offsetParent)
  .filter(e => !e.textContent.trim() && !e.getAttribute('aria-label'))
  .filter(e => !(e.id && document.querySelector(`label[for=${e.id}]`)))
  .map(e => e.outerHTML)
"""
LOW_CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.disabled && !e.closest(':disabled'))
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).filter(e => {
      const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
      return (a + .05) / (b + .05) < 4.5;
    }).map(e => e.outerHTML.slice(0, 120));
})()
"""
