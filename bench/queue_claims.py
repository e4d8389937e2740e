"""C10: what a claim costs when a million questions wait, against ten thousand; one at a time, in tens, by many clients.

The queue as it runs, on SQLite with every commit on disk (write-ahead log, synchronous=FULL), in one process. Wall
time, since a claim also waits for the disk, and processor time, which says more where other work runs beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from sqlalchemy import insert, text

from bench.ratio import Ratio, of_pairs
from pddpo_ray.annotation.people.accounts import People, Person, Role
from pddpo_ray.annotation.queue.answers import Answers, Submission
from pddpo_ray.annotation.queue.assignment import Lease, Leases, NoQuestion
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.annotation_schema import task
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import Question

LABELS_EACH, PEOPLE, TENS = 3, 20, 10
CLIENTS, EACH = 16, 20
COPY = """
INSERT INTO task (id, position, {copied})
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :last),
               name(id) AS MATERIALIZED (SELECT lower(hex(randomblob(16))) FROM number)
SELECT name.id, row_number() OVER (ORDER BY name.id), {copied} FROM name, task
"""


def run(
    repeats: int, name: str = "C10", *, small: int = 10_000, large: int = 1_000_000, claims: int = 100
) -> list[Ratio]:
    """Median time of a claim with `small` waiting over that with `large`: 1 says that the number does not matter."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = (ClaimedQueue(Path(folder) / f"{count}.sqlite", count) for count in (small, large))
        for queue in (few, many):
            queue.claim(claims, 1)
        singly = _compared(name, "a claim", few, many, claims, 1, repeats)
        in_tens = _compared(f"{name}-tens", "a claim of ten", few, many, claims // TENS, TENS, repeats)
        at_once = [float(np.median([many.claim_at_once(each) for _ in range(repeats)])) for each in (1, TENS)]
        for queue in (few, many):
            queue.close()
    found = zip((singly, in_tens), at_once, strict=True)
    return [ratio.noting({f"claims/s of {CLIENTS} clients": speed}) for ratio, speed in found]


def _compared(
    name: str, what: str, few: ClaimedQueue, many: ClaimedQueue, claims: int, each: int, repeats: int
) -> Ratio:
    """In the order few, many, many, few: a drift of the machine hits both alike."""
    pairs, short, long = [], [], []
    for _ in range(repeats):
        first, second, third, fourth = (queue.claim(claims, each) for queue in (few, many, many, few))
        short += first + fourth
        long += second + third
        pairs.append((_median(first + fourth)[0], _median(second + third)[0]))
    wall, processor = _median(long)
    details = {
        f"ms with {few.count:,}": 1e3 * _median(short)[0],
        f"ms with {many.count:,}": 1e3 * wall,
        "claims/s": each / wall,
        "claims/CPU-s": each / processor,
    }
    what = f"{what}: p50 with {few.count:,} questions waiting / with {many.count:,}"
    return of_pairs(name, what, pairs, floor=1 / 1.2, details=details)


def _median(claims: Sequence[tuple[float, float]]) -> tuple[float, float]:
    wall, processor = np.median(claims, axis=0)
    return float(wall), float(processor)


class ClaimedQueue:
    """A queue with so many open questions, and some people who take them in turn."""

    def __init__(self, file: Path, count: int) -> None:
        self.count = count
        self._engine = open_database(file)
        with self._engine.begin() as connection:
            connection.execute(insert(run_table).values(id="bench", recipe={}, fixed_settings={}, created_ms=0))
        store, rules = Store(self._engine, "bench"), Rules(leases_each=max(TENS, EACH), gold_rate=0.0)
        first = Question("safety", "r0", "prompt " * 20, "answer " * 40, provenance={"policy_version": 1})
        Rounds(store, rules).open(1, "safety", [first], labels_each=LABELS_EACH)
        self._fill()
        names = [f"person {number}" for number in range(PEOPLE)]
        self._people = [People(store).create(name, Role.ANNOTATOR, by="bench", daily_cap=10**6)[0] for name in names]
        self._leases, self._answers = Leases(store, rules), Answers(store, rules)
        self._turn = 0

    def _fill(self) -> None:
        """Copies of the one question: `Rounds.open` would build a million texts and their hashes first."""
        copied = ", ".join(column.name for column in task.c if column.name not in ("id", "position", "balance"))
        with self._engine.begin() as connection:
            connection.execute(text(COPY.format(copied=copied)), {"last": self.count - 1})

    def claim(self, claims: int, each: int) -> list[tuple[float, float]]:
        """Seconds of every claim of `each` questions, wall and processor; answers are given in between."""
        seconds = []
        for _ in range(claims):
            self._turn += 1
            person = self._people[self._turn % PEOPLE]
            began, used = time.perf_counter(), time.process_time()
            found = self._leases.several(person, each)
            seconds.append((time.perf_counter() - began, time.process_time() - used))
            if isinstance(found, NoQuestion) or len(found) != each:
                raise RuntimeError(f"{each} questions were asked for, the queue gave {found}")
            self._answer(person, found)
        return seconds

    def claim_at_once(self, each: int) -> float:
        """Questions a second that several clients get who take `each` at a time."""
        clients = self._people[:CLIENTS]
        with ThreadPoolExecutor(CLIENTS) as pool:
            began = time.perf_counter()
            taken = list(pool.map(lambda person: self._take(person, each), clients))
            seconds = time.perf_counter() - began
        for person, found in zip(clients, taken, strict=True):
            self._answer(person, found)
        return CLIENTS * EACH / seconds

    def _take(self, person: Person, each: int) -> list[Lease]:
        found: list[Lease] = []
        while len(found) < EACH:
            held = self._leases.several(person, each, [one.id for one in found])
            if isinstance(held, NoQuestion):
                raise RuntimeError(f"{each} questions were asked for, the queue gave {held}")
            found += held
        return found

    def _answer(self, person: Person, found: Sequence[Lease]) -> None:
        for lease in found:
            self._answers.answer(person, f"key-{lease.id}", lease.id, Submission("label", {"safety": "safe"}))

    def close(self) -> None:
        self._engine.dispose()
