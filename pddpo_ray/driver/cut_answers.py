"""Answers that ran into the token limit: how many of the reference's before round 1, and of each round's policy.

A cut answer has `rollout.max_tokens` tokens, and the last does not end it. It counts with the text that it has, so a
limit on a mean length is measured and learned correctly only where nearly all answers end by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.driver.offline_setup import calibration_answers
from pddpo_ray.journal import Journal
from pddpo_ray.records import Response
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.text.renderer import stop_ids

logger = logging.getLogger(__name__)

PHASE = "cut-answers"
METRIC = "rollout/cut"
"""Share of a round's answers that were cut."""
MOST = 0.05
"""Share of cut answers above which a run says so."""


def watch_cut_answers(config: Config, journal: Journal, backends: Backends) -> None:
    """Counts the reference's cut answers now, and those of each round when it closes. Tables have none."""
    if config.policies == "language models":
        counter = CutAnswers(config, journal, backends)
        counter.before()
        journal.closing.append(counter.close_round)


class CutAnswers:
    """Counts cut answers of a run on texts."""

    def __init__(self, config: Config, journal: Journal, backends: Backends) -> None:
        folder = backends.store.folder(backends.reference.path)
        self._journal, self._longest = journal, config.rollout.max_tokens
        self._ends = set(stop_ids(load_tokenizer(folder), folder))

    def before(self) -> None:
        """Counts the reference's cut answers once and warns of many; does nothing without such answers."""
        answers = calibration_answers(self._journal)
        if not answers:
            return
        counts = self._journal.once(PHASE, lambda: self._record_cut_share(answers))
        self._say("before round 1", "the reference's", counts["answers"], counts["cut"])

    def close_round(self, number: int) -> None:
        """Journals the share of the round's answers that were cut. A closing of rounds (`Journal.closing`)."""
        answers = self._journal.samples(number, "cost")
        if answers:
            counts = self._journal.once(PHASE, lambda: self._record_cut_share(answers))
            self._say(f"round {number}", "its policy's", counts["answers"], counts["cut"])

    def _record_cut_share(self, answers: Sequence[Response]) -> dict[str, Any]:
        cut = self.share(answers)
        self._journal.add_metrics({METRIC: cut})
        return {"answers": len(answers), "cut": cut}

    def share(self, answers: Sequence[Response]) -> float:
        """Share of answers of the longest length whose last token ends nothing."""
        cut = [len(answer.token_ids) >= self._longest and answer.token_ids[-1] not in self._ends for answer in answers]
        return sum(cut) / len(cut)

    def _say(self, when: str, whose: str, count: int, cut: float) -> None:
        if cut <= MOST:
            return
        logger.warning(
            "%s: %.3g %% of %d of %s answers are cut at rollout.max_tokens=%d, and at most %g %% should be: their"
            " length is not seen, and no fit can learn where they end. Raise rollout.max_tokens (and"
            " rollout.max_model_len), or ask for shorter answers",
            *(when, 100 * cut, count, whose, self._longest, 100 * MOST),
        )
