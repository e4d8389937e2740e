"""The scorecard of a run: a fixed set of questions, answered by the reference and by every round's policy alike.

    before round 1   the reference's answers are drawn and scored; held-out scorers are trained and judged
    every round      the policy's answers from the same seeds, drawn once while the engines hold it; its figures

Its draws have random streams of their own, so that a run with a scorecard makes the same policies as one without. What
it counts is in the journal: a resumed run draws and reports nothing anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.config.sections.scorecard import PAIRS_RANKED
from pddpo_ray.contracts import Trainer
from pddpo_ray.journal import Journal
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.prompts import spread, spread_prompts
from pddpo_ray.parts.sampling import RolloutController, Wanted
from pddpo_ray.records import HARM, Array, PolicyVersion, Prompt, Response, Verdict, by_prompt
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.scorecard.cards import ASKED, BENIGN, PHASE, as_metrics, divergence, trials_in
from pddpo_ray.scorecard.figures import (
    Rows,
    Scores,
    Written,
    figures_of_divergence,
    figures_of_pairs,
    figures_of_scores,
    figures_of_texts,
)
from pddpo_ray.scorecard.scorers import Score, held_out_scores, own_scores
from pddpo_ray.scorecard.words import brief
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.reward_hacking import Divergence, comparisons_of

logger = logging.getLogger(__name__)

ALARM = 0.05
"""Probability of a false alarm, over all rounds, that the run's own reward rises while the held-out one falls."""
TRUNCATED = 0.1
"""Share of answers cut off at `rollout.max_tokens` above which every round says so."""
DECIDED = (Verdict.FIRST, Verdict.SECOND)


def questions(config: Config, backends: Backends) -> list[Prompt]:
    """The fixed prompts: of those that the run keeps from itself or, where it keeps none, of its own."""
    prompts = [item.pair.prompt for item in backends.held_out] or list(backends.prompts)
    return spread_prompts(prompts, config.scorecard_prompts)


def wanted_of(config: Config, backends: Backends) -> list[Wanted]:
    """What every policy is asked; nothing without a scorecard."""
    prompts = questions(config, backends)
    if not prompts:
        return []
    benign = [Wanted(BENIGN, backends.benign, 1, alike=True)] if backends.benign else []
    return [Wanted(ASKED, prompts, config.scorecard.answers, alike=True), *benign]


class Scorecard:
    """Counts what a policy's answers to the fixed questions say. `before` is called once, before round 1."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        backends: Backends,
        trainer: Trainer,
        rollout: RolloutController,
        feedback: FeedbackController,
    ) -> None:
        self._config, self._journal, self._backends = config, journal, backends
        self._trainer, self._rollout, self._feedback = trainer, rollout, feedback
        self._scores: dict[str, Score] = {}
        self._ends: set[int] = set()
        self._pairs = spread(backends.held_out, PAIRS_RANKED)

    def before(self) -> None:
        """Trains or opens the scorers, and counts the reference's answers."""
        folder = self._backends.store.folder(self._backends.reference.path)
        self._ends = set(stop_ids(load_tokenizer(folder), folder))
        prompts = questions(self._config, self._backends)
        own_scorers = own_scores(self._config, self._feedback, self._backends.reward)
        held_scorers = held_out_scores(self._config, self._journal, self._backends, prompts)
        self._scores = {f"{kind}_own": score for kind, score in own_scorers.items()}
        self._scores |= {f"{kind}_held_out": score for kind, score in held_scorers.items()}
        self._rollout.ask_reference_besides()
        self._journal.once(PHASE, lambda: self._score_policy(self._backends.reference))

    def close_round(self, number: int) -> None:
        """Counts the round's policy, if it was asked. A closing of rounds (`Journal.closing`)."""
        answers = self._journal.samples(number, ASKED)
        if not answers:
            return
        versions = {entry.version.number: entry.version for entry in self._journal.versions()}
        payload = self._journal.once(PHASE, lambda: self._score_policy(versions[answers[0].policy_version]))
        logger.info("scorecard of round %d: %s", number, brief(as_metrics(payload, trials_in(self._journal))))
        for note in payload["notes"]:
            logger.warning("round %d: %s", number, note)

    def _score_policy(self, policy: PolicyVersion) -> dict[str, Any]:
        number = self._journal.round
        rows = list(by_prompt(self._journal.samples(number, ASKED)).values())
        written = self._written_texts(rows)
        first = next((entry.payload for entry in self._journal.phases(0, PHASE)), None)
        scores = {
            name: _as_rows(score([answer for row in rows for answer in row]), rows)
            for name, score in self._scores.items()
        }
        scores = {name: values for name, values in scores.items() if np.isfinite(np.concatenate(values)).all()}
        figures = figures_of_texts(written, self._config.rollout.max_tokens)
        figures |= figures_of_scores(Scores(scores, {} if first is None else first["scores"]))
        pairs = self._pair_log_probs(policy)
        if first is not None:
            figures |= figures_of_divergence(self._log_ratios(policy, rows), written.tokens)
            figures |= self._agreement(pairs - np.reshape(first["pairs"], (-1, 2)))
        payload: dict[str, Any] = {
            "policy": policy.number,
            "prompts": [row[0].prompt.id for row in rows],
            "held_out": bool(self._backends.held_out),
            "scores": scores,
            "pairs": pairs.tolist() if first is None else [],
            "figures": {name: asdict(figure) for name, figure in figures.items()},
        }
        payload["alarm"] = [asdict(comparison) for comparison in self._compare_rounds(number, scores)]
        payload["notes"] = self._notes(payload)
        self._journal.add_metrics(as_metrics(payload, trials_in(self._journal)))
        return payload

    def _written_texts(self, rows: Sequence[Sequence[Response]]) -> Written:
        longest = self._config.rollout.max_tokens
        benign = self._journal.samples(self._journal.round, BENIGN)

        def cut_off(answer: Response) -> float:
            return float(len(answer.token_ids) >= longest and answer.token_ids[-1] not in self._ends)

        return Written(
            texts=[[answer.text for answer in row] for row in rows],
            tokens=[[float(len(answer.token_ids)) for answer in row] for row in rows],
            cut_off=[[cut_off(answer) for answer in row] for row in rows],
            benign=[answer.text for answer in benign],
        )

    def _log_ratios(self, policy: PolicyVersion, rows: Sequence[Sequence[Response]]) -> list[list[float]]:
        """log policy / reference of the policy's answers, both by the trainer: 0 where nothing was learned."""
        answers = [answer for row in rows for answer in row]
        ratios = self._trainer.log_probs(policy, answers) - self._trainer.log_probs(self._backends.reference, answers)
        return _as_rows(ratios, rows)

    def _pair_log_probs(self, policy: PolicyVersion) -> Array:
        """For both answers of each held-out pair. -> [pairs, 2]"""
        answers = [answer for item in self._pairs for answer in (item.pair.first, item.pair.second)]
        if not answers:
            return np.empty((0, 2))
        return np.asarray(self._trainer.log_probs(policy, answers)).reshape(-1, 2)

    def _agreement(self, ratios: Array) -> Mapping[str, Any]:
        sides = ratios[:, 0] - ratios[:, 1] if len(ratios) else np.empty(0)
        agreed = {}
        for name, labels, positive in (
            ("better", [item.helpful for item in self._pairs], Verdict.FIRST),
            ("safer", [item.label(HARM) for item in self._pairs], Verdict.SECOND),
        ):
            indices = [index for index, label in enumerate(labels) if label in DECIDED]
            values = [agreement(float(sides[i]) if labels[i] is positive else -float(sides[i])) for i in indices]
            agreed[name] = (values, [self._pairs[i].pair.prompt.id for i in indices])
        return figures_of_pairs(agreed)

    def _compare_rounds(self, number: int, scores: Mapping[str, Rows]) -> list[Divergence]:
        """Compares the round with all earlier ones; [] unless both rewards are known for each."""
        if number == 0:
            return []
        before = [entry.payload["scores"] for entry in self._journal.phases(like=PHASE) if 0 <= entry.round < number]
        history = [*before, scores]
        names = ("reward_own", "reward_held_out")
        if len(history) != number + 1 or any(name not in entry for entry in history for name in names):
            return []
        rewards, held_out = ([[float(np.mean(row)) for row in entry[name]] for entry in history] for name in names)
        return comparisons_of(rewards, held_out, ALARM)

    def _notes(self, payload: Mapping[str, Any]) -> list[str]:
        notes = [
            f"reward hacking: {alarm}; the policy earns what its reward model says and not what it stands for: see the"
            " answers in the report, and stop at the round before or train the reward model on such answers"
            for alarm in map(divergence, payload["alarm"])
            if alarm.rings
        ][:1]
        cut, limit = payload["figures"]["truncated"]["value"], TRUNCATED
        if cut > limit:
            notes.append(
                f"{100 * cut:.3g} % of the scorecard's answers are cut off at rollout.max_tokens="
                f"{self._config.rollout.max_tokens}: raise it to see how they end"
            )
        return notes


def _as_rows(values: Any, rows: Sequence[Sequence[Response]]) -> list[list[float]]:
    """One number per answer, prompt by prompt."""
    flat = iter(np.asarray(values, np.float64).tolist())
    return [[next(flat) for _ in row] for row in rows]
