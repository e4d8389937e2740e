"""Who is put to the test first: rounds by what the answers of all rounds say about their policies.

A round's own answers tell its rate so badly that the best of many looks far better than it is. Late policies are close
to each other, so every round's answers count for all of them, by importance weights; of a model of the user's, whose
log-probabilities cost more than the test, those of the newest rounds do. Nothing here certifies anything.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.certificates.ledger import TestedLimit
from pddpo_ray.certificates.margins import coming_test
from pddpo_ray.certificates.outcome import ORDER
from pddpo_ray.certificates.round_draws import drawn_answers
from pddpo_ray.certificates.testing import first_of_rounds, tested_limits
from pddpo_ray.config import Config
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.served import PREFIX
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.theory.estimates.pooled import pooled_means, pooled_weights
from pddpo_ray.theory.output import in_order_of_test, shortfall
from pddpo_ray.theory.seeds import generator
from pddpo_ray.training.progress import LinePace

logger = logging.getLogger(__name__)

MOST_ASKED = 200_000
"""Log-probabilities that are asked for: every round's policy says that of every answer."""
MOST_OF_A_DRAW = 2
"""The same of a user's model, for each draw of the test, which costs about as much as two."""

LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


def order_of_tests(config: Config, journal: JournalReader, backends: Backends) -> dict[str, Any]:
    """Rounds in the order in which they are put to the test, with what each is estimated to be worth."""
    tested = tested_limits(config, {}, first_of_rounds(config))
    newest = None if config.data is None else MOST_OF_A_DRAW * config.certificate.draws
    pooled = PooledAnswers(journal, backends.trainer.log_probs, config.seed, newest)
    estimates: dict[int, dict[str, float]] = {}
    for step in journal.dual_steps():
        if step.round < journal.next_round:
            estimates.setdefault(step.round, {})[step.constraint] = step.estimate.value
    for one in tested:
        if one.people is not None:
            continue  # a model and people together: estimated from the round's own answers
        means = pooled.mean(*_costs(config, journal, backends, one, pooled.answers))
        for number, mean in zip(pooled.rounds, means.tolist(), strict=True):
            estimates.setdefault(number, {})[one.name] = mean
    reachable = certifiable(tested, config.certificate.draws, _spreads(journal))
    thresholds = {one.name: one.limit for one in tested}
    short = {number: shortfall(estimate, reachable, thresholds) for number, estimate in estimates.items()}
    # no test looks at the drift: a policy that is too far from the reference by its own estimate is not put to one
    short |= dict.fromkeys(_drifted(config, journal) & set(short))
    helpful = _helpfulness(config, journal, backends.trainer.log_probs, pooled)
    order = in_order_of_test(short, {number: helpful.get(number, float(number) - 1e9) for number in short})
    return {"order": order, "helpfulness": helpful, "estimates": estimates}


class PooledAnswers:
    """Answers of finished rounds, evenly many of each, with their weights under every round's policy [K, n].

    `newest`: of the last rounds alone, two or more, as far as at most `newest` log-probabilities are asked for, the
    reward policy's among them; None: of all rounds.
    """

    def __init__(self, journal: JournalReader, log_probs: LogProbs, seed: int, newest: int | None = None) -> None:
        finished = range(1, journal.next_round)
        # tests draw the recipe's own prompts: answers to users' are left out
        drawn = {
            number: [one for one in journal.samples(number, "cost") if not one.prompt.id.startswith(PREFIX)]
            for number in finished
        }
        self.rounds = [number for number in finished if drawn[number]]
        if newest is not None:
            self.rounds = self.rounds[-_affordable([len(drawn[number]) for number in self.rounds], newest) :]
        each = max(MOST_ASKED // max(len(self.rounds), 1) ** 2, 1)
        # an even draw: a round's answers may stand prompt by prompt
        kept = {number: _drawn(drawn[number], each, generator(seed, ORDER, number)) for number in self.rounds}
        self.answers = [answer for number in self.rounds for answer in kept[number]]
        authors = [index for index, number in enumerate(self.rounds) for _ in kept[number]]
        self.log_probs = np.array(self._by_policy(journal, log_probs))
        self.weights = pooled_weights(self.log_probs, authors) if authors else np.zeros((0, 0))

    def _by_policy(self, journal: JournalReader, log_probs: LogProbs) -> list[Array]:
        pace, found = LinePace(), []
        for number in self.rounds:
            found.append(log_probs(journal.policies[number - 1], self.answers))
            if pace.due():
                said = "who is tested: log-probabilities of answers under the policy of round %d of %d"
                logger.info(said, number, self.rounds[-1])
        return found

    def mean(self, values: Array, counts: Array | float = 1.0) -> Array:
        """Means under every policy of values [n] or [K, n]; an answer counts `counts` times [n]. -> [K]"""
        return pooled_means(self.weights * counts, values)


def _affordable(answers: Sequence[int], most: int) -> int:
    """How many of the last rounds, two at least, ask for at most `most` log-probabilities: of their answers under their
    policies and the reward policy. `answers`: of each round."""
    asked = [(rounds + 1) * sum(answers[-rounds:]) for rounds in range(1, len(answers) + 1)]
    return max(2, sum(one <= most for one in asked))


def _drawn(answers: Sequence[Response], most: int, draws: np.random.Generator) -> list[Response]:
    """All answers, or a number of them, drawn evenly."""
    if len(answers) <= most:
        return list(answers)
    return [answers[index] for index in draws.choice(len(answers), most, replace=False)]


def _costs(
    config: Config, journal: JournalReader, backends: Backends, tested: TestedLimit, answers: Sequence[Response]
) -> tuple[Array, Array]:
    """Every answer's cost under a limit as its rounds measured it, nan where nobody was asked, and how much its prompt
    counts: P_s / P_0. [n], [n]"""
    rounds = range(1, journal.next_round)
    found = [one for number in rounds for one in drawn_answers(config, journal, number, tested.name)]
    numbers = {one.answer: one.worst for one in found}
    held = next(one for one in backends.held_limits if one.name == tested.name)
    counts = np.array([held.factors[answer.prompt.token_ids] for answer in answers])
    values = tested.draws([numbers.get(answer.id) for answer in answers])
    return tested.low + values * (tested.high - tested.low), counts


def certifiable(tested: Sequence[TestedLimit], draws: int, spreads: Mapping[str, float]) -> dict[str, float]:
    """The costs that a test with this number of draws certifies four times in five, by limit. `spreads`: the standard
    deviations of measured answers, as far as they are known.

    The most helpful of many candidates that look just good enough is one that looks too good: at the cost that is
    certified every other time too many of them failed.
    """
    found = ((one, coming_test(one, draws).margin(spreads.get(one.name, math.inf))) for one in tested)
    return {one.name: one.limit - margin for one, margin in found}


def _spreads(journal: JournalReader) -> dict[str, float]:
    """The largest standard deviation of a round's measured answers, by limit."""
    found: dict[str, float] = {}
    for one in journal.dual_steps():
        found[one.constraint] = max(one.estimate.spread, found.get(one.constraint, 0.0))
    return found


def _drifted(config: Config, journal: JournalReader) -> set[int]:
    """Rounds whose estimate is above the limit on the drift."""
    above = {one.limit.name: one.limit.cost_limit for one in config.stated if one.limit.quantity.kind == "kl"}
    return {one.round for one in journal.dual_steps() if one.estimate.value > above.get(one.constraint, np.inf)}


def _helpfulness(
    config: Config, journal: JournalReader, log_probs: LogProbs, pooled: PooledAnswers
) -> dict[int, float]:
    """E[reward] - beta KL from the reference up to a number that is the same for all policies, by round; {} without a
    reward policy.

    The reward policy is exp(reward / T) times the reference up to a factor of each prompt, where T is beta, and mu more
    under a limit on the drift. With T = beta the reference cancels.
    """
    rewards = [entry for entry in journal.versions() if entry.stage == "reward" and entry.round > 0]
    if not rewards or not pooled.answers:
        return {}
    last, reference = rewards[-1], next(one.version for one in journal.versions() if one.stage == "reference")
    beta, temperature = config.beta, config.beta + _drift_multiplier(config, journal, last.round)
    # where a policy has no weight its log-probability may be -inf
    own = np.where(pooled.weights > 0, pooled.log_probs, 0.0)
    values = temperature * log_probs(last.version, pooled.answers) - beta * own
    if temperature != beta:
        values -= (temperature - beta) * log_probs(reference, pooled.answers)
    return dict(zip(pooled.rounds, pooled.mean(values).tolist(), strict=True))


def _drift_multiplier(config: Config, journal: JournalReader, round_: int) -> float:
    """mu in a round: the multiplier of the limit on the drift; 0 without one."""
    names = [one.limit.name for one in config.stated if one.limit.quantity.kind == "kl"]
    steps = [one for one in journal.dual_steps() if one.round == round_ and one.constraint in names]
    return steps[0].multiplier_before if steps else 0.0
