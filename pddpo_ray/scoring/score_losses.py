"""Losses of reward and cost models: tensors in, `(losses, metrics)` out (docs/methods.md).

reward   softplus(-(r(better) - r(worse)))
cost     softplus(-(c(costlier) - c(cheaper))) + sum over both answers of softplus(-s c),  s = +1 unsafe, -1 safe

The pairwise terms know differences alone; the sign terms put the cost's zero where safe and unsafe are equally likely.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pddpo_ray.theory.agreement import agreement

Metrics = dict[str, Tensor]


def reward_loss(better: Tensor, worse: Tensor) -> tuple[Tensor, Metrics]:
    """Bradley-Terry loss of reward scores. [B], [B] -> losses [B]; `accurate` [B]: `agreement` with the label.

    The gradient in r(better) is -sigmoid(-(r(better) - r(worse))), at equal scores -1/2.
    """
    difference = better - worse
    return softplus(-difference), {"accurate": agreement(difference.detach())}


def sign_loss(costs: Tensor, signs: Tensor) -> Tensor:
    """softplus(-s c) of each cost, 0 where there is no label (s = 0). [n], [n] of +1 unsafe, -1 safe, 0 -> [n]

    The minimiser of a costs' mean loss with a share p of unsafe labels is logit(p).
    """
    return torch.where(signs == 0, torch.zeros_like(costs), softplus(-signs * costs))


def cost_loss(costlier: Tensor, cheaper: Tensor, costlier_sign: Tensor, cheaper_sign: Tensor) -> tuple[Tensor, Metrics]:
    """Sign-aware loss of cost scores. Four times [B] -> losses [B]; metrics [B] as of the reward."""
    pairs, metrics = reward_loss(costlier, cheaper)
    return pairs + sign_loss(costlier, costlier_sign) + sign_loss(cheaper, cheaper_sign), metrics


def score_ridge(scores: Tensor, weight: float) -> Tensor:
    """weight * score^2: keeps the scores of separable data finite. [n] -> [n]"""
    return weight * scores.square()
