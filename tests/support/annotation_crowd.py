"""Several processes answer one round, one of them dies without warning; the promises that hold afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pddpo_ray.annotation.queue.assignment import Leases
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store, now_ms
from tests.support.annotation_queue import create_run, expire, safety_questions

ROOT = Path(__file__).parents[2]
RULES = Rules(gold_rate=0.0)
KILLED_AFTER = 2
"""Answers of the first worker, which is killed while it holds its next question."""
PATIENCE_S = 360
"""Every answer is two commits on a disk that others may be using."""


def crowd_keeps_every_promise(url: str, folder: Path, *, questions: int, needed: int, processes: int) -> None:
    """Starts `processes` workers of `needed` people each at once; the first is killed in the middle, others finish."""
    engine = open_database(url)
    create_run(engine)
    store = Store(engine, "demo")
    rounds = Rounds(store, RULES)
    round_ = rounds.open(1, "safety", safety_questions(questions), labels_each=needed)
    files = [folder / f"acknowledged-{n}" for n in range(processes)]
    gate = folder / "gate"
    first = _start(url, 0, needed, files[0], gate, KILLED_AFTER)
    workers = [first, *(_start(url, n, needed, file, gate) for n, file in enumerate(files) if n)]
    _wait_until_ready(files)
    gate.touch()
    ends = [worker.wait(timeout=PATIENCE_S) for worker in workers]
    assert ends == [-signal.SIGKILL] + [0] * (processes - 1), [_complaint(file) for file in files]
    # What the dead process held runs out; somebody else does it.
    late = Store(engine, "demo", lambda: now_ms() + int(RULES.lease_s * 1000) + 1)
    expire(Leases(late, RULES))
    last = folder / "acknowledged-last"
    assert _start(url, processes, needed, last, gate).wait(timeout=PATIENCE_S) == 0, _complaint(last)

    snapshot = rounds.freeze(round_.id)
    acknowledged = [line.split(maxsplit=2) for file in [*files, last] for line in file.read_text().splitlines()]
    counted = {entry.key: entry for entry in snapshot.answers}
    assert len(snapshot.answers) == questions * needed
    assert set(Counter(entry.position for entry in snapshot.answers).values()) == {needed}
    assert len({(entry.position, entry.annotator) for entry in snapshot.answers}) == len(snapshot.answers)
    for key, person, prompt in acknowledged:
        assert (counted[key].annotator, f"prompt {counted[key].position}") == (person, prompt)
    assert len(snapshot.answers) == len(acknowledged)
    assert len(files[0].read_text().splitlines()) == KILLED_AFTER
    assert imbalances(store) == []
    assert broken_links(store) == []
    engine.dispose()


def _start(url: str, number: int, people: int, file: Path, gate: Path, *last: int) -> subprocess.Popen[bytes]:
    arguments = [url, f"w{number}", people, file, gate, *last]
    command = [sys.executable, "-m", "tests.support.annotation_worker", *map(str, arguments)]
    with file.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, stderr=log)


def _complaint(file: Path) -> str:
    """How far a worker came, and the last it said."""
    answers = len(file.read_text().splitlines()) if file.exists() else 0
    return f"{file.name}: {answers} answers; {file.with_suffix('.log').read_text()[-2000:] or 'no error'}"


def _wait_until_ready(files: Sequence[Path]) -> None:
    """Nobody begins before all can: else those who came first would leave nothing to the others."""
    deadline = time.monotonic() + 120
    while not all(file.with_suffix(".ready").exists() for file in files):
        assert time.monotonic() < deadline, [_complaint(file) for file in files]
        time.sleep(0.02)
