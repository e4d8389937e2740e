"""Journal and labels as one file and back."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from sqlalchemy import delete, insert

from pddpo_ray.annotation.backup import SET_ASIDE, backup, restore
from pddpo_ray.annotation.label_rows import label_rows
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.errors import UserError
from pddpo_ray.journal.annotation_schema import answer
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.lock import DriverLock
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.journal.server_lock import sole_server
from tests.support.annotation_queue import FreshQueue
from tests.support.postgres_server import postgres_server
from tests.unit.annotation.test_label_rows import said


def test_a_backup_holds_all_labels_and_what_came_after_is_gone_after_restoring(
    queue: FreshQueue, tmp_path: Path
) -> None:
    said(queue)
    rows = list(label_rows(queue.store))
    copy, place = tmp_path / "copy.backup", tmp_path / "journal.sqlite"
    backup(place, copy)
    with pytest.raises(UserError, match="there already"):
        backup(place, copy)
    queue.person("came later")
    queue.engine.dispose()
    earlier = restore(copy, place)
    assert earlier == place.with_name(place.name + SET_ASIDE)
    again = FreshQueue(open_database(place))
    assert list(label_rows(again.store)) == rows
    assert "came later" not in [one.handle for one in again.people.all()]
    assert (imbalances(again.store), broken_links(again.store)) == ([], [])
    again.engine.dispose()
    kept = FreshQueue(open_database(earlier))
    assert "came later" in [one.handle for one in kept.people.all()]
    kept.engine.dispose()
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    assert restore(copy, tmp_path / "new" / "journal.sqlite") is None


def test_a_backup_while_somebody_writes_is_one_moment_of_the_database(queue: FreshQueue, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            queue.person(f"somebody {number}")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            backup(tmp_path / "journal.sqlite", tmp_path / f"{number}.backup")
    finally:
        stop.set()
        writer.join()
    for number in range(5):
        taken = FreshQueue(open_database(tmp_path / f"{number}.backup"))
        assert broken_links(taken.store) == []
        taken.engine.dispose()


@pytest.mark.slow
def test_what_is_no_backup_a_driven_run_and_a_served_page_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["annotations", *arguments, "--run", str(run)])
        return f"{end.value.code}: {capsys.readouterr().err}"

    out = tmp_path / "all.backup"
    assert ends("backup", "--out", str(out)).startswith(("0", "None"))
    wrong = tmp_path / "wrong"
    wrong.write_text("no database")
    assert "2: pddpo" in ends("restore", str(wrong))
    assert "there is no file" in ends("restore", str(tmp_path / "nothing"))
    engine = open_database(run / "journal.sqlite")
    with engine.connect() as connection:
        id_ = connection.execute(run_table.select()).one().id
    lock = DriverLock(engine, id_)
    assert "a process drives run" in ends("restore", str(out))
    lock.release()
    with sole_server(engine, "http://here/"):
        assert "the page is served at http://here/" in ends("restore", str(out))
    engine.dispose()
    assert ends("restore", str(out)).startswith(("0", "None"))


@pytest.mark.full
@pytest.mark.postgres
def test_postgres_is_backed_up_and_restored(tmp_path: Path) -> None:
    with postgres_server() as url:
        engine = open_database(url)
        with engine.begin() as connection:
            connection.execute(insert(run_table).values(id="demo", recipe={}, fixed_settings={}, created_ms=0))
        queue = FreshQueue(engine)
        said(queue)
        rows = list(label_rows(queue.store))
        backup(url, tmp_path / "all.backup")
        queue.person("came later")
        engine.dispose()
        assert restore(tmp_path / "all.backup", url) is None
        again = FreshQueue(open_database(url))
        assert list(label_rows(again.store)) == rows
        assert "came later" not in [one.handle for one in again.people.all()]
        with pytest.raises(Exception, match="append-only"), again.engine.begin() as connection:
            connection.execute(delete(answer))
        again.engine.dispose()
