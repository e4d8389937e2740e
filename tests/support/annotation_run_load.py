"""A whole run by many people while the annotation server is killed again and again: the run must end by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from pddpo_lab.simulated_people import Manner, Tally, enlist, simulate
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import IDENTITY, open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import Verdict
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.annotation_load import Server, figures, nothing_is_lost

RECIPE = ("tabular", "algorithm=pd-dpo", "rounds=1", "offline.pairs=100")
PATIENCE_S = 120.0
LEASE_S = 60.0
"""Who walks away with a question holds it so long."""


def run_ends_by_itself(
    folder: Path, journal: str | None, *, people: int, questions: int, needed: int, kills: int, think_s: float
) -> dict[str, Any]:
    """`people` with a mean of `think_s` seconds for an answer give a run its labels; the server is killed `kills`
    times, evenly over the labels. One person in twenty walks away with a question, after fifty on average.

    Returns the figures of `tests.support.annotation_load`, and the machine's load meanwhile.
    """
    run = folder / "run"
    asked = ["feedback.kind=people", f"feedback.responses={questions}", f"limits.cost.labels_each={needed}"]
    asked += [f"people.lease_s={LEASE_S}", *([f"journal={journal}"] if journal else [])]
    command = [sys.executable, "-m", "pddpo_ray", "train", *RECIPE, *asked, "--run", str(run)]
    with (folder / "train.log").open("w") as log:
        training = subprocess.Popen(command, stdout=log, stderr=log)
    server = None
    try:
        store = _store_of(run, journal, training, folder / "train.log")
        rounds = Rounds(store, Rules())
        server = Server(run, journal)
        accounts = enlist(server.url, server.admin_token(), people, "load")
        manners = [Manner(seconds=think_s, dropout=0.02)] + [Manner(seconds=think_s)] * 19
        tallies: list[Tally] = []
        done = threading.Event()
        crowd = threading.Thread(
            target=lambda: tallies.extend(
                simulate(server.url, accounts, manners, lambda prompt, text: (0.0, 0.0), seed=1, idle_s=None, stop=done)
            )
        )
        began, loads = time.monotonic(), [os.getloadavg()[0]]
        crowd.start()
        killed = 0
        while training.poll() is None and crowd.is_alive():
            counted = sum(one.counted for one in _batches(rounds))
            if killed < kills and counted >= (killed + 0.5) / kills * questions * needed:
                server.kill()
                server.start()
                killed += 1
            loads.append(os.getloadavg()[0])
            time.sleep(0.5)
        seconds = time.monotonic() - began
        done.set()
        crowd.join(PATIENCE_S)
        ended = training.wait(timeout=PATIENCE_S)
    finally:
        if training.poll() is None:
            training.kill()
        if server is not None:
            server.kill()
    assert ended == 0, (folder / "train.log").read_text()[-3000:]
    assert killed == kills
    assert tallies, "the clients gave up"
    assert (run / "result.json").exists()

    nothing_is_lost(store, tallies, {one.id: questions * needed for one in _batches(rounds)}, needed)
    with open_folder(run, journal) as entries:
        labels = entries.safety(1)
    assert len(labels) == questions
    assert all(len(one.labels) == needed and set(one.labels) <= {Verdict.SAFE, Verdict.UNSAFE} for one in labels)
    store.engine.dispose()
    load = sum(loads) / len(loads)
    return {"people": people, "kills": kills, **figures(tallies, seconds), "load": round(load, 1)}


def _batches(rounds: Rounds) -> list[RoundStatus]:
    return [one for one in rounds.all() if not one.purpose.startswith("gold")]


def _store_of(run: Path, journal: str | None, training: subprocess.Popen[bytes], log: Path) -> Store:
    """The queue's database, once the run has put its questions there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and training.poll() is None:
        if (run / IDENTITY if journal else run / JOURNAL).exists():
            with suppress(UserError, SQLAlchemyError), open_folder(run, journal) as entries:
                store = Store(open_database(journal or run / JOURNAL), entries.run_id)
                if _batches(Rounds(store, Rules())):
                    return store
                store.engine.dispose()
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])
