"""PPO-Lagrangian with two critics: the mathematics of one update (docs/methods.md).

    reward of a token   -kappa (log pi - log ref),  at the last token + r
    cost of a token     +kappa (log pi - log ref),  at the last token + c          both clipped
    advantage           A = (A_r - lambda A_c) / (1 + lambda),  each by generalised advantage estimation
    policy loss         -mean min(rho A, clip(rho, 1 - e, 1 + e) A),  rho = pi / pi at the update's start
    critic loss         mean max((V - R)^2, (clip(V) - R)^2) / 2

So an update climbs (r - lambda c) / (1 + lambda) - kappa KL: relative to r - lambda c it has beta = (1 + lambda) kappa.
Tensors of tokens are flat: T tokens of all texts, one text after another.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.records import Array


def token_streams(log_ratio: Array, reward: float, cost: float, *, kl: float, score_clip: float) -> tuple[Array, Array]:
    """Rewards and costs of one answer's tokens from log pi/ref of each. [t] -> [t], [t]"""
    rewards, costs = -kl * log_ratio, kl * log_ratio
    rewards[-1] += reward
    costs[-1] += cost
    return np.clip(rewards, -score_clip, score_clip), np.clip(costs, -score_clip, score_clip)


def advantages(rewards: Array, values: Array, *, discount: float, trace: float) -> tuple[Array, Array]:
    """Generalised advantage estimates and returns of one answer; nothing follows its last token. [t], [t] -> [t], [t]

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma trace A_{t+1},   return = A + V
    """
    following = np.append(values[1:], 0.0)
    deltas = rewards + discount * following - values
    advantage = np.zeros_like(deltas)
    later = 0.0
    for token in range(len(deltas) - 1, -1, -1):
        later = deltas[token] + discount * trace * later
        advantage[token] = later
    return advantage, advantage + values


def combined_advantage(reward_advantage: Array, cost_advantage: Array, multiplier: float) -> Array:
    """(A_r - lambda A_c) / (1 + lambda). [t], [t] -> [t]"""
    return (reward_advantage - multiplier * cost_advantage) / (1.0 + multiplier)


def clipped_policy_loss(log_probs: Tensor, old_log_probs: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-min(rho A, clip(rho) A) of each token. [T], [T], [T] -> [T]"""
    ratio = torch.exp(log_probs - old_log_probs)
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half of the larger squared error, with values held within `clip` of the old ones or not. Three [T] -> [T]"""
    held = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (held - returns).square())
