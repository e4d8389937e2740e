"""Chromium from Debian's package, driven by Playwright; skipped with the reason where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import now_ms
from tests.annotation_api import FreshService
from tests.annotation_queue import FreshQueue, create_run
from tests.annotation_server import serving


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
