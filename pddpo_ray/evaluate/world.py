"""Runs on worlds: exact values of the reference, of every round's policy and of the mixture. Nothing is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from pddpo_ray.backends.in_process import backends_of_world
from pddpo_ray.config import Config, TextWorldConfig
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader, VersionEntry
from pddpo_ray.records import Array
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.worlds.exact_evaluation import WorldView, covered_best, implicit_score, off_support
from pddpo_ray.worlds.oracle import Oracle, mixture


def evaluate_run(config: Config, run: Path, journal: JournalReader) -> dict[str, dict[str, float]]:
    """Exact values by policy: reference, policy-1 ... policy-K, mixture, optimum, and covered_only where it exists.

    Raises UserError for a run without a world.
    """
    view = world_view(config, ArtifactStore(run / ARTIFACTS))
    entries = {entry.version.number: entry for entry in journal.versions()}
    values = {"reference": exact_values(view, view.oracle.reference)}
    tables = []
    for version in journal.policies:
        table = view.table(version)
        tables.append(table)
        accuracy = _accuracies(view, table, entries[version.number], entries)
        values[version.name] = exact_values(view, table) | accuracy
    if tables:
        values["mixture"] = exact_values(view, mixture(tables))
    covered = covered_best(view)
    if covered is not None:
        values["covered_only"] = exact_values(view, covered.policy)
    return values | {"optimum": exact_values(view, view.oracle.optimum.policy)}


def world_view(config: Config, store: ArtifactStore) -> WorldView:
    """The recipe's world as evaluation sees it."""
    if config.policies == "tables":
        view = backends_of_world(config, store).world
        if view is not None:
            return view
    if isinstance(config.world, TextWorldConfig):
        from pddpo_ray.backends.in_process_text import text_view
        from pddpo_ray.worlds.text.prepared_world import prepare_text_world

        return text_view(config, prepare_text_world(config), store)
    raise UserError("this run has no world whose truth is known: name its policies and a set (--set) instead")


def exact_values(view: WorldView, table: Array) -> dict[str, float]:
    """f, g, gap and the other exact values of a policy's table [X, Y]."""
    oracle = view.oracle
    return {
        "f": oracle.f(table),
        "g": oracle.g(table),
        "gap": oracle.gap(table),
        "helpfulness": float(oracle.expectations(table, oracle.reward)),
        "harmlessness": -float(oracle.expectations(table, view.cost_logits)),
        "unsafe_rate": float(oracle.expectations(table, expit(view.cost_logits))),
        "kl": oracle.kl(table),
        "off_support": off_support(view, table),
    }


def _accuracies(
    view: WorldView, table: Array, policy: VersionEntry, entries: Mapping[int, VersionEntry]
) -> dict[str, float]:
    """How often the implicit reward and cost agree with a fresh label of two answers of the reference."""
    oracle = view.oracle
    base = None if policy.base is None else entries[policy.base]
    if base is None or base.stage != "reward":
        return {}
    base_table = view.table(base.version)
    reward = implicit_score(base_table, oracle.reference, 1.0)
    accuracies = {"pair_accuracy_reward": pair_accuracy(reward, oracle.reward, oracle)}
    if policy.version.sha256 != base.version.sha256:
        cost = implicit_score(base_table, table, 1.0)
        accuracies["pair_accuracy_cost"] = pair_accuracy(cost, view.cost_logits, oracle)
    return accuracies


def pair_accuracy(score: Array, truth: Array, oracle: Oracle) -> float:
    """Expected agreement of a score with Bradley-Terry labels of two different answers of the reference. [X, Y], [X, Y]

    It counts infinitely many held-out pairs: a score equal to the truth reaches what labels allow, guessing 1/2.
    Answers without a score (nan) tie.
    """
    total, weight = 0.0, 0.0
    for x, prior in enumerate(oracle.prior):
        pairs = np.outer(oracle.reference[x], oracle.reference[x])
        np.fill_diagonal(pairs, 0.0)
        right = expit(truth[x][:, None] - truth[x][None, :])
        with np.errstate(invalid="ignore"):
            first = agreement(score[x][:, None] - score[x][None, :])
        total += float(prior * np.sum(pairs * (first * right + (1 - first) * (1 - right))))
        weight += float(prior * pairs.sum())
    return total / weight


def summary(values: Mapping[str, Mapping[str, float]]) -> list[list[Any]]:
    """Lines for a terminal: reference, the last policy, the mixture and the best policies."""
    policies = [name for name in values if name.startswith("policy-")]
    shown = ["reference", *policies[-1:], "mixture", "covered_only", "optimum"]
    columns = list(values["reference"])
    lines: list[list[Any]] = [["", *columns]]
    return lines + [[name, *[values[name].get(key) for key in columns]] for name in shown if name in values]
