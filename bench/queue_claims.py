"""C10: what a claim costs when a million questions wait, against ten thousand; one at a time and in tens.

The queue as it runs, on SQLite with every commit on disk (write-ahead log, synchronous=FULL), one client in one
process. Wall time, since a claim also waits for the disk.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from sqlalchemy import insert, select

from bench.ratio import Ratio, of_pairs
from pddpo_ray.annotation.people import People, Role
from pddpo_ray.annotation.questions import Question
from pddpo_ray.annotation.queue import Nothing, Queue, Submission
from pddpo_ray.annotation.rounds import Rounds
from pddpo_ray.annotation.rules import Rules
from pddpo_ray.annotation.store import Store
from pddpo_ray.journal.annotation_schema import task
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.schema import run as run_table

LABELS_EACH, PEOPLE, TENS = 3, 20, 10
CHUNK = 10_000


def run(
    repeats: int, name: str = "C10", *, small: int = 10_000, large: int = 1_000_000, claims: int = 200
) -> list[Ratio]:
    """Median time of a claim with `small` waiting over that with `large`: 1 says that the number does not matter."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = (Desk(Path(folder) / f"{count}.sqlite", count) for count in (small, large))
        try:
            for desk in (few, many):
                desk.claim(claims, 1)
            return [
                _compared(name, "a claim", few, many, claims, 1, repeats),
                _compared(f"{name}-tens", "a claim of ten", few, many, claims // TENS, TENS, repeats),
            ]
        finally:
            few.close()
            many.close()


def _compared(name: str, what: str, few: Desk, many: Desk, claims: int, each: int, repeats: int) -> Ratio:
    """In the order few, many, many, few: a drift of the machine hits both alike."""
    pairs, short, long = [], [], []
    for _ in range(repeats):
        rounds = [desk.claim(claims, each) for desk in (few, many, many, few)]
        short += rounds[0] + rounds[3]
        long += rounds[1] + rounds[2]
        pairs.append((float(np.median(rounds[0] + rounds[3])), float(np.median(rounds[1] + rounds[2]))))
    details = {
        f"ms with {few.count:,}": 1e3 * float(np.median(short)),
        f"ms with {many.count:,}": 1e3 * float(np.median(long)),
        f"claims/s with {many.count:,}": each * len(long) / sum(long),
        "p99 ms": 1e3 * float(np.quantile(long, 0.99)),
    }
    what = f"{what}: p50 with {few.count:,} questions waiting / with {many.count:,}"
    return of_pairs(name, what, pairs, floor=1 / 1.2, details=details)


class Desk:
    """A queue with so many open questions, and some people who take them in turn."""

    def __init__(self, file: Path, count: int) -> None:
        self.count = count
        self._engine = open_database(file)
        with self._engine.begin() as connection:
            connection.execute(insert(run_table).values(id="bench", recipe={}, substance={}, created_ms=0))
        rules = Rules(leases_each=TENS, gold_rate=0.0)
        self._store = Store(self._engine, "bench")
        rounds = Rounds(self._store, rules)
        first = Question("safety", "r0", "prompt " * 20, "answer " * 40, provenance={"policy_version": 1})
        rounds.open(1, "safety", [first], labels_each=LABELS_EACH)
        self._fill()
        people = People(self._store)
        self._people = [
            people.create(f"person {number}", Role.ANNOTATOR, by="bench", daily_cap=10**6)[0]
            for number in range(PEOPLE)
        ]
        self._queue = Queue(self._store, rules)
        self._turn = 0

    def claim(self, claims: int, each: int) -> list[float]:
        """Wall seconds of every claim of `each` questions; they are answered in between, outside of the time."""
        seconds = []
        for _ in range(claims):
            self._turn += 1
            person = self._people[self._turn % PEOPLE]
            began = time.perf_counter()
            found = self._queue.leases(person, each)
            seconds.append(time.perf_counter() - began)
            if isinstance(found, Nothing) or len(found) != each:
                raise RuntimeError(f"{each} questions were asked for, the queue gave {found}")
            for number, lease in enumerate(found):
                submission = Submission("label", {"safety": "safe"})
                self._queue.answer(person, f"key-{self._turn}-{number}", lease.id, submission)
        return seconds

    def close(self) -> None:
        self._engine.dispose()

    def _fill(self) -> None:
        """Copies of the one question: `Rounds.open` would build a million texts and their hashes first."""
        names = sorted(hashlib.sha256(str(number).encode()).hexdigest()[:32] for number in range(1, self.count))
        with self._engine.begin() as connection:
            row = dict(connection.execute(select(task)).mappings().one())
            del row["balance"]
            rows = (row | {"id": id_, "item": id_, "position": place} for place, id_ in enumerate(names, start=1))
            while chunk := list(islice(rows, CHUNK)):
                connection.execute(insert(task), chunk)
