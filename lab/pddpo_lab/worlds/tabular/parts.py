"""Trainer backend and rollout engine of a tabular world: tables in place of a model, the same parts around them.

A version is a folder with `model.safetensors` holding `log_probs` [X, Y] and the fitted `scores` [X, Y], float64.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import logsumexp

from pddpo_lab.margins import score_margin
from pddpo_lab.mle import bounded_logistic, box_mle, negative_log_likelihood, optimistic_mle, win_counts
from pddpo_lab.value_scores import table_scores
from pddpo_lab.worlds.tabular.engine import TableEngine
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.contracts import FitCommand, FitResult
from pddpo_ray.records import Array, Objective, PairRow, PolicyVersion, Response
from pddpo_ray.storage.artifacts import ArtifactStore


class TabularTrainer:
    """Satisfies contracts.TrainerBackend: the exact minimiser of a stage's loss over the theory's policy class.

    Scores are the box-constrained maximum likelihood of the rows, whatever the start; the policy is the base's table
    times exp(+score / temperature) in the reward stage and exp(-score / temperature) in the cost stage. Margins are
    part of their rows' logits. Where the objective gives the bonus of every answer, the class is the optimistic one
    (paper.md §4): the bonus is added to the reward or taken off the cost, also of answers in no row.
    """

    def __init__(self, world: TabularWorld, store: ArtifactStore) -> None:
        self.world, self.store = world, store
        self._tables: dict[str, Array] = {}
        with np.errstate(divide="ignore"):
            table = np.log(world.oracle.reference)
        self.reference = self.keep(0, "reference", table, np.zeros_like(table))

    def execute(self, command: FitCommand) -> FitResult:
        """Fits and stores one version. The same command gives the same tables."""
        began = time.perf_counter()
        objective = command.objective
        wins = wins_of(command.rows, self.world.shape, costs=objective.stage == "cost")
        bound = self.world.oracle.reward_max if objective.stage == "reward" else self.world.oracle.cost_max
        bound = bound if objective.score_max is None else objective.score_max
        bonus = np.reshape(objective.answer_bonus or np.zeros(self.world.shape), self.world.shape)
        if objective.values:
            scores = value_scores(command.rows, objective, self.world.shape)
        elif objective.answer_bonus:
            scores = box_mle(wins, bound, offsets=offsets_of(command.rows, objective, bonus))
        elif objective.margins:
            scores = scores_with_margins(command.rows, objective, self.world.shape, bound)
        elif command.optimism is not None:
            scores = optimistic_mle(
                wins,
                bound,
                log_base=self.table(objective.base),
                temperature=objective.temperature,
                answers=shares_of(command.optimism.answers, self.world.shape),
                alpha=command.optimism.alpha,
            )
        else:
            scores = box_mle(wins, bound)
        # least squares of measured differences gives a cost, which minus the reward is too
        sign = 1.0 if objective.stage == "reward" and not objective.values else -1.0
        logits = self.table(objective.base) + (sign * scores + bonus) / objective.temperature
        log_probs = logits - logsumexp(logits, axis=1, keepdims=True)
        version = self.keep(command.sequence, command.result, log_probs, scores)
        likelihood = negative_log_likelihood(scores, wins, ridge=0.0).sum() / max(wins.sum(), 1.0)
        metrics = {
            "fit/loss": squared_residual(command.rows, objective, scores) if objective.values else float(likelihood),
            "fit/seconds": time.perf_counter() - began,
            "fit/pairs": float(len(command.rows)),
        }
        return FitResult(version, metrics, (os.getpid(),))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        """log pi(y|x) from the table. -> [n]"""
        table = self.table(policy)
        return np.array([table[self.world.cell(response)] for response in responses])

    def features(self, responses: Sequence[Response]) -> Array:
        """One-hot over prompts x answers. -> [n, X Y]"""
        cells = [np.ravel_multi_index(self.world.cell(response), self.world.shape) for response in responses]
        return np.eye(self.world.shape[0] * self.world.shape[1])[cells]

    def table(self, policy: PolicyVersion) -> Array:
        """log pi as a table. [X, Y]"""
        if policy.sha256 not in self._tables:
            self._tables[policy.sha256] = self.store.read_tensors(policy.path, policy.sha256)["log_probs"]
        return self._tables[policy.sha256]

    def close(self) -> None:
        self._tables.clear()

    def keep(self, number: int, name: str, log_probs: Array, scores: Array) -> PolicyVersion:
        path, sha256 = self.store.write_tensors(name, {"log_probs": log_probs, "scores": scores})
        self._tables[sha256] = log_probs
        return PolicyVersion(number, name, sha256, path)


class TabularEngine(TableEngine):
    """Draws from the table that a version is."""

    def __init__(self, world: TabularWorld, store: ArtifactStore, name: str = "tabular-0") -> None:
        super().__init__(store, name)
        self._world = world

    def table_of(self, tensors: Mapping[str, Array]) -> Array:
        return tensors["log_probs"]

    def row(self, prompt: tuple[int, ...]) -> int:
        return prompt[0]

    def column(self, answer: tuple[int, ...]) -> int:
        return answer[0]

    def answer(self, column: int) -> tuple[tuple[int, ...], str]:
        return (column,), f"answer {column}"


def wins_of(rows: Sequence[PairRow], shape: tuple[int, int], *, costs: bool) -> Array:
    """Weighted win counts of training rows. A cost is won by the costlier answer, which is `rejected`. -> [X, Y, Y]"""
    prompts = np.array([row.prompt[0] for row in rows])
    chosen = np.array([row.chosen[0] for row in rows])
    rejected = np.array([row.rejected[0] for row in rows])
    winners, losers = (rejected, chosen) if costs else (chosen, rejected)
    weights = np.array([row.weight for row in rows])
    return win_counts(prompts, winners, losers, shape=shape, weights=weights)


def shares_of(answers: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, int]) -> Array:
    """Share of each cell among (prompt, answer) texts. -> [X, Y], sums to 1"""
    counts = np.zeros(shape)
    for prompt, answer in answers:
        counts[prompt[0], answer[0]] += 1.0
    return counts / counts.sum()


def scores_with_margins(rows: Sequence[PairRow], objective: Objective, shape: tuple[int, int], bound: float) -> Array:
    """Box maximum likelihood where every row has a margin of its own, part of its logit. -> [X, Y]"""
    table = np.zeros((len(rows), *shape))
    sign = 1.0 if objective.stage == "reward" else -1.0
    for index, row in enumerate(rows):
        table[index, row.prompt[0], row.chosen[0]] += sign
        table[index, row.prompt[0], row.rejected[0]] -= sign
    weights = np.array([row.weight for row in rows])
    margins = np.array(objective.margins)
    return bounded_logistic(table.reshape(len(rows), -1), margins=margins, weights=weights, bound=bound).reshape(shape)


def value_scores(rows: Sequence[PairRow], objective: Objective, shape: tuple[int, int]) -> Array:
    """Least squares of the rows' measured differences: sum_i lambda_i C_i / s, up to constants of prompts. -> [X, Y]"""
    return table_scores(
        [row.prompt[0] for row in rows],
        [row.chosen[0] for row in rows],
        [row.rejected[0] for row in rows],
        objective.margins,
        shape=shape,
        weights=[row.weight for row in rows],
    )


def squared_residual(rows: Sequence[PairRow], objective: Objective, scores: Array) -> float:
    """Weighted mean of the rows' squared distances from their measured differences."""
    implied = [scores[row.prompt[0], row.chosen[0]] - scores[row.prompt[0], row.rejected[0]] for row in rows]
    weights = [row.weight for row in rows]
    return float(np.average((np.array(implied) - np.array(objective.margins)) ** 2, weights=weights))


def offsets_of(rows: Sequence[PairRow], objective: Objective, bonus: Array) -> Array:
    """What the rows' margins take off s(winner) - s(loser) in the optimistic class, as `box_mle` asks. -> [X, Y, Y]

    Rows of the same two answers have the same margin, because a bonus belongs to answers.
    """
    offsets = np.zeros((*bonus.shape, bonus.shape[1]))
    for row, margin in zip(rows, objective.margins, strict=True):
        x, chosen, rejected = row.prompt[0], row.chosen[0], row.rejected[0]
        winner, loser = (chosen, rejected) if objective.stage == "reward" else (rejected, chosen)
        offsets[x, winner, loser] = -score_margin(margin, float(bonus[x, chosen]), float(bonus[x, rejected]))
    return offsets
