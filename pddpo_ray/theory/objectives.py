"""Losses of both stages: tensors in, `(losses, metrics)` out.

There is one preference loss. The reward stage calls it with base = reference and temperature = beta; the cost stage
with base = reward policy and temperature = beta / multiplier, chosen = the *cheaper* answer (paper.md §2, §3).
The reference does not appear in the cost stage because it cancels, which is why one frozen base is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pddpo_ray.theory.agreement import agreement

Metrics = dict[str, Tensor]


def preference_loss(
    chosen_log_ratio: Tensor,
    rejected_log_ratio: Tensor,
    *,
    temperature: float,
    margins: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Bradley-Terry loss of a pair in terms of log ratios. [B], [B] -> losses [B], metrics of [B] each.

    u = temperature * (h(chosen) - h(rejected)) + margin,  h = log policy(y|x) - log base(y|x)
    loss = weight * softplus(-u) = -weight * log sigmoid(u)

    At policy = base without margins u = 0 and the loss is ln 2. The caller divides by the number of pairs it counts
    globally, so that micro-batches and ranks change nothing. Metrics are detached: `logit` is u, `accurate` is 1
    where the log ratios rank the pair as labelled and 1/2 where they tie, as at policy = base (the margin left out: it
    is no part of the learned score).
    """
    difference = chosen_log_ratio - rejected_log_ratio
    logits = temperature * difference if margins is None else temperature * difference + margins
    losses = softplus(-logits)
    if weights is not None:
        losses = losses * weights
    return losses, {"logit": logits.detach(), "accurate": agreement(difference.detach())}


def cost_temperature(beta: float, multiplier: float) -> float:
    """Temperature of the cost stage, beta / multiplier; the limit multiplier -> 0 has no loss (the page skips it)."""
    if multiplier <= 0:
        raise ValueError(f"the cost stage needs a multiplier above 0, got {multiplier}; at 0 publish the reward policy")
    return beta / multiplier


def implicit_reward(log_ratio: Tensor, *, beta: float) -> Tensor:
    """Reward that the reward policy implies, up to a constant per prompt. log ratio to the reference [B] -> [B]."""
    return beta * log_ratio


def implicit_cost(log_ratio: Tensor, *, beta: float, multiplier: float) -> Tensor:
    """Cost that policy and reward policy imply, up to a constant per prompt. log ratio to the reward policy [B] -> [B].

    r - multiplier * c = beta log(policy/reference) and r = beta log(reward_policy/reference), up to constants.
    """
    return -cost_temperature(beta, multiplier) * log_ratio


def cost_stage_scales(multiplier: float, *, reference_multiplier: float = 1.0) -> tuple[float, float]:
    """Factors (loss, learning rate) that keep the cost stage well scaled for any multiplier (paper.md §6).

    Multiplying the loss bounds its gradient in each log-probability by beta, as in the reward stage. Adam does not see
    that factor, and the log ratio to be learned shrinks with the multiplier, hence the second one.
    """
    return multiplier, min(1.0, multiplier / reference_multiplier)


def reward_bonus_margins(better_bonus: Tensor, worse_bonus: Tensor) -> Tensor:
    """Margins with which the reward stage fits reward + bonus (paper.md §9). Bonuses [B], [B] -> [B], detached."""
    return (worse_bonus - better_bonus).detach()


def cost_bonus_margins(costlier_bonus: Tensor, cheaper_bonus: Tensor) -> Tensor:
    """Margins with which the cost stage fits cost - bonus (A9, corrected: E01). Bonuses [B], [B] -> [B], detached.

    The log ratio to the reward policy then answers a bonus with slope +multiplier/beta: uncertain answers are assumed
    cheaper. Nothing is divided by the multiplier.
    """
    return (costlier_bonus - cheaper_bonus).detach()


def printed_cost_bonus_margins(costlier_bonus: Tensor, cheaper_bonus: Tensor, *, multiplier: float) -> Tensor:
    """Margins of the cost loss as the paper prints it (paper.md erratum 1). [B], [B] -> [B]. For `pddpo verify` alone.

    Sign and scale are wrong: the log ratio answers a bonus with slope -1/beta, so uncertain answers are avoided.
    """
    return (cheaper_bonus - costlier_bonus).detach() / multiplier


def support_loss(log_support_mass: Tensor, mask: Tensor, *, tokens: float | None = None) -> tuple[Tensor, Metrics]:
    """Mean over response tokens of -log of the policy's mass on the reference's support. [..., T], [..., T] -> [].

    The support of a token position are the tokens to which the reference gives at least a floor. The term holds the
    policy on texts that the reference would write and leaves choices inside that support alone; a KL strong enough to
    do the same would flatten the cost stage. `tokens` is the global number of response tokens (default: mask's sum).
    """
    mask = mask.to(log_support_mass.dtype)
    # where, not multiplication: a padded position may hold -inf, and -inf * 0 is nan
    kept = torch.where(mask > 0, log_support_mass, torch.zeros_like(log_support_mass)) * mask
    count = mask.sum().clamp_min(1.0) if tokens is None else torch.as_tensor(tokens, dtype=kept.dtype)
    loss = -kept.sum() / count
    outside = (1.0 - log_support_mass.detach().exp()) * mask
    return loss, {"off_support_per_token": torch.where(mask > 0, outside, torch.zeros_like(outside)).sum() / count}


def baseline_optimism_loss(baseline_log_probs: Tensor, *, alpha: float) -> tuple[Tensor, Metrics]:
    """XPO-style term alpha * log policy(y') over answers y' of the baseline, added to the cost stage. [B] -> [B].

    It pushes mass away from the baseline's answers without any notion of uncertainty, so it never switches off; use it
    where no features are at hand. Constants such as log reference do not matter: only the gradient does.
    """
    return alpha * baseline_log_probs, {"baseline_log_prob": baseline_log_probs.detach()}
