"""Chromium from Debian's package, driven by Playwright; skipped with the reason where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import now_ms
from tests.browser.screen import WIDE, Screen
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import FreshQueue, create_run
from tests.support.annotation_server import serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FreshService]:
    engine = open_database(tmp_path / "journal.sqlite")
    create_run(engine)
    yield FreshService(FreshQueue(engine, now_ms=now_ms()))
    engine.dispose()


@pytest.fixture
def url(service: FreshService) -> Iterator[str]:
    with serving(service.app) as address:
        yield address


@pytest.fixture
def screen(browser: Browser, url: str) -> Iterator[Screen]:
    context = browser.new_context(viewport=WIDE, color_scheme="light")  # type: ignore[arg-type]
    context.set_default_timeout(15_000)
    yield Screen(context.new_page(), url)
    context.close()
