"""One annotator as a process of its own, for tests of several processes on one database.

    python -m tests.support.annotation_worker URL HANDLE_PREFIX PEOPLE ANSWERS GATE [LAST]

Says with a file ANSWERS.ready that it could begin, and begins when the file GATE is there. Answers as `PEOPLE` people
in turn until nothing is left, and appends every acknowledged key to the file ANSWERS after the queue has confirmed it,
as a client would. With LAST it is killed while it holds a question, after so many answers.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.annotation.queue.answers import Answers, Submission
from pddpo_ray.annotation.queue.assignment import Lease, Leases
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store

GATE_DEADLINE_S = 300


def main(url: str, prefix: str, count: int, acknowledged: Path, gate: Path, last: int) -> None:
    engine = open_database(url)
    store = Store(engine, "demo")
    rules = Rules(gold_rate=0.0)
    leases, answers = Leases(store, rules), Answers(store, rules)
    people = [
        People(store).create(f"{prefix}-{n}", Role.ANNOTATOR, by="test", daily_cap=10**6)[0] for n in range(count)
    ]
    acknowledged.with_suffix(".ready").touch()
    deadline = time.monotonic() + GATE_DEADLINE_S
    while not gate.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{gate} was not opened")
        time.sleep(0.005)
    with acknowledged.open("a", buffering=1) as file:
        working = True
        number = 0
        while working:
            working = False
            for person in people:
                lease = leases.lease(person)
                if isinstance(lease, Lease):
                    working = True
                    if number == last:
                        os.kill(os.getpid(), signal.SIGKILL)
                    number += 1
                    key = f"{prefix}-{number}"
                    answers.answer(person, key, lease.id, Submission("label", {"safety": "unsafe"}))
                    file.write(f"{key} {person.id} {lease.prompt}\n")
    engine.dispose()


if __name__ == "__main__":
    answers, gate = Path(sys.argv[4]), Path(sys.argv[5])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), answers, gate, int(sys.argv[6]) if len(sys.argv) > 6 else -1)
