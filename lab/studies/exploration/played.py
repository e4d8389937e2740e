"""One run of the study of exploration: O-PD-DPO's rounds on a world with known truth, with one arm choosing the pairs.

The explorer, the fits, the estimate and the dual step are those of runs; what is left out is what a run has around them
(journal, versions, delivery checks), which took nine tenths of its seconds. All arms of a world get the same offline
pairs, prompts, labels' randomness and estimates' randomness, so their gaps are compared in pairs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from lab.studies.exploration.worlds import Ground
from pddpo_lab.worlds.tabular.world import draw_answers
from pddpo_ray.exploration.explorer import Comparator, OptimisticExplorer
from pddpo_ray.records import Array, CandidateSet, CostEstimate, Pair, Prompt, Response
from pddpo_ray.theory.estimates.cost_estimate import (
    clipped_logit,
    estimate_from_shares,
    logit_noise,
    within_covariance,
)
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, ascend, limit_state
from pddpo_ray.theory.seeds import generator

Indices = NDArray[np.int64]
ROUNDS, PROMPTS, DAMPING, BASELINE_ANSWERS = 12, 24, 0.8, 8
"""The twin's recipe."""


@dataclass(frozen=True)
class Estimated:
    """Answers by which a round's mean cost is estimated, and the labels of each."""

    responses: int = 288
    labels_each: int = 32


ESTIMATED = Estimated()
"""The twin's recipe."""


@dataclass(frozen=True)
class Cell:
    """A corner of the diagram: how rare what matters is, how sharp the policy, and how much there is to choose from."""

    rare: float
    beta: float
    picks: int
    candidates: int


@dataclass(frozen=True)
class Arm:
    """How a round's pairs are chosen."""

    bonus: str
    comparator: Comparator = "baseline"
    keep: int | None = None
    """Pairs of a round that are labelled, `keep_random` of them drawn evenly; None: all."""
    keep_random: float = 1.0


ARMS: Mapping[str, Arm] = {
    "off": Arm("off"),
    "proposals": Arm("proposals"),
    "shipped": Arm("elliptical"),
    "exact": Arm("exact"),
    "thompson": Arm("thompson"),
    "simhash": Arm("simhash"),
    "max_info": Arm("elliptical", "max_info"),
    "greedy": Arm("greedy"),
}


@dataclass(frozen=True)
class Played:
    """What a run came to. `gaps` [K] of each round's policy; `violation` is g of the last."""

    gaps: list[float]
    violation: float
    multiplier: float
    optimum: float
    labels: int
    tokens: int
    """Sampled and scored: the estimates' answers and the candidates."""
    seconds: float
    """Of processor time."""


@dataclass(frozen=True)
class _Asked:
    """What a round asked: its estimate and its pairs; and the multiplier of its policy."""

    round: int
    multiplier: float
    estimate: CostEstimate
    pairs: tuple[Indices, Indices, Indices]


def played(
    ground: Ground,
    cell: Cell,
    arm: Arm,
    seed: int,
    *,
    rounds: int = ROUNDS,
    rounds_late: int = 0,
    estimated: Estimated = ESTIMATED,
) -> Played:
    """K rounds: fit, estimate, choose, label, move the multiplier. Labels come `rounds_late` rounds late, and the last
    round waits for all of them."""
    began, oracle = time.process_time(), ground.oracle
    rule = DampedNewton(rounds=rounds, beta=oracle.beta, cost_max=oracle.cost_max, damping=DAMPING)
    state = DualState((limit_state("cost", rho=oracle.rho, rule=rule, limit=oracle.threshold),))
    run = _Run(ground, cell, arm, seed, estimated)
    explorer = OptimisticExplorer(
        features=run.features,
        baseline=run.comparators(),
        beta=oracle.beta,
        multiplier=lambda: state.multiplier,
        seed=seed,
        picks=cell.picks,
        bonus=arm.bonus,
        comparator=arm.comparator,
    )
    run.label(*run.offline(), 0)
    gaps, policy = [], oracle.reference
    asked: deque[_Asked] = deque()
    for k in range(1, rounds + 1):
        policy = run.policy(state.multiplier)
        gaps.append(float(oracle.gap(policy)))
        estimate = run.estimate(policy, k)
        pairs = explorer.choose(run.candidates(policy, k))
        if arm.keep is not None:
            pairs = explorer.select(pairs, arm.keep, arm.keep_random)
        asked.append(_Asked(k, state.multiplier, estimate, _indices(pairs)))
        explorer.update([replace(pair, id=f"{k}/{pair.id}") for pair in pairs])
        while asked and (k == rounds or k - asked[0].round >= rounds_late):
            due = asked.popleft()
            run.label(*due.pairs, due.round)
            moved = state.multiplier - due.multiplier
            state, _ = ascend(state, replace(due.estimate, rounds_late=k - due.round, moved=moved))
    return Played(
        [round(gap, 6) for gap in gaps],
        round(oracle.g(policy), 6),
        round(state.multiplier, 6),
        round(oracle.optimum.multiplier, 6),
        run.labels,
        run.tokens,
        round(time.process_time() - began, 2),
    )


class _Run:
    """Labels so far, and the draws of one run."""

    def __init__(self, ground: Ground, cell: Cell, arm: Arm, seed: int, estimated: Estimated) -> None:
        self._ground, self._cell, self._arm, self._seed = ground, cell, arm, seed
        self._estimated = estimated
        self._prompts = [Prompt(f"p{x}", (x,), "") for x in range(len(ground.oracle.reference))]
        self._reward: list[tuple[int, int, int]] = []
        self._cost: list[tuple[int, int, int]] = []
        self.labels = self.tokens = 0

    def features(self, responses: Sequence[Response]) -> Array:
        width = self._ground.oracle.reference.shape[1]
        return self._ground.features[[one.prompt.token_ids[0] * width + one.token_ids[0] for one in responses]]

    def comparators(self) -> dict[str, list[Response]]:
        """The baseline's answers per prompt."""
        uniforms = generator(self._seed, "baseline").random((BASELINE_ANSWERS, len(self._prompts)))
        drawn = draw_answers(self._ground.baseline, uniforms).T
        return {
            prompt.id: [self._answer(x, int(y), f"baseline-{x}-{index}", 0) for index, y in enumerate(drawn[x])]
            for x, prompt in enumerate(self._prompts)
        }

    def offline(self) -> tuple[Indices, Indices, Indices]:
        """Pairs of two answers of the baseline; two equal ones make none. -> prompts, answers, answers"""
        draws, table = generator(self._seed, "offline"), self._ground.baseline
        prompts = draws.integers(0, len(table), 2 * self._ground.offline)
        first, second = (_drawn(table, prompts, draws) for _ in range(2))
        rows = np.flatnonzero(first != second)[: self._ground.offline]
        return prompts[rows], first[rows], second[rows]

    def label(self, prompts: Indices, first: Indices, second: Indices, k: int) -> None:
        """Every pair is compared for reward and for cost."""
        draws, oracle = generator(self._seed, k, "labels"), self._ground.oracle
        for known, scores in ((self._reward, oracle.reward), (self._cost, oracle.cost)):
            wins = draws.random(len(prompts)) < expit(scores[prompts, first] - scores[prompts, second])
            winners, losers = np.where(wins, first, second), np.where(wins, second, first)
            known += [(int(x), int(a), int(b)) for x, a, b in zip(prompts, winners, losers, strict=True)]
            self.labels += len(prompts)

    def policy(self, multiplier: float) -> Array:
        """Both stages, solved. -> [X, Y]"""
        oracle, learner = self._ground.oracle, self._ground.learner
        reward = learner.compared(self._reward, oracle.reward_max)
        return oracle.tilted(reward, learner.compared(self._cost, oracle.cost_max), multiplier)

    def estimate(self, policy: Array, k: int) -> CostEstimate:
        """The round's estimate of the mean cost."""
        draws, oracle = generator(self._seed, k, "cost"), self._ground.oracle
        responses, each = self._estimated.responses, self._estimated.labels_each
        prompts = np.resize(np.arange(len(policy)), responses)
        answers = _drawn(policy, prompts, draws)
        shares = draws.binomial(each, expit(oracle.cost[prompts, answers])) / each
        self.labels += responses * each
        self.tokens += int(self._ground.tokens[answers].sum())
        costs, noise = clipped_logit(shares, oracle.cost_max), logit_noise(shares, each, oracle.cost_max)
        within = within_covariance(costs[:, None], prompts.tolist(), noise[:, None])
        made = estimate_from_shares(shares, labels_each=each, cost_max=oracle.cost_max)
        return replace(made, within_variance=float(within[0, 0]))

    def candidates(self, policy: Array, k: int) -> list[CandidateSet]:
        """Per prompt: all answers (`exact`), answers of the policy (`off`), or half of the policy and half of the
        reference."""
        draws, reference = generator(self._seed, k, "candidates"), self._ground.oracle.reference
        count, everything = self._cell.candidates, np.arange(policy.shape[1])
        own = count if self._arm.bonus == "off" else count - count // 2
        with np.errstate(divide="ignore"):
            log_policy, log_reference = np.log(policy), np.log(reference)
        sets = []
        for index, x in enumerate(np.resize(np.arange(len(policy)), PROMPTS)):
            uniforms = draws.random(count)
            answers = np.concatenate(
                [draw_answers(policy[x][None], uniforms[:own]), draw_answers(reference[x][None], uniforms[own:])]
            )
            versions = np.where(np.arange(count) < own, k, 0)
            if self._arm.bonus == "exact":
                answers, versions = everything, np.full(len(everything), k)
            self.tokens += int(self._ground.tokens[answers].sum())
            responses = tuple(
                self._answer(int(x), int(y), f"{k}-{index}-{number}", int(version))
                for number, (y, version) in enumerate(zip(answers, versions, strict=True))
            )
            chances = (tuple(table[x, answers].tolist()) for table in (log_policy, log_reference))
            sets.append(CandidateSet(self._prompts[x], responses, *chances))
        return sets

    def _answer(self, prompt: int, answer: int, name: str, version: int) -> Response:
        return Response(name, self._prompts[prompt], (answer,), "", version, 0)


def _drawn(table: Array, prompts: Indices, draws: np.random.Generator) -> Indices:
    """One answer to each prompt. -> [n]"""
    return draw_answers(table[prompts], draws.random(len(prompts)))


def _indices(pairs: list[Pair]) -> tuple[Indices, Indices, Indices]:
    """Prompts, first and second answers of pairs."""
    rows = [(pair.prompt.token_ids[0], pair.first.token_ids[0], pair.second.token_ids[0]) for pair in pairs]
    prompts, first, second = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return prompts, first, second
