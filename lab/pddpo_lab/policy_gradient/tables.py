"""PPO-Lagrangian on tables: a policy of free logits, and critics of one value per prompt or groups of answers, by the
same loop as a model's.

A table is a language model whose answers have one token, so `update.run_ppo` needs nothing else to know.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import Critics, PpoCommand, PpoResult, ScoredAnswer, StoredWeights
from pddpo_lab.policy_gradient.update import Actors, Learner, ModuleEngine, run_ppo
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_ray.records import Array
from pddpo_ray.training.batches import TextBatch


class TablePolicy(nn.Module):
    """log pi from a table of logits [X, Y]."""

    def __init__(self, logits: Array) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.from_numpy(logits.copy()))

    def forward(self, batch: TextBatch) -> Tensor:
        """[T]"""
        prompt = batch.ids[batch.row, batch.column]
        return torch.log_softmax(self.logits, dim=1)[prompt, batch.target]


class TableCritic(nn.Module):
    """One value per prompt [X]."""

    def __init__(self, values: Array) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.from_numpy(values.copy()))

    def forward(self, batch: TextBatch) -> Tensor:
        """[T]"""
        return self.values[batch.ids[batch.row, batch.column]]


@dataclass(frozen=True)
class Tables:
    """What an update changes: log-probabilities [X, Y] and the values of both critics [X]."""

    log_probs: Array
    reward_values: Array
    cost_values: Array


def update_tables(
    tables: Tables,
    reference_log_probs: Array,
    answers: Sequence[ScoredAnswer],
    multiplier: float,
    settings: PpoSettings,
    seed: int,
    group: int | None = None,
) -> tuple[Tables, dict[str, float]]:
    """One update of policy and critics from answers of the policy as it is. With `group` critics stay as they are."""
    # A reference without full support: logits stay finite, and such an answer is never drawn.
    policy = TablePolicy(np.maximum(tables.log_probs, np.log(1e-30)))
    critics = [TableCritic(tables.reward_values), TableCritic(tables.cost_values)]
    learner, *others = [Learner(ModuleEngine(module), module) for module in (policy, *critics)]
    reference = [reference_log_probs[answer.prompt[0], list(answer.answer)] for answer in answers]
    actors = Actors(learner, group or (others[0], others[1]))
    metrics = run_ppo(actors, answers, reference, multiplier, settings, seed)
    with torch.no_grad():
        log_probs = torch.log_softmax(policy.logits, dim=1).numpy().copy()
        values = [critic.values.numpy().copy() for critic in critics]
    return Tables(log_probs, values[0], values[1]), metrics


def update_table(command: PpoCommand, trainer: TabularTrainer) -> PpoResult:
    """One update of a world's table and its critics, if any."""

    def values(stored: StoredWeights | None) -> Array:
        return np.zeros(trainer.world.shape[0]) if stored is None else trainer.store.read_tensors(*stored)["values"]

    given = command.critics
    reward, cost = (None, None) if given is None else (given.reward, given.cost)
    before = Tables(trainer.table(command.start), values(reward), values(cost))
    reference, group = trainer.table(trainer.reference), command.group
    after, metrics = update_tables(
        before, reference, command.answers, command.multiplier, command.settings, command.seed, group
    )
    version = trainer.keep(command.sequence, command.result, after.log_probs, np.zeros(trainer.world.shape))
    if group is not None:
        return PpoResult(version, metrics, (os.getpid(),))
    stored = [
        trainer.store.write_tensors(f"{kind}-critic", {"values": column})
        for kind, column in (("reward", after.reward_values), ("cost", after.cost_values))
    ]
    return PpoResult(version, metrics, (os.getpid(),), critics=Critics(*stored))
