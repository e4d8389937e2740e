"""Servers and a driver of this version serve people and drive a run while software of the next one upgrades their
database.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pddpo_lab.simulated_people import Manner, Tally, enlist, simulate
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.database import known_revision, open_database
from pddpo_ray.journal.transactions import Store
from tests.support.annotation_load import Server, nothing_is_lost
from tests.support.next_revision import with_next_revision

NEEDED = 3
DEADLINE_S = 180.0
ANSWERED = {200, 201, 202, 204, 429}
"""429: on an idle machine these people are quicker than one person may ask, and come back when they are told to."""

DRIVER = """
import sys, time
from pathlib import Path
from pddpo_ray.parts.questions import Question
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store

journal_, questions, needed, end = sys.argv[1:]
config = load("tabular", ["feedback.kind=people"])
journal = Journal.open(journal_, "run", create=config.model_dump(mode="json"), fixed=config.fixed_settings())
of = {"policy_version": 1}
asked = [Question("safety", f"r{n}", f"prompt {n}", "answer", provenance=of) for n in range(int(questions))]
engine = open_database(journal_)
print(Rounds(Store(engine, "run"), Rules()).open(1, "safety", asked, labels_each=int(needed)).id, flush=True)
done = 0
while not Path(end).exists():
    journal.once(f"phase-{done}", lambda: done)
    done += 1
    time.sleep(0.01)
journal.close()
print(done)
"""
"""A run: asks its questions, then finishes one phase after the other; prints how many."""


def upgraded_under_load(
    folder: Path, journal: str | None, monkeypatch: pytest.MonkeyPatch, *, people: int, questions: int
) -> dict[str, Any]:
    """Asserts that nothing is lost and no request is answered with an error. With PostgreSQL (`journal` is its URL) a
    second server joins the first; SQLite has one server, which is ended and started again, and people send again what
    met nobody meanwhile.
    """
    run, seen = folder / "run", Counter[int | str]()
    run.mkdir()
    where = journal or str(run / "journal.sqlite")
    monkeypatch.setattr(httpx.Client, "request", counted(seen))
    with driven(where, questions, folder / "end") as (driver, batch):
        store, done = Store(open_database(where), "run"), threading.Event()
        servers = [Server(run, journal)]
        newer = with_next_revision(folder, monkeypatch)
        try:
            tallies, figures = _rolled(store, servers, run, journal, batch, people, seen, done, newer)
        finally:
            done.set()
            for server in servers:
                server.kill()
        (folder / "end").touch()
        phases = int(driver.communicate(timeout=60)[0])
    assert driver.returncode == 0
    nothing_is_lost(store, tallies, {batch: questions * NEEDED}, NEEDED)
    store.engine.dispose()
    with read_journal(where, "run") as entries:
        assert {entry.phase for entry in entries.phases(0)} == {f"phase-{number}" for number in range(phases)}
    return {**figures, "phases": phases, "requests": sum(seen.values())}


def _rolled(
    store: Store,
    servers: list[Server],
    run: Path,
    journal: str | None,
    batch: str,
    people: int,
    seen: Counter[int | str],
    done: threading.Event,
    newer: str,
) -> tuple[list[Tally], dict[str, Any]]:
    """The upgrade, then a server that starts on the newer tables; returns when every label is there."""
    (first,), rounds = servers, Rounds(store, Rules())
    accounts = enlist(first.url, first.admin_token(), people, "load")
    tallies, crowds = list[Tally](), list[threading.Thread]()

    def begin(url: str, some: list[tuple[str, str]]) -> None:
        def work() -> None:
            manners = [Manner(seconds=0.02)]
            tallies.extend(simulate(url, some, manners, lambda prompt, text: (0, 0), seed=seed, idle_s=None, stop=done))

        seed = len(crowds)  # or two crowds would send the same keys
        crowds.append(threading.Thread(target=work))
        crowds[-1].start()

    def counted_labels() -> int:
        return rounds.status(batch).counted

    half = people // 2 if journal else people
    begin(first.url, accounts[:half])
    wait_for(lambda: counted_labels() >= 100, crowds)
    began = time.monotonic()
    open_database(store.engine.url.render_as_string(hide_password=False)).dispose()
    seconds, at = time.monotonic() - began, counted_labels()
    assert known_revision(store.engine) == newer
    wait_for(lambda: counted_labels() >= at + 100, crowds)  # a server of before, on the new tables
    failed = {status: count for status, count in seen.items() if status not in ANSWERED}
    assert failed == {}, f"during the upgrade: {failed}"
    if journal:
        servers.append(Server(run, journal))
        begin(servers[-1].url, accounts[half:])
    else:
        first.end()
        first.start()
    wait_for(lambda: rounds.status(batch).complete, crowds)
    done.set()
    for crowd in crowds:
        crowd.join(DEADLINE_S)
    assert len(tallies) == people, "somebody was refused or gave up"
    away = {status: count for status, count in seen.items() if status not in ANSWERED}
    assert all(isinstance(status, str) for status in away), away
    assert journal is None or away == {}
    assert sum(tally.refused for tally in tallies) == 0
    return tallies, {"upgrade s": round(seconds, 2), "labels before": at, "met nobody": sum(away.values())}


@contextmanager
def driven(where: str, questions: int, end: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The driver at work, and the id of its batch of questions."""
    command = [sys.executable, "-c", DRIVER, where, str(questions), str(NEEDED), str(end)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        batch = driver.stdout.readline().strip()
        assert batch, "the driver did not start"
        yield driver, batch
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()


def counted(seen: Counter[int | str]) -> Callable[..., httpx.Response]:
    """`httpx.Client.request` that counts how people's requests end: a status, or the kind of a broken connection."""
    request = httpx.Client.request

    def noted(client: httpx.Client, *arguments: Any, **more: Any) -> httpx.Response:
        if "authorization" not in client.headers:  # whether a server is up
            return request(client, *arguments, **more)
        try:
            response = request(client, *arguments, **more)
        except httpx.TransportError as error:
            seen[type(error).__name__] += 1
            raise
        seen[response.status_code] += 1
        return response

    return noted


def wait_for(holds: Callable[[], bool], crowds: list[threading.Thread]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        assert all(crowd.is_alive() for crowd in crowds), "the clients gave up"
        time.sleep(0.05)
