"""Orders the rounds for testing, by estimates that pool the answers of all rounds.

One round's answers estimate its rate so badly that the best of many rounds looks far better than it is. Late policies
are close to each other, so each round's answers count for all policies, by importance weights. For a user's model,
whose log-probabilities cost more than the test, only the newest rounds count. Nothing here certifies anything.
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
"""Most log-probabilities to compute: of every answer under every round's policy."""
MOST_OF_A_DRAW = 2
"""The same for a user's model, per draw of the test; a draw costs about as much as two."""

LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


def order_of_tests(config: Config, journal: JournalReader, backends: Backends) -> dict[str, Any]:
    """Returns `order`, rounds as they are to be tested, and by round `helpfulness` and `estimates`."""
    tested = tested_limits(config, {}, first_of_rounds(config))
    newest = None if config.data is None else MOST_OF_A_DRAW * config.certificate.draws
    pooled = PooledAnswers(journal, backends.trainer.log_probs, config.seed, newest)
    estimates: dict[int, dict[str, float]] = {}
    for step in journal.dual_steps():
        if step.round < journal.next_round:
            estimates.setdefault(step.round, {})[step.constraint] = step.estimate.value
    for limit in tested:
        if limit.people is not None:
            continue  # a model and people together: estimated from the round's own answers
        means = pooled.mean(*_costs(config, journal, backends, limit, pooled.answers))
        for number, mean in zip(pooled.rounds, means.tolist(), strict=True):
            estimates.setdefault(number, {})[limit.name] = mean
    reachable = certifiable(tested, config.certificate.draws, _spreads(journal))
    thresholds = {limit.name: limit.limit for limit in tested}
    shortfalls = {number: shortfall(estimate, reachable, thresholds) for number, estimate in estimates.items()}
    # no test looks at the drift: a policy that is too far from the reference by its own estimate is not put to one
    shortfalls |= dict.fromkeys(_drifted_rounds(config, journal) & set(shortfalls))
    helpful = _helpfulness(config, journal, backends.trainer.log_probs, pooled)
    order = in_order_of_test(shortfalls, {number: helpful.get(number, float(number) - 1e9) for number in shortfalls})
    return {"order": order, "helpfulness": helpful, "estimates": estimates}


class PooledAnswers:
    """Answers of finished rounds, evenly many of each, with their weights under every round's policy [K, n].

    `newest`: only of as many last rounds, at least two, as need at most this many log-probabilities, the reward
    policy's included; None: of all rounds.
    """

    def __init__(self, journal: JournalReader, log_probs: LogProbs, seed: int, newest: int | None = None) -> None:
        rounds = range(1, journal.next_round)
        # tests draw the recipe's own prompts: answers to users' are left out
        answers = {
            number: [answer for answer in journal.samples(number, "cost") if not answer.prompt.id.startswith(PREFIX)]
            for number in rounds
        }
        self.rounds = [number for number in rounds if answers[number]]
        if newest is not None:
            self.rounds = self.rounds[-_affordable([len(answers[number]) for number in self.rounds], newest) :]
        each = max(MOST_ASKED // max(len(self.rounds), 1) ** 2, 1)
        # an even draw: a round's answers may stand prompt by prompt
        samples = {
            number: _draw_answers(answers[number], each, generator(seed, ORDER, number)) for number in self.rounds
        }
        self.answers = [answer for number in self.rounds for answer in samples[number]]
        authors = [index for index, number in enumerate(self.rounds) for _ in samples[number]]
        self.log_probs = np.array(self._by_policy(journal, log_probs))
        self.weights = pooled_weights(self.log_probs, authors) if authors else np.zeros((0, 0))

    def _by_policy(self, journal: JournalReader, log_probs: LogProbs) -> list[Array]:
        pace, rows = LinePace(), []
        for number in self.rounds:
            rows.append(log_probs(journal.policies[number - 1], self.answers))
            if pace.due():
                message = "who is tested: log-probabilities of answers under the policy of round %d of %d"
                logger.info(message, number, self.rounds[-1])
        return rows

    def mean(self, values: Array, counts: Array | float = 1.0) -> Array:
        """Means under every policy of values [n] or [K, n]; an answer counts `counts` times [n]. -> [K]"""
        return pooled_means(self.weights * counts, values)


def _affordable(answers: Sequence[int], most: int) -> int:
    """How many of the last rounds, at least two, need at most `most` log-probabilities of their answers, under their
    policies and the reward policy. `answers`: of each round."""
    counts = [(rounds + 1) * sum(answers[-rounds:]) for rounds in range(1, len(answers) + 1)]
    return max(2, sum(count <= most for count in counts))


def _draw_answers(answers: Sequence[Response], most: int, draws: np.random.Generator) -> list[Response]:
    """All answers, or a number of them, drawn evenly."""
    if len(answers) <= most:
        return list(answers)
    return [answers[index] for index in draws.choice(len(answers), most, replace=False)]


def _costs(
    config: Config, journal: JournalReader, backends: Backends, tested: TestedLimit, answers: Sequence[Response]
) -> tuple[Array, Array]:
    """Every answer's cost under a limit as its round measured it, nan where nobody was asked, and its prompt's weight
    P_s / P_0. [n], [n]"""
    rounds = range(1, journal.next_round)
    entries = [entry for number in rounds for entry in drawn_answers(config, journal, number, tested.name)]
    numbers = {entry.answer: entry.worst for entry in entries}
    held_limit = next(limit for limit in backends.held_limits if limit.name == tested.name)
    counts = np.array([held_limit.factors[answer.prompt.token_ids] for answer in answers])
    values = tested.draws([numbers.get(answer.id) for answer in answers])
    return tested.low + values * (tested.high - tested.low), counts


def certifiable(tested: Sequence[TestedLimit], draws: int, spreads: Mapping[str, float]) -> dict[str, float]:
    """The costs that a test with this number of draws certifies four times in five, by limit. `spreads`: the standard
    deviations of measured answers, as far as they are known.

    The most helpful of many candidates that look just good enough is one that looks too good: at the cost that is
    certified every other time too many of them failed.
    """
    margins = ((limit, coming_test(limit, draws).margin(spreads.get(limit.name, math.inf))) for limit in tested)
    return {limit.name: limit.limit - margin for limit, margin in margins}


def _spreads(journal: JournalReader) -> dict[str, float]:
    """The largest standard deviation of a round's measured answers, by limit."""
    spreads: dict[str, float] = {}
    for step in journal.dual_steps():
        spreads[step.constraint] = max(step.estimate.spread, spreads.get(step.constraint, 0.0))
    return spreads


def _drifted_rounds(config: Config, journal: JournalReader) -> set[int]:
    """Rounds whose estimate is above the limit on the drift."""
    limits = {entry.limit.name: entry.limit.cost_limit for entry in config.stated if entry.limit.quantity.kind == "kl"}
    return {step.round for step in journal.dual_steps() if step.estimate.value > limits.get(step.constraint, np.inf)}


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
    last, reference = rewards[-1], next(entry.version for entry in journal.versions() if entry.stage == "reference")
    beta, temperature = config.beta, config.beta + _drift_multiplier(config, journal, last.round)
    # where a policy has no weight its log-probability may be -inf
    policy_log_probs = np.where(pooled.weights > 0, pooled.log_probs, 0.0)
    values = temperature * log_probs(last.version, pooled.answers) - beta * policy_log_probs
    if temperature != beta:
        values -= (temperature - beta) * log_probs(reference, pooled.answers)
    return dict(zip(pooled.rounds, pooled.mean(values).tolist(), strict=True))


def _drift_multiplier(config: Config, journal: JournalReader, round_: int) -> float:
    """mu in a round: the multiplier of the limit on the drift; 0 without one."""
    names = [entry.limit.name for entry in config.stated if entry.limit.quantity.kind == "kl"]
    steps = [step for step in journal.dual_steps() if step.round == round_ and step.constraint in names]
    return steps[0].multiplier_before if steps else 0.0
