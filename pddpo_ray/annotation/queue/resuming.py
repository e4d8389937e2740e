"""`pddpo annotate --resume-when-ready`: resumes a run that has parked, or asks for a decision, when the questions that
it waits for are answered, or when somebody decided to do without.

The run itself is a process of its own, `pddpo train --resume`; its GPUs are its own too and are taken only then.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from sqlalchemy import Engine

from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.cli.runs.next_steps import resume_command
from pddpo_ray.config import Config
from pddpo_ray.journal.lock import is_driven
from pddpo_ray.journal.transactions import Store

logger = logging.getLogger("pddpo_ray.annotation")

LOG = "resume.log"
LOOK_S = 2.0
DONE, PARKED, UNDECIDED = 0, 3, 4


class Resumer:
    """Watches one run from a thread. It logs an error and gives up when a resumed run fails."""

    def __init__(self, engine: Engine, run_id: str, config: Config, run_dir: Path, *, look_s: float = LOOK_S) -> None:
        self._engine = engine
        self._run_id = run_id
        self._run_dir = run_dir
        self._command = resume_command(run_dir, config.journal)
        self._rounds = Rounds(Store(engine, run_id), Rules())
        self._look_s = look_s
        self._old_batch_ids = self._frozen_batch_ids()
        """Batches frozen at the start or by the last resumed run."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resume", daemon=True)
        self.exits: list[int] = []
        """Exit codes of the resumed runs so far."""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Resumes nothing more; a run in progress is left alone."""
        self._ending.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the watch has ended within this number of seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def ready(self) -> bool:
        """Whether nobody drives the run, all its questions are answered, and some answers are new."""
        batches = self._rounds.all()
        waiting = [status for status in batches if status.state != "frozen"]
        answered = all(status.state == "open" and status.complete for status in waiting)
        news = bool(waiting) or bool(self._frozen_batch_ids() - self._old_batch_ids)
        return answered and news and not is_driven(self._engine, self._run_id)

    def _frozen_batch_ids(self) -> set[str]:
        return {status.id for status in self._rounds.all() if status.state == "frozen"}

    def _watch(self) -> None:
        while not self._ending.wait(self._look_s):
            if not self.ready():
                continue
            logger.warning("all labels are there: the run continues, its log is %s", self._run_dir / LOG)
            self.exits.append(self._resume())
            self._old_batch_ids = self._frozen_batch_ids()
            if self.exits[-1] == DONE:
                logger.warning("the run is finished: %s", self._run_dir / "report.html")
                return
            if self.exits[-1] not in (PARKED, UNDECIDED):
                logger.error(
                    "the run ended with exit code %d, see %s: fix the cause, then run `%s`",
                    self.exits[-1], self._run_dir / LOG, self._command,
                )  # fmt: skip
                return

    def _resume(self) -> int:
        command = [sys.executable, "-m", "pddpo_ray", *shlex.split(self._command)[1:]]
        with (self._run_dir / LOG).open("ab") as log:
            return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
