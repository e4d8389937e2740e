"""One annotator as a process of its own, for tests of several processes on one database.

    python -m tests.annotation_worker URL HANDLE_PREFIX PEOPLE ANSWERS

Answers as `PEOPLE` people in turn until nothing is left, and appends every acknowledged key to the file ANSWERS after
the queue has confirmed it, as a client would.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pddpo_ray.annotation.people import People, Role
from pddpo_ray.annotation.queue import Lease, Queue, Submission
from pddpo_ray.annotation.rules import Rules
from pddpo_ray.annotation.store import Store
from pddpo_ray.journal.database import open_database


def main(url: str, prefix: str, count: int, acknowledged: Path) -> None:
    engine = open_database(url)
    store = Store(engine, "demo")
    queue = Queue(store, Rules(gold_rate=0.0))
    people = [
        People(store).create(f"{prefix}-{n}", Role.ANNOTATOR, by="test", daily_cap=10**6)[0] for n in range(count)
    ]
    with acknowledged.open("a", buffering=1) as file:
        working = True
        number = 0
        while working:
            working = False
            for person in people:
                lease = queue.lease(person)
                if isinstance(lease, Lease):
                    working = True
                    number += 1
                    key = f"{prefix}-{number}"
                    queue.answer(person, key, lease.id, Submission("label", {"safety": "unsafe"}))
                    file.write(f"{key} {person.id} {lease.prompt}\n")
    engine.dispose()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
