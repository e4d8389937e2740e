"""Chromium from Debian's package, driven by Playwright; skipped with the reason where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from pddpo_ray.annotation.store import now_ms
from pddpo_ray.journal.database import open_database
from tests.annotation_api import Office
from tests.annotation_desk import Desk, create_run
from tests.annotation_server import serving

CHROMIUM = shutil.which("chromium")
QUIET = ("quic", "background-networking", "component-update", "sync")
"""What a browser under test must not do on its own."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    engine = open_database(tmp_path / "journal.sqlite")
    create_run(engine)
    yield Office(Desk(engine, now_ms=now_ms()))
    engine.dispose()


@pytest.fixture
def url(office: Office) -> Iterator[str]:
    with serving(office.app) as address:
        yield address
