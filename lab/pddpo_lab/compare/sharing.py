"""What the runs of one seed have in common is done once: the reward fit, the offline answers, scores of texts.

Commands are self-contained (start weights, rows, settings, seed), so equal commands have equal results, whichever
method gives them. The memory is a file beside the seed's artifacts: a suite given again finds it.
Budgets are not shared: a run that reads a fit back is charged its steps and seconds like the run that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from pddpo_ray.contracts import (
    Count,
    Draw,
    FitCommand,
    FitResult,
    RolloutEngine,
    TrainerBackend,
    Update,
    perform,
)
from pddpo_ray.records import Array, Decoding, Delivery, PolicyVersion, Prompt, Response
from pddpo_ray.storage.recall import Memory
from pddpo_ray.theory.seeds import counts

Draws = list[list[Draw]]
Text = tuple[tuple[int, ...], tuple[int, ...]]


class SharedTrainer:
    """Satisfies contracts.TrainerBackend: equal fits are made once, equal texts are scored once."""

    def __init__(self, backend: TrainerBackend, memory: Memory) -> None:
        self._backend = backend
        self._memory = memory
        self._scores: dict[tuple[str, Text], float] = {}
        self._features: dict[Text, Array] = {}

    def execute(self, command: FitCommand) -> FitResult:
        def fit() -> dict[str, Any]:
            made = self._backend.execute(command)
            return {
                "sha256": made.version.sha256,
                "path": made.version.path,
                "metrics": dict(made.metrics),
                "workers": list(made.workers),
            }

        kept = self._memory.recall(identity_of(command), fit)
        version = PolicyVersion(command.sequence, command.result, kept["sha256"], kept["path"])
        return FitResult(version, kept["metrics"], tuple(kept["workers"]))

    def perform(self, update: Update) -> Any:
        """Made each time: no two runs have an update of PPO-Lagrangian in common."""
        return perform(self._backend, update)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        texts = [_text(response) for response in responses]
        new = {text: response for text, response in zip(texts, responses, strict=True)}
        missing = {text: response for text, response in new.items() if (policy.sha256, text) not in self._scores}
        if missing:
            values = self._backend.log_probs(policy, list(missing.values()))
            self._scores |= {(policy.sha256, text): float(value) for text, value in zip(missing, values, strict=True)}
        return np.array([self._scores[policy.sha256, text] for text in texts], dtype=np.float64)

    def features(self, responses: Sequence[Response]) -> Array:
        texts = [_text(response) for response in responses]
        missing = {
            text: response for text, response in zip(texts, responses, strict=True) if text not in self._features
        }
        if missing:
            rows = self._backend.features(list(missing.values()))
            self._features |= dict(zip(missing, rows, strict=True))
        return np.stack([self._features[text] for text in texts])

    def forget(self) -> None:
        """Drops scores of single texts between two runs; features of the reference stay."""
        self._scores.clear()

    def close(self) -> None:
        """The backend serves the seed's next run; its maker closes it."""


class SharedEngine:
    """Satisfies contracts.RolloutEngine: draws from the reference are kept, all others are made by the engine."""

    def __init__(self, engine: RolloutEngine, memory: Memory, reference: PolicyVersion) -> None:
        self.name = engine.name
        self._engine = engine
        self._memory = memory
        self._reference = reference
        self._holds = ""

    def deliver(self, policy: PolicyVersion) -> Delivery:
        self._holds = ""
        delivery = self._engine.deliver(policy)
        self._holds = policy.sha256
        return delivery

    @property
    def version(self) -> int:
        return self._engine.version

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> Draws:
        def draw() -> Draws:
            return self._engine.sample(prompts, seeds, n, decoding)

        if self._holds != self._reference.sha256:
            return draw()
        what = [
            self._holds,
            [prompt.token_ids for prompt in prompts],
            list(seeds),
            counts(n, len(prompts)),
            asdict(decoding),
        ]
        kept = self._memory.recall(what, draw)
        return [[(tuple(ids), text, value) for ids, text, value in answers] for answers in kept]

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        return self._engine.score(prompts, answers)

    def close(self) -> None:
        """The engine serves the seed's next run; its maker closes it."""


def identity_of(command: FitCommand) -> dict[str, Any]:
    """All that decides the weights of a fit. Versions stand for their content; numbers and names do not count."""
    named = {"sequence", "result"}
    return {field.name: _content(getattr(command, field.name)) for field in fields(command) if field.name not in named}


def _content(value: Any) -> Any:
    if isinstance(value, PolicyVersion):
        return value.sha256
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _content(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, list | tuple):
        return [_content(item) for item in value]
    return value


def _text(response: Response) -> Text:
    return response.prompt.token_ids, response.token_ids
