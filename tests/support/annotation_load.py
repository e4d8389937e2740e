"""Many clients on one annotation server that is killed without warning, and what must hold afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import select

from pddpo_lab.simulated_people import Manner, Tally, enlist, simulate
from pddpo_ray.annotation.queue.answer_forms import screen_form
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.annotation_schema import answer
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question
from tests.support.ports import free_port

START_S = 180.0
ANSWERED_S = 600.0
"""In which all labels are there, starts of the server included."""


class Server:
    """`pddpo annotate` as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, run: Path, journal: str | None) -> None:
        self._run, self._journal = run, journal
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = run.parent / "server.log"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "pddpo_ray", "annotate", "--run", str(self._run), "--port", str(self.port)]
        command += ["--journal", self._journal] if self._journal else []
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """As a service manager ends it: what was begun is answered."""
        self._process.terminate()
        self._process.wait(timeout=60)

    def admin_token(self) -> str:
        return (self._run / "annotation-admin-token").read_text().strip()


def survive(
    folder: Path, journal: str | None, *, people: int, questions: int, needed: int, kills: int, every_s: float
) -> dict[str, Any]:
    """Lets `people` answer `questions` x `needed` labels while the server is killed `kills` times; some walk away.

    Asserts that no acknowledged answer is lost, none counts twice, and nobody has more than one label on a question.
    Returns answers per second and percentiles of the time per request.
    """
    run = folder / "run"
    run.mkdir()
    config = load("tabular", ["feedback.kind=people", "people.lease_s=6"])
    place = journal or str(run / "journal.sqlite")
    Journal.open(place, run.name, create=config.model_dump(mode="json"), fixed=config.fixed_settings()).close()
    engine = open_database(place)
    store = Store(engine, run.name)
    rounds = Rounds(store, Rules())
    round_ = rounds.open(1, "safety", [_question(n) for n in range(questions)], labels_each=needed)

    server = Server(run, journal)
    accounts = enlist(server.url, server.admin_token(), people, "load")
    manners = [Manner(dropout=0.02)] * (people // 5) + [Manner()] * (people - people // 5)
    tallies: list[Tally] = []
    began, done = time.monotonic(), threading.Event()
    worker = threading.Thread(
        target=lambda: tallies.extend(
            simulate(server.url, accounts, manners, lambda prompt, text: (0.0, 0.0), seed=1, idle_s=None, stop=done)
        )
    )
    worker.start()
    for _ in range(kills):
        time.sleep(every_s)
        server.kill()
        server.start()
    seconds = None
    while worker.is_alive() and time.monotonic() - began < ANSWERED_S:
        worker.join(0.1)
        if seconds is None and rounds.status(round_.id).complete:
            seconds = time.monotonic() - began
            done.set()
    done.set()
    worker.join(60)
    server.kill()
    assert tallies, "the clients gave up"

    nothing_is_lost(store, tallies, {round_.id: questions * needed}, needed)
    engine.dispose()
    return {"people": people, "kills": kills, **figures(tallies, seconds)}


def nothing_is_lost(store: Store, tallies: Sequence[Tally], labels: Mapping[str, int], needed: int) -> None:
    """Asserts that what was acknowledged is stored as it was said, that every batch (`labels` by its id) has as many
    labels as it wants, `needed` of different people on each question, and that the books balance."""
    with store.engine.connect() as connection:
        rows = {row.key: row for row in connection.execute(select(answer))}
    for tally in tallies:
        for key, given in tally.acknowledged.items():
            stored = rows[key]
            assert screen_form(stored_kind(given), stored.given, stored.swap) == given, f"{key} is lost or changed"
    for batch, wanted in labels.items():
        snapshot = Rounds(store, Rules()).freeze(batch)
        assert len(snapshot.answers) == wanted
        assert set(Counter(entry.position for entry in snapshot.answers).values()) == {needed}
        assert len({(entry.position, entry.annotator) for entry in snapshot.answers}) == wanted
        assert len({entry.key for entry in snapshot.answers}) == wanted
    assert imbalances(store) == []
    assert broken_links(store) == []


def stored_kind(given: Mapping[str, str]) -> str:
    """What was asked, by the form of the answer."""
    return "safety" if "safety" in given else "pair"


def figures(tallies: Sequence[Tally], seconds: float | None) -> dict[str, Any]:
    """Answers, answers per second and percentiles of the time per request."""
    latencies = np.array([second for tally in tallies for second in tally.seconds])
    p50, p95, p99 = np.quantile(latencies, [0.5, 0.95, 0.99])
    acknowledged = sum(len(tally.acknowledged) for tally in tallies)
    return {
        "answers": acknowledged,
        "left": sum(tally.left for tally in tallies),
        "sent again": sum(tally.retries for tally in tallies),
        "confirmed as repeated": sum(tally.repeated for tally in tallies),
        "surplus": sum(tally.surplus for tally in tallies),
        "requests": len(latencies),
        "seconds": round(seconds or 0.0, 1),
        "answers/s": round(acknowledged / seconds, 1) if seconds else None,
        "p50 ms": round(1000 * float(p50), 1),
        "p95 ms": round(1000 * float(p95), 1),
        "p99 ms": round(1000 * float(p99), 1),
    }


def _question(number: int) -> Question:
    return Question("safety", f"r{number}", f"prompt {number}", "answer", provenance={"policy_version": 1})
