"""The journal: phases happen once, records come back as they went in, and nobody else's run is touched."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import delete, event, inspect
from sqlalchemy.exc import OperationalError

from pddpo_ray.config import load
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal, JournalEvent, read_journal, schema
from pddpo_ray.journal.database import BASELINE, HEAD, MIGRATIONS, known_revision, open_database
from pddpo_ray.journal.lock import is_alive, process_start
from pddpo_ray.records import (
    HARM,
    CostEstimate,
    Delivery,
    LabelledPair,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from tests.support.journal_of_0_2 import begun_by_0_2, demand_its_labels
from tests.support.next_revision import with_next_revision

RECIPE = {"seed": 3, "rounds": 4, "cluster": {"mode": "in-process"}}
PROMPT = Prompt("p0", (7, 8), "how do I sleep")


def answer(name: str, log_prob: float | None = -1.5) -> Response:
    return Response(name, PROMPT, (1, 2, 3), f"text of {name}", policy_version=2, seed=2**62, log_prob=log_prob)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.sqlite"


def test_a_finished_phase_is_read_back_and_not_computed_again(path: Path) -> None:
    for expected_calls in ([1], []):
        calls: list[int] = []

        def compute(calls: list[int] = calls) -> dict[str, tuple[int, int]]:
            calls.append(1)
            return {"count": (1, 2)}

        with Journal.open(path, "demo", create=RECIPE) as journal:
            payload = journal.once("sample", compute)
        assert payload == {"count": [1, 2]}
        assert calls == expected_calls


def test_a_phase_that_fails_in_the_middle_leaves_nothing_behind(path: Path) -> None:
    def half_a_phase() -> None:
        journal.add_samples("cost", [answer("a")])
        raise ValueError("power cut")

    with Journal.open(path, "demo", create=RECIPE) as journal:
        with pytest.raises(ValueError, match="power cut"):
            journal.once("sample", half_a_phase)
        assert journal.samples() == []
        assert journal.phases() == []
        assert journal.once("sample", lambda: journal.add_samples("cost", [answer("a")])) is None
        assert journal.samples() == [answer("a")]


def test_the_same_phase_twice_in_a_round_is_a_mistake_of_the_page(path: Path) -> None:
    with Journal.open(path, "demo", create=RECIPE) as journal:
        journal.once("sample", lambda: 1)
        with pytest.raises(RuntimeError, match="entered twice in round 0"):
            journal.once("sample", lambda: 2)


def test_rounds_that_are_finished_are_not_handed_out_again(path: Path) -> None:
    with Journal.open(path, "demo", create=RECIPE) as journal:
        seen = []
        for number in journal.rounds(4):
            if number == 3:
                break
            seen.append(number)
        assert seen == [1, 2]
    with Journal.open(path, "demo", create=RECIPE) as journal:
        assert list(journal.rounds(4)) == [3, 4]
        assert list(journal.rounds(4)) == []


def test_every_record_comes_back_exactly_as_it_was_written(path: Path) -> None:
    answers = [answer("a", None), answer("b", -1 / 3)]
    pair = LabelledPair(Pair("q", *answers), Verdict.FIRST, {HARM: Verdict.ABSTAIN, "toxic": Verdict.SECOND})
    labels = [SafetyLabels(answers[1], (Verdict.SAFE, Verdict.FAILED)), SafetyLabels(answers[0], (Verdict.UNSAFE,) * 2)]
    version = PolicyVersion(2, "policy-1", "ab" * 32, "policy-1-abab")
    estimate = CostEstimate(0.1, 1 / 7, 2, 2)
    delivery = Delivery("vllm-0", 2, "ab" * 32, 31, 0.25, "cd" * 32)
    with Journal.open(path, "demo", create=RECIPE) as journal:
        for _ in journal.rounds(1):
            journal.add_version(
                version, "cost", {"fit/loss": 0.3, "fit/odd": math.nan}, [11, 12], base=1, multiplier=0.7
            )
            journal.add_samples("cost", answers)
            journal.add_safety(labels, "world")
            journal.add_pairs([pair], "world")
            journal.add_dual_step("cost", estimate, 1.0, 1.25, 0.1)
            journal.add_delivery(delivery, True, 1e-6)
            journal.add_metrics({"dual/multiplier": 1.0, "fit/slope_cost": math.nan})
            journal.add_metrics({"dual/multiplier": 2.0})
    with read_journal(path, "demo") as journal:
        assert journal.samples(1, "cost") == answers
        assert journal.safety(1) == labels
        assert journal.unsafe_share(1, HARM) == 2 / 3, "a label that could not be read counts nowhere"
        assert journal.unsafe_share(2, HARM) is None
        (entry,) = journal.pairs()
        assert (entry.labelled, entry.labeller, entry.round) == (pair, "world", 1)
        (stored,) = journal.versions()
        assert stored.version == version
        assert (stored.metrics, stored.workers, stored.base, stored.multiplier) == ({"fit/loss": 0.3}, (11, 12), 1, 0.7)
        assert journal.policies == [version]
        (step,) = journal.dual_steps()
        assert (step.estimate, step.multiplier_before, step.multiplier_after) == (estimate, 1.0, 1.25)
        assert journal.deliveries()[0].delivery == delivery
        assert journal.metrics()[1]["dual/multiplier"] == 2.0
        assert math.isnan(journal.metrics()[1]["fit/slope_cost"])
        assert journal.recipe == RECIPE


def test_a_label_of_an_answer_that_was_never_written_is_refused(path: Path) -> None:
    with Journal.open(path, "demo", create=RECIPE) as journal, pytest.raises(RunError, match="refuses what round 0"):
        journal.add_safety([SafetyLabels(answer("ghost"), (Verdict.SAFE,))], "world")


def test_a_run_of_another_recipe_is_refused_and_the_difference_named(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    with pytest.raises(UserError, match="seed is 3 there and 4 here"):
        Journal.open(path, "demo", create={**RECIPE, "seed": 4})


def test_a_run_may_move_to_another_cluster(path: Path) -> None:
    moved = {**RECIPE, "cluster": {"mode": "ray"}}
    Journal.open(path, "demo", create=RECIPE, fixed={"seed": 3}).close()
    Journal.open(path, "demo", create=moved, fixed={"seed": 3}).close()
    with pytest.raises(UserError, match="another recipe"):
        Journal.open(path, "demo", create=moved)


def test_reading_a_journal_that_is_not_there_says_so(path: Path) -> None:
    with pytest.raises(UserError, match="no journal at"):
        read_journal(path, "demo")
    Journal.open(path, "demo", create=RECIPE).close()
    with pytest.raises(UserError, match="no run 'other'; it has demo"):
        read_journal(path, "other")


def test_a_reader_cannot_write(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    with (
        read_journal(path, "demo") as journal,
        pytest.raises(OperationalError, match="readonly"),
        journal.engine.begin() as connection,
    ):
        connection.execute(delete(schema.run))


@pytest.mark.run
@pytest.mark.parametrize("left", ["nothing", "log and index", "log alone"])
def test_reading_leaves_the_folder_as_it_is_and_needs_no_right_to_write(
    left: str, path: Path, read_only: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """A clean end leaves the file alone, a kill the write-ahead log too; a copy may lack the index of the log."""
    program = f"""
        import os, signal
        from pddpo_ray.journal import Journal
        with Journal.open({str(path)!r}, "demo", create={RECIPE!r}) as journal:
            journal.once("one", lambda: 1)
            if {left != "nothing"}:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=left == "nothing")
    index = path.with_name(f"{path.name}-shm")
    assert index.exists() == (left != "nothing")
    if left == "log alone":
        index.unlink()
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.parent.iterdir()}
    with read_only(path.parent), read_journal(path) as journal:
        assert (journal.run_id, journal.recipe) == ("demo", RECIPE)
        assert [entry.payload for entry in journal.phases()] == [1]
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.parent.iterdir()} == before


def test_a_reader_follows_a_driver_that_begins_and_ends_after_it(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    with read_journal(path, "demo") as reader:
        assert reader.metrics() == {}
        with Journal.open(path, "demo", create=RECIPE) as journal:
            journal.add_metrics({"a/b": 1.0})
            assert reader.metrics() == {0: {"a/b": 1.0}}
        assert reader.metrics() == {0: {"a/b": 1.0}}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("read", ["pair_questions", "pairs", "safety"])
def test_a_reader_never_meets_half_of_what_a_driver_adds_meanwhile(path: Path, read: str) -> None:
    def add(journal: Journal, name: str) -> None:
        one, two = answer(f"{name}-1"), answer(f"{name}-2")
        journal.add_samples(f"candidate-{name}", [one, two])
        journal.add_pairs([LabelledPair(Pair(name, one, two), Verdict.FIRST, {HARM: Verdict.SECOND})], "world")
        journal.add_safety([SafetyLabels(one, (Verdict.SAFE,))])

    with Journal.open(path, "demo", create=RECIPE) as journal, read_journal(path) as reader:
        numbers = iter(range(1, 100))
        written = journal.rounds(99)
        next(written)
        add(journal, "first")

        @event.listens_for(reader.engine, "after_cursor_execute")
        def after_every_statement(*_: object) -> None:
            next(written)
            add(journal, f"later-{next(numbers)}")

        rows = getattr(reader, read)()
        event.remove(reader.engine, "after_cursor_execute", after_every_statement)
        assert 1 <= len(rows) < len(getattr(journal, read)())


def test_the_run_need_not_be_named_where_there_is_only_one(path: Path) -> None:
    Journal.open(path, "one", create=RECIPE).close()
    read_journal(path).close()
    Journal.open(path, "two", create=RECIPE).close()
    with pytest.raises(UserError, match="several runs \\(one, two\\): name one"):
        read_journal(path)


def test_a_second_driver_is_refused_while_the_first_lives(path: Path) -> None:
    with (
        Journal.open(path, "demo", create=RECIPE),
        pytest.raises(UserError, match=f"driven by process {os.getpid()} on"),
    ):
        Journal.open(path, "demo", create=RECIPE)
    Journal.open(path, "demo", create=RECIPE).close()


@pytest.mark.run
def test_the_lock_of_a_killed_driver_is_taken_over_and_its_unfinished_phase_done_again(path: Path) -> None:
    program = f"""
        import os, signal
        from pddpo_ray.journal import Journal
        journal = Journal.open({str(path)!r}, "demo", create={RECIPE!r})
        journal.once("one", lambda: 1)
        journal.once("two", lambda: os.kill(os.getpid(), signal.SIGKILL))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with Journal.open(path, "demo", create=RECIPE) as journal:
        assert journal.once("one", lambda: 100) == 1
        assert journal.once("two", lambda: 2) == 2


def test_a_driver_that_lost_its_run_writes_nothing_more(path: Path) -> None:
    journal = Journal.open(path, "demo", create=RECIPE)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE driver SET token = 'somebody else'")
    connection.close()
    with pytest.raises(RunError, match="another driver took run demo over"):
        journal.once("sample", lambda: 1)
    assert journal.phases() == []
    journal.close()


def test_a_process_is_known_by_id_and_start_together() -> None:
    assert is_alive(os.getpid(), process_start(os.getpid()))
    assert not is_alive(os.getpid(), "12345")
    assert not is_alive(2**22 + 1, "")


def test_a_journal_of_a_newer_version_is_refused(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(UserError, match=f"schema 9999, this version of pddpo_ray knows {HEAD}"):
        read_journal(path, "demo")


def test_a_journal_of_before_0_2_is_refused_with_what_brings_it_up(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0004'")
    connection.close()
    for use in (open_database, lambda where: read_journal(where, "demo")):
        with pytest.raises(
            UserError, match=r"schema 0004, of a version before 0\.2\.0: open it once with pddpo-ray 0\.2\.0"
        ):
            use(path)


def test_a_new_journal_has_the_tables_that_the_code_uses(path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from pddpo_ray.journal.schema import metadata

    engine = open_database(path)
    with engine.connect() as connected:
        triggers = connected.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all()
        assert compare_metadata(MigrationContext.configure(connected), metadata) == []
    assert known_revision(engine) == HEAD
    engine.dispose()
    assert len(triggers) == 10, "an update and a deletion are forbidden in each of five tables"
    script = ScriptDirectory(str(MIGRATIONS))
    assert (script.get_base(), script.get_current_head()) == (BASELINE, HEAD)


def test_an_older_journal_is_upgraded_where_it_is_written_and_in_a_copy_where_it_is_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(path, "demo", create=RECIPE) as journal:
        journal.once("sample", lambda: 1)
    before = path.read_bytes()
    newer = with_next_revision(tmp_path, monkeypatch)
    with read_journal(path, "demo") as entries:
        assert [entry.phase for entry in entries.phases()] == ["sample"]
        assert known_revision(entries.engine) == newer
    assert path.read_bytes() == before
    engine = open_database(path)
    assert known_revision(engine) == newer
    assert "note" in {column["name"] for column in inspect(engine).get_columns("task")}
    engine.dispose()


def test_labels_of_0_2_are_measurements_after_the_upgrade(path: Path) -> None:
    begun_by_0_2(path)
    demand_its_labels(path)


def test_a_newer_journal_of_the_same_generation_is_used_as_it_is(path: Path) -> None:
    """What a rollback of the software meets."""
    Journal.open(path, "demo", create=RECIPE).close()
    newer = HEAD[:2] + "99"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (newer,))
        connection.execute("ALTER TABLE phase ADD COLUMN seen TEXT NOT NULL DEFAULT ''")
    connection.close()
    with Journal.open(path, "demo", create=RECIPE) as journal:
        assert journal.once("sample", lambda: 1) == 1
    with read_journal(path, "demo") as entries:
        assert [entry.phase for entry in entries.phases()] == ["sample"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (newer,)
    connection.close()


def test_commits_are_on_disk_and_readers_do_not_block_the_writer(path: Path) -> None:
    Journal.open(path, "demo", create=RECIPE).close()
    engine = open_database(path)
    with engine.connect().execution_options(reading=True) as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
        with Journal.open(path, "demo", create=RECIPE) as journal:
            journal.once("sample", lambda: 1)
    engine.dispose()


def test_a_bad_url_or_a_server_that_is_away_is_a_users_error() -> None:
    with pytest.raises(UserError, match="not understood"):
        Journal.open("sqlite:nonsense://", "demo", create=RECIPE)
    with pytest.raises(UserError, match="cannot be opened"):
        Journal.open("postgresql://nobody@127.0.0.1:1/none", "demo", create=RECIPE)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    for url, said in (
        ("postgresql://owner:hunter2@db.example/pddpo", "PGPASSWORD"),
        ("postgresql://owner:hunter2@[bad", "URL"),
    ):
        with pytest.raises(UserError, match=said) as refused:
            Journal.open(url, "demo", create=RECIPE)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(UserError, match="PGPASSWORD"):
        load("text-world", ["journal=postgresql://owner:hunter2@db.example/pddpo"])


def test_a_full_disk_is_one_clear_message_and_the_phase_is_done_again(path: Path) -> None:
    with Journal.open(path, "demo", create=RECIPE) as journal:
        with journal.engine.connect().execution_options(reading=True) as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        event.listen(journal.engine, "begin", lambda used: used.exec_driver_sql(f"PRAGMA max_page_count={pages}"))
        with pytest.raises(RunError, match=r"cannot be written in round 0 .*full"):
            journal.once("sample", lambda: "x" * 100_000)
    with Journal.open(path, "demo", create=RECIPE) as journal:
        assert journal.once("sample", lambda: 1) == 1


def test_a_listener_hears_rounds_and_phases_as_they_happen(path: Path) -> None:
    heard: list[JournalEvent] = []
    with Journal.open(path, "demo", create=RECIPE, listener=heard.append) as journal:
        for _ in journal.rounds(1):
            journal.once("sample", lambda: 1)
    assert [(event.what, event.round, event.phase) for event in heard] == [
        ("round-started", 1, ""),
        ("phase-started", 1, "sample"),
        ("phase-finished", 1, "sample"),
        ("round-finished", 1, ""),
    ]


def test_two_runs_share_a_database_without_touching_each_other(path: Path) -> None:
    with (
        Journal.open(path, "online", create=RECIPE) as online,
        Journal.open(path, "offline", create=RECIPE) as offline,
    ):
        online.once("sample", lambda: online.add_samples("cost", [answer("a")]))
        assert offline.samples() == []
        assert offline.once("sample", lambda: "its own") == "its own"
