"""Removes what an endpoint's user takes back from the run's folder: database, stored pairs, report."""

from __future__ import annotations

import shutil
from pathlib import Path

from pddpo_ray.errors import UserError
from pddpo_ray.journal.served import prompts_of
from pddpo_ray.journal.transactions import Store
from pddpo_ray.journal.withdrawing import Withdrawn, withdraw
from pddpo_ray.storage.whole_files import ARTIFACTS

REPORT = "report.html"
STORED_PAIRS = "preferences"
"""Folder of the artifacts to which versions before 0.3 wrote the labelled pairs a second time."""


def take_back(
    store: Store,
    run_dir: Path,
    *,
    by: str,
    reply: str = "",
    key: str = "",
    user: str = "",
    within: str = "",
    question: bool = True,
) -> Withdrawn:
    """Withdraws the prompt of a reply, or all of a key, or all of a user of a key; `within`: only this key's.
    `question`: also what people are asked due to feedback on it.

    `report.html` shows answers of the run, so it goes too: `pddpo report` makes it again. Raises UserError where
    nothing is named.
    """
    if not (reply or key):
        raise UserError("say what to withdraw: the id of a reply, a key, or a user together with the key")
    names = prompts_of(store.engine, store.run, reply=reply, key=key or within, user=user)
    removal = withdraw(store, names, by=by, reply=reply if question else "")
    if (stored := run_dir / ARTIFACTS / STORED_PAIRS).is_dir():
        shutil.rmtree(stored)
    if removal.samples:
        (run_dir / REPORT).unlink(missing_ok=True)
    return removal
