"""A fresh queue for every test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.database import open_database
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import FreshQueue, create_run


@pytest.fixture(scope="session")
def empty_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with one run and no questions, made once: copying a file is faster than migrating one."""
    place = tmp_path_factory.mktemp("annotation") / "journal.sqlite"
    engine = open_database(place)
    create_run(engine)
    # The last connection to close writes the log back into the file that will be copied.
    engine.dispose()
    return place


@pytest.fixture
def queue(tmp_path: Path, empty_journal: Path) -> Iterator[FreshQueue]:
    shutil.copy(empty_journal, tmp_path / "journal.sqlite")
    engine = open_database(tmp_path / "journal.sqlite")
    yield FreshQueue(engine)
    engine.dispose()


@pytest.fixture
def service(queue: FreshQueue) -> FreshService:
    return FreshService(queue)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of a run that asks people and has not begun."""
    folder = tmp_path / "demo"
    config = load("tabular", ["feedback.kind=people"])
    place = folder / "journal.sqlite"
    Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()).close()
    return folder
