"""A rollout engine that draws from a table of log-probabilities, whatever such a table is made from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pddpo_lab.worlds.tabular.world import draw_answers
from pddpo_ray.contracts import Count, Draw
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.theory.seeds import counts


class TableEngine(ABC):
    """Satisfies contracts.RolloutEngine: draws answers from the table of the version that was delivered last."""

    def __init__(self, store: ArtifactStore, name: str) -> None:
        self.name = name
        self._store = store
        self._version = -1
        self._log_probs: Array | None = None

    @abstractmethod
    def table_of(self, tensors: Mapping[str, NDArray[Any]]) -> Array:
        """log pi of every cell, from a version's tensors. [X, Y]"""

    @abstractmethod
    def row(self, prompt: tuple[int, ...]) -> int:
        """Row of a prompt, by its token ids."""

    @abstractmethod
    def column(self, answer: tuple[int, ...]) -> int:
        """Column of an answer, by its token ids."""

    @abstractmethod
    def answer(self, column: int) -> tuple[tuple[int, ...], str]:
        """(token ids, text) of a column."""

    def chances(self, log_probs: Array, decoding: Decoding) -> Array:
        """Chances of one prompt's answers as they are drawn. [Y] -> [Y]"""
        return decoded(log_probs, decoding)

    def deliver(self, policy: PolicyVersion) -> Delivery:
        """Takes over a version; the hash is taken over the tensors as read."""
        began = time.perf_counter()
        tensors = self._store.read_tensors(policy.path, policy.sha256)
        self._log_probs, self._version = self.table_of(tensors), policy.number
        digest = tensors_sha256(tensors.items())
        return Delivery(self.name, policy.number, digest, len(tensors), time.perf_counter() - began)

    @property
    def version(self) -> int:
        """Number of the delivered version; -1 before the first."""
        return self._version

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        """n draws per prompt; log-probabilities are those of the table itself (temperature 1, no truncation)."""
        table = self._table()
        draws: list[list[Draw]] = []
        for prompt, seed, count in zip(prompts, seeds, counts(n, len(prompts)), strict=True):
            row = table[self.row(prompt.token_ids)]
            uniforms = np.random.default_rng(seed).random((count, 1))
            answers = draw_answers(self.chances(row, decoding)[None], uniforms)[:, 0]
            draws.append([(*self.answer(int(y)), float(row[y])) for y in answers])
        return draws

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        """log-probability of each answer under the loaded table. -> [n]"""
        table = self._table()
        asked = zip(prompts, answers, strict=True)
        return np.array([table[self.row(prompt.token_ids), self.column(answer)] for prompt, answer in asked])

    def close(self) -> None:
        self._log_probs = None

    def _table(self) -> Array:
        if self._log_probs is None:
            raise RunError(f"engine {self.name}: no version was delivered; publish a policy before sampling")
        return self._log_probs


def decoded(log_probs: Array, decoding: Decoding) -> Array:
    """Probabilities along the last axis after temperature and nucleus truncation. [..., Y] -> [..., Y]"""
    logits = log_probs / decoding.temperature
    chances = np.exp(logits - logsumexp(logits, axis=-1, keepdims=True))
    if decoding.top_p < 1.0:
        order = np.argsort(-chances, axis=-1, kind="stable")
        ordered = np.take_along_axis(chances, order, axis=-1)
        beyond = np.cumsum(ordered, axis=-1) - ordered >= decoding.top_p
        np.put_along_axis(chances, order, np.where(beyond, 0.0, ordered), axis=-1)
    return np.asarray(chances / chances.sum(axis=-1, keepdims=True))
