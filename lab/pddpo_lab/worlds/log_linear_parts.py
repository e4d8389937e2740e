"""Trainer backend and rollout engine of log-linear policies: weights of features in place of a network's.

A version is a folder with `model.safetensors` holding `theta` [p], float64; the reference's holds `log_reference` too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pddpo_lab.mle import unbounded_logistic
from pddpo_lab.value_scores import VALUE_RIDGE, least_squares
from pddpo_lab.worlds.log_linear import THETA, Indices, LogLinear, given_the_grammar, phrase_blocks, slot_sizes
from pddpo_lab.worlds.tabular.engine import TableEngine, decoded
from pddpo_ray.config.sections.world import LogLinearConfig
from pddpo_ray.contracts import FitCommand, FitResult, RolloutEngine, TrainerBackend
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Decoding, PairRow, PolicyVersion, Response
from pddpo_ray.registry import Extension
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.worlds.text.grammar import Grammar


class Sentences:
    """Where a grammar's prompts and answers stand in a table, by their token ids."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._rows = {ids: index for index, ids in enumerate(grammar.prompt_ids)}

    def row(self, prompt: tuple[int, ...]) -> int:
        return self._rows[prompt]

    def column(self, answer: tuple[int, ...]) -> int:
        """Raises RunError for text outside the grammar, which has no features."""
        column = self.grammar.answer_index.get(answer)
        if column is None:
            raise RunError("a log-linear policy knows the answers of its grammar alone; this text is none of them")
        return column

    def cells(self, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[Indices, Indices]:
        """Rows and columns of (prompt, answer)s. -> [n], [n]"""
        rows = np.array([self.row(prompt) for prompt, _ in texts], dtype=np.int64)
        return rows, np.array([self.column(answer) for _, answer in texts], dtype=np.int64)


class LogLinearTrainer:
    """Satisfies contracts.TrainerBackend: the most probable weights under a stage's loss and a normal prior.

    The loss is that of every stage, softplus(-(temperature (h(chosen) - h(rejected)) + margin)) with
    h = (theta - theta of the base) . phi, so temperature * (theta - theta of the base) are the weights of a
    Bradley-Terry score: `ridge` is 1 / variance of their prior. It is convex, so the start of a fit does not matter.
    The stage on values has the square of the same logit as its loss, and its own share of that ridge.
    """

    def __init__(self, policies: LogLinear, sentences: Sentences, store: ArtifactStore, ridge: float) -> None:
        self._policies, self._sentences, self._store, self._ridge = policies, sentences, store, ridge
        self._tables: dict[str, Array] = {}
        nothing = {THETA: np.zeros(policies.size), "log_reference": policies.log_reference}
        path, sha256 = store.write_tensors("reference", nothing)
        self.reference = PolicyVersion(0, "reference", sha256, path)

    def execute(self, command: FitCommand) -> FitResult:
        """Fits and stores one version. The same command gives the same weights."""
        began = time.perf_counter()
        objective = command.objective
        rows = self._differences(command.rows)
        weights = np.array([row.weight for row in command.rows])
        margins = np.array(objective.margins) if objective.margins else np.zeros(len(rows))
        if objective.values:
            score = least_squares(rows, -margins, weights=weights, ridge=VALUE_RIDGE * self._ridge)
        else:
            score = unbounded_logistic(rows, ridge=self._ridge, margins=margins, weights=weights)
        theta = self.theta(objective.base) + score / objective.temperature
        path, sha256 = self._store.write_tensors(command.result, {THETA: theta})
        logits = rows @ score + margins
        losses = logits**2 if objective.values else np.logaddexp(0.0, -logits)
        metrics = {
            "fit/loss": float(weights @ losses / weights.sum()),
            "fit/seconds": time.perf_counter() - began,
            "fit/pairs": float(len(rows)),
        }
        return FitResult(PolicyVersion(command.sequence, command.result, sha256, path), metrics, (os.getpid(),))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        """log pi(y|x). -> [n]"""
        if policy.sha256 not in self._tables:
            for old in list(self._tables)[:-2]:  # a round asks for the reference and two policies
                del self._tables[old]
            self._tables[policy.sha256] = self._policies.log_probs(self.theta(policy))
        return np.asarray(self._tables[policy.sha256][self._cells(responses)])

    def features(self, responses: Sequence[Response]) -> Array:
        """phi, on the scale of its prior. -> [n, p]"""
        return self._policies.features(*self._cells(responses))

    def theta(self, policy: PolicyVersion) -> Array:
        """Weights of a version. [p]"""
        return self._store.read_tensors(policy.path, policy.sha256)[THETA]

    def close(self) -> None:
        self._tables.clear()

    def _differences(self, rows: Sequence[PairRow]) -> Array:
        """phi(chosen) - phi(rejected). -> [n, p]"""
        chosen, rejected = (
            self._policies.features(*self._sentences.cells([(row.prompt, answer) for row, answer in texts]))
            for texts in ([(row, row.chosen) for row in rows], [(row, row.rejected) for row in rows])
        )
        return np.asarray(chosen - rejected)

    def _cells(self, responses: Sequence[Response]) -> tuple[Indices, Indices]:
        return self._sentences.cells([(response.prompt.token_ids, response.token_ids) for response in responses])


class LogLinearEngine(TableEngine):
    """Draws from exact sums over a grammar's answers. Decoding acts phrase by phrase, as a network's acts word by word:
    a nucleus leaves out a phrase that is rare in its place, however common the whole answer is among all."""

    def __init__(self, policies: LogLinear, sentences: Sentences, store: ArtifactStore, name: str) -> None:
        super().__init__(store, name)
        self._policies, self._sentences = policies, sentences
        self._sizes = slot_sizes(sentences.grammar)

    def table_of(self, tensors: Mapping[str, NDArray[Any]]) -> Array:
        return self._policies.log_probs(tensors[THETA])

    def row(self, prompt: tuple[int, ...]) -> int:
        return self._sentences.row(prompt)

    def column(self, answer: tuple[int, ...]) -> int:
        return self._sentences.column(answer)

    def answer(self, column: int) -> tuple[tuple[int, ...], str]:
        return self._sentences.grammar.answer_ids[column], self._sentences.grammar.answer_texts[column]

    def chances(self, log_probs: Array, decoding: Decoding) -> Array:
        return decoded_by_slot(log_probs, self._sizes, decoding)


def decoded_by_slot(log_probs: Array, sizes: Sequence[int], decoding: Decoding) -> Array:
    """Chances of one prompt's answers when each phrase is decoded given those before it. [Y] -> [Y]

    `sizes` are the phrases per slot; answers count the last slot fastest.
    """
    if decoding.temperature == 1.0 and decoding.top_p == 1.0:
        return decoded(log_probs, decoding)
    tree = log_probs.reshape(tuple(sizes))
    chances = np.ones(())
    for depth in range(1, len(sizes) + 1):
        later = tuple(range(depth, len(sizes)))
        beginnings = logsumexp(tree, axis=later) if later else tree
        # `decoded` normalises, so that a beginning's log-probability is as good as the conditional one
        chances = chances[..., None] * decoded(beginnings, decoding)
    return np.asarray(chances.ravel())


class LogLinearLearner:
    """What a text world learns with `world.learner=loglinear`. Satisfies worlds.text.prepared_world.Learner."""

    def __init__(self, log_probs: Array, grammar: Grammar, prior: LogLinearConfig) -> None:
        self._policies = LogLinear(given_the_grammar(log_probs), phrase_blocks(grammar, **prior.model_dump()))
        self._sentences = Sentences(grammar)

    def table(self, store: ArtifactStore, version: PolicyVersion) -> Array:
        """Probabilities of all outcomes under a stored version; nothing lies outside the grammar. -> [X, Y + 1]"""
        inside = np.exp(self._policies.log_probs(store.read_tensors(version.path, version.sha256)[THETA]))
        return np.concatenate([inside, np.zeros((len(inside), 1))], axis=1)

    def backends(self, store: ArtifactStore, *, ridge: float) -> tuple[PolicyVersion, TrainerBackend, RolloutEngine]:
        """The reference in the store, the exact trainer and the engine."""
        trainer = LogLinearTrainer(self._policies, self._sentences, store, ridge=ridge)
        engine = LogLinearEngine(self._policies, self._sentences, store, "log-linear-0")
        return trainer.reference, trainer, engine


LOGLINEAR = Extension("pddpo_lab.worlds.log_linear_parts:LogLinearLearner")
