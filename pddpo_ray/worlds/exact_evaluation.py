"""Exact evaluation on worlds whose truth is known: f, g, gap, KL and mass outside the support, round by round.

Nothing here feeds back into a run: it reads versions that were published and writes numbers for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pddpo_ray.journal import Journal, VersionEntry
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.worlds.oracle import InfeasibleError, Mask, Optimum, Oracle, mixture


@dataclass(frozen=True)
class WorldView:
    """A world as evaluation sees it. `table` gives a version's probabilities of all outcomes [X, Y]."""

    oracle: Oracle
    table: Callable[[PolicyVersion], Array]
    covered: Mask | None = None
    """Outcomes [X, Y] that the offline pairs and the baseline can contain; None where they contain all."""
    rest: int | None = None
    """Column of everything outside the enumerated answers; None where the answers are all there is."""
    stages_of_costs: bool = True
    """Whether each limit has a cost stage of its own, in their order; not where one stage learns from values."""
    cell: Callable[[Response], tuple[int, int]] | None = None
    """Where an answer stands in the tables, for the exposure of those who label."""
    worth_of: Callable[[Response], tuple[float, float]] | None = None
    """True reward of an answer, and its chance of being labelled unsafe, for the answers that a report shows."""
    logits: Array | None = None
    """The world's own cost, the logits that "unsafe" is drawn from [X, Y]; None where the oracle's cost is them."""

    groups: Sequence[int] | None = None
    """Group of every prompt [X], where the world's prompts differ in what is good and harmful; None: they do not."""

    @property
    def cost_logits(self) -> Array:
        """What comparisons of harm teach. [X, Y]"""
        return self.oracle.cost if self.logits is None else self.logits


def covered_best(world: WorldView) -> Optimum | None:
    """Best policy on the covered answers; None where all are covered, or where none of them keeps the limit."""
    if world.covered is None:
        return None
    try:
        return world.oracle.covered_only(world.covered)
    except InfeasibleError:
        return None


class Evaluation:
    """Evaluates the policy of every finished round and the mixture of all so far.

    With several limits, numbers of a further one carry its name in front, `privacy/exact/g_policy`.
    """

    def __init__(self, world: WorldView, journal: Journal, store: ArtifactStore) -> None:
        self._world = world
        self._journal = journal
        self._store = store
        self._tables: dict[int, Array] = {}

    def close_round(self, round_: int) -> None:
        """Journals `exact/...` and `fit/slope_...` of a round; a closing of the journal."""
        stored = self._journal.once("evaluate", lambda: self._evaluate(round_))
        if round_ not in self._tables:
            self._tables[round_] = self._read(stored)

    def mixture(self) -> Array:
        """Table of the uniform mixture over the rounds that were evaluated. [X, Y]"""
        return mixture([self._tables[number] for number in sorted(self._all_tables())])

    def last(self) -> Array:
        """Table of the last round's policy. [X, Y]"""
        tables = self._all_tables()
        return tables[max(tables)]

    def _evaluate(self, round_: int) -> dict[str, Any]:
        entries = self._journal.versions()
        chain = [entry for entry in entries if entry.round == round_ and entry.stage == "cost"]
        table = self._world.table(chain[-1].version)
        self._tables[round_] = table
        self._journal.add_metrics(exact_metrics(self._world, table, self.mixture()))
        self._journal.add_metrics(self._slopes(chain, entries))
        self._journal.add_metrics(self._exposure(round_))
        path, sha256 = self._store.write_tensors(f"table-{chain[-1].version.name}", {"table": table})
        return {"path": path, "sha256": sha256, "worth": self._worth(round_, chain[-1].version)}

    def _worth(self, round_: int, policy: PolicyVersion) -> dict[str, tuple[float, float]]:
        """What the first answer to each prompt is worth, by its id; in round 1 also the reference's, of each draw."""
        if self._world.worth_of is None:
            return {}
        answers = [answer for answer in self._journal.samples(round_) if answer.policy_version == policy.number]
        if round_ == 1:
            answers += [answer for answer in self._journal.samples(0) if answer.policy_version == 0]
        drawn_as = {(answer.id.rsplit("-", 2)[0], answer.prompt.id): answer for answer in reversed(answers)}
        return {answer.id: self._world.worth_of(answer) for answer in drawn_as.values()}

    def _exposure(self, round_: int) -> dict[str, float]:
        """Mean of cost minus limit over the answers that exploring put before the labellers: optimism about cost asks
        for text that may be harmful (paper.md §16). The baseline's answers are left out."""
        cell, oracle = self._world.cell, self._world.oracle
        if cell is None or oracle.first_kl:
            return {}
        baseline = {answer.id for answer in self._journal.samples(purpose="baseline")}
        pairs = [entry.labelled.pair for entry in self._journal.pairs(round_)]
        shown = [answer for pair in pairs for answer in (pair.first, pair.second) if answer.id not in baseline]
        if not shown:
            return {}
        mean = float(np.mean([oracle.cost[cell(answer)] for answer in shown]))
        return {"explore/exposure": mean - oracle.threshold}

    def _slopes(self, chain: list[VersionEntry], entries: list[VersionEntry]) -> dict[str, float]:
        """Slope and correlation of implicit scores against the true ones; a cost's only where it was fitted.

        `chain` are the round's cost fits, one per limit, each on the one before.
        """
        oracle, numbers = self._world.oracle, {entry.version.number: entry for entry in entries}
        base = numbers[chain[0].base] if chain[0].base is not None else None
        if base is None or base.stage != "reward" or not self._world.stages_of_costs:
            return {}
        before = self._world.table(base.version)
        reward = implicit_score(before, oracle.reference, oracle.beta)
        slopes = _slope_metrics("reward", *slope_and_correlation(reward, oracle.reward, self._world.rest))
        costs = [("", self._world.cost_logits), *((f"{limit.name}/", limit.cost) for limit in oracle.further)]
        for link, (prefix, truth) in zip(chain, costs, strict=False):
            after = self._world.table(link.version)
            if link.multiplier and link.version.sha256 != base.version.sha256:
                cost = implicit_score(before, after, cost_temperature(oracle.beta, link.multiplier))
                slopes |= _slope_metrics("cost", *slope_and_correlation(cost, truth, self._world.rest), prefix)
            base, before = link, after
        return slopes

    def _all_tables(self) -> dict[int, Array]:
        """Tables of all evaluated rounds; those of an earlier process come from the store."""
        for entry in self._journal.phases(like="evaluate"):
            if entry.round not in self._tables:
                self._tables[entry.round] = self._read(entry.payload)
        return self._tables

    def _read(self, stored: Mapping[str, Any]) -> Array:
        return self._store.read_tensors(stored["path"], stored["sha256"])["table"]


def exact_metrics(world: WorldView, policy: Array, mixed: Array) -> dict[str, float]:
    """f, g and gap of a policy and of the mixture; KL and mass outside the enumerated answers of the policy."""
    oracle = world.oracle
    further = {
        f"{limit.name}/exact/g_{name}": value
        for name, table in (("policy", policy), ("mixture", mixed))
        for limit, value in zip(oracle.further, oracle.further_g(table), strict=True)
    }
    return further | {
        "exact/f_policy": oracle.f(policy),
        "exact/g_policy": oracle.g(policy),
        "exact/f_mixture": oracle.f(mixed),
        "exact/g_mixture": oracle.g(mixed),
        "exact/gap_policy": oracle.gap(policy),
        "exact/gap_mixture": oracle.gap(mixed),
        "exact/kl_policy": oracle.kl(policy),
        "exact/off_support": off_support(world, policy),
    }


def off_support(world: WorldView, policy: Array) -> float:
    """Probability of everything outside the enumerated answers."""
    return 0.0 if world.rest is None else float(world.oracle.prior @ policy[:, world.rest])


def implicit_score(numerator: Array, denominator: Array, temperature: float) -> Array:
    """temperature * log(numerator / denominator), nan where either is 0. [X, Y], [X, Y] -> [X, Y]"""
    mask = (numerator > 0) & (denominator > 0)
    ratio = np.log(np.where(mask, numerator, 1.0)) - np.log(np.where(mask, denominator, 1.0))
    return np.where(mask, temperature * ratio, np.nan)


def slope_and_correlation(score: Array, truth: Array, left_out: int | None = None) -> tuple[float, float]:
    """Least-squares slope and correlation of scores against the truth within prompts, every answer counted alike.

    Scores are defined up to a constant per prompt, so both are centred on their prompt's mean. [X, Y], [X, Y]
    """
    mask = np.isfinite(score)
    if left_out is not None:
        mask[:, left_out] = False
    counts = np.maximum(mask.sum(axis=1, keepdims=True), 1)
    score, truth = np.where(mask, score, 0.0), np.where(mask, truth, 0.0)
    score = np.where(mask, score - score.sum(axis=1, keepdims=True) / counts, 0.0)
    truth = np.where(mask, truth - truth.sum(axis=1, keepdims=True) / counts, 0.0)
    together, spread, score_spread = float((score * truth).sum()), float((truth**2).sum()), float((score**2).sum())
    if spread == 0 or score_spread == 0:
        return float("nan"), float("nan")
    return together / spread, together / float(np.sqrt(spread * score_spread))


def _slope_metrics(stage: str, slope: float, correlation: float, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}fit/slope_{stage}": slope, f"{prefix}fit/correlation_{stage}": correlation}
