"""The loop of one PPO-Lagrangian update: clipped steps of a policy and two critics, or of a policy alone whose baseline
are groups of answers (`losses` and `group_advantages` have the formulas).

Tensors of tokens are flat: T tokens of all texts, one text after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import ScoredAnswer
from pddpo_lab.policy_gradient.group_advantages import group_advantages
from pddpo_lab.policy_gradient.losses import (
    advantages,
    clipped_policy_loss,
    clipped_value_loss,
    combined_advantage,
    token_streams,
)
from pddpo_ray.config import FitConfig
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array
from pddpo_ray.training.batches import Text, TextBatch, collate, minibatches
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Shard
from pddpo_ray.training.passes.log_probs import ResponseScorer

Forward = Callable[[TextBatch], Tensor]
"""One number per response token. -> [T]"""


class ModuleEngine(TorchEngine):
    """The plain torch engine for any module, under its own names: critics, and policies that are tables."""

    def __init__(self, module: nn.Module, shard: Shard | None = None) -> None:
        super().__init__(module, shard)  # type: ignore[arg-type]

    def _named_weights(self) -> dict[str, Tensor]:
        return dict(self.scorer.named_parameters())


@dataclass(frozen=True)
class Learner:
    """A network with its optimiser and what it says about tokens."""

    engine: TorchEngine
    forward: Forward


@dataclass(frozen=True)
class Actors:
    """The networks of an update. At most these are resident: the reference is a column of numbers.

    `baseline` are the reward and the cost critic, or how many answers in a row share a prompt.
    """

    policy: Learner
    baseline: tuple[Learner, Learner] | int

    @property
    def critics(self) -> tuple[Learner, ...]:
        return () if isinstance(self.baseline, int) else self.baseline


@dataclass(frozen=True)
class Columns:
    """What the update fixes before its first step, per answer [t each]."""

    log_probs: list[Array]
    advantages: list[Array]
    values: list[list[Array]]
    """Of each critic."""
    returns: list[list[Array]]


def run_ppo(
    actors: Actors,
    answers: Sequence[ScoredAnswer],
    reference_log_probs: Sequence[Array],
    multiplier: float,
    settings: PpoSettings,
    seed: int,
) -> dict[str, float]:
    """Epochs of clipped steps of the policy and of the critics, if any, in place. -> metrics `ppo/...`

    `reference_log_probs` are per token, per answer. Losses are divided by the global number of tokens, so that ranks
    change nothing. Raises RunError if a gradient is not finite.
    """
    columns = _columns(actors, answers, reference_log_probs, multiplier, settings)
    learners = (actors.policy, *actors.critics)
    rates = (settings.learning_rate, *(settings.critic_learning_rate for _ in actors.critics))
    decays = (settings.weight_decay, *(settings.critic_weight_decay for _ in actors.critics))
    for learner, rate, decay in zip(learners, rates, decays, strict=True):
        learner.engine.begin(FitConfig(learning_rate=rate, weight_decay=decay, max_grad_norm=settings.max_grad_norm))
    steps = settings.epochs * -(-len(answers) // min(settings.batch, len(answers)))
    totals = np.zeros(len(learners))
    for batch in minibatches(len(answers), steps, settings.batch, seed):
        for index, learner in enumerate(learners):
            loss = _step(index, learner, answers, columns, batch, settings)
            norm = learner.engine.update(rates[index])
            if not np.isfinite(norm):
                raise RunError(
                    "a gradient of PPO is not finite: lower method.learning_rate, or method.critic_learning_rate"
                )
            totals[index] += float(learner.engine.reduce_sum(loss))
    ratios = np.concatenate(columns.log_probs) - np.concatenate(list(reference_log_probs))
    names = ("policy", "reward_critic", "cost_critic")[: len(learners)]
    return {
        **{f"ppo/{name}_loss": float(total) / max(1, steps) for name, total in zip(names, totals, strict=True)},
        "ppo/kl_estimate": float(ratios.sum() / len(answers)),
        "ppo/mean_reward": float(np.mean([answer.reward for answer in answers])),
        "ppo/mean_cost": float(np.mean([answer.cost for answer in answers])),
        "ppo/steps": float(steps),
    }


def per_token(forward: Forward, texts: Sequence[Text], device: torch.device, batch: int = 128) -> list[Array]:
    """What a network says about each response token, text by text. -> [t] each"""
    said: list[Array] = []
    for begin in range(0, len(texts), batch):
        part = texts[begin : begin + batch]
        with torch.no_grad():
            flat = forward(collate(part).to(device)).double().cpu().numpy()
        said += np.split(flat, np.cumsum([len(answer) for _, answer in part])[:-1])
    return said


def token_log_probs(scorer: ResponseScorer) -> Forward:
    """log pi of each response token under a language model."""

    def forward(batch: TextBatch) -> Tensor:
        logits = scorer.response_logits(batch).float()
        return torch.log_softmax(logits, dim=-1).gather(-1, batch.target[:, None])[:, 0]

    return forward


def _columns(
    actors: Actors,
    answers: Sequence[ScoredAnswer],
    reference: Sequence[Array],
    multiplier: float,
    settings: PpoSettings,
) -> Columns:
    texts = _texts(answers)
    device = _device(actors.policy)
    log_probs = per_token(actors.policy.forward, texts, device)
    if isinstance(actors.baseline, int):
        ratios = np.array([(own - other).sum() for own, other in zip(log_probs, reference, strict=True)])
        rewards, costs = np.array([(answer.reward, answer.cost) for answer in answers]).T
        weights = group_advantages(
            rewards, costs, ratios, multiplier=multiplier, kl=settings.kl, group=actors.baseline
        )  # one weight for all tokens of an answer
        each = [np.full(len(own), weight) for own, weight in zip(log_probs, weights, strict=True)]
        return Columns(log_probs, each, [], [])
    values = [per_token(critic.forward, texts, device) for critic in actors.critics]
    combined: list[Array] = []
    returns: list[list[Array]] = [[], []]
    for index, answer in enumerate(answers):
        ratio = log_probs[index] - reference[index]
        streams = token_streams(ratio, answer.reward, answer.cost, kl=settings.kl, score_clip=settings.score_clip)
        both = [
            advantages(stream, values[kind][index], discount=settings.discount, trace=settings.trace)
            for kind, stream in enumerate(streams)
        ]
        combined.append(combined_advantage(both[0][0], both[1][0], multiplier))
        returns[0].append(both[0][1])
        returns[1].append(both[1][1])
    return Columns(log_probs, combined, values, returns)


def _step(
    index: int,
    learner: Learner,
    answers: Sequence[ScoredAnswer],
    columns: Columns,
    batch: NDArray[np.int64],
    settings: PpoSettings,
) -> Tensor:
    """Gradient of this rank's share of a minibatch of one network. -> its part of the loss, on the CPU"""
    shard = learner.engine.shard
    own = batch[shard.rank :: shard.ranks]
    # A rank without an answer of its own repeats one with weight zero: gradients are summed over all ranks.
    weight, own = (1.0, own) if len(own) else (0.0, batch[:1])
    tokens = float(sum(len(answers[i].answer) for i in batch))
    device = _device(learner)
    said = learner.forward(collate(_texts([answers[i] for i in own])).to(device))

    def column(values: Sequence[Array]) -> Tensor:
        return torch.from_numpy(np.concatenate([values[i] for i in own])).to(said)

    if index == 0:
        losses = clipped_policy_loss(said, column(columns.log_probs), column(columns.advantages), settings.clip)
    else:
        kind = index - 1
        old, returns = column(columns.values[kind]), column(columns.returns[kind])
        losses = clipped_value_loss(said, old, returns, settings.value_clip)
    loss = weight * losses.sum() / tokens
    learner.engine.backward(loss)
    return loss.detach().double().cpu()


def _texts(answers: Sequence[ScoredAnswer]) -> list[Text]:
    return [(answer.prompt, answer.answer) for answer in answers]


def _device(learner: Learner) -> torch.device:
    return next(learner.engine.scorer.parameters()).device
