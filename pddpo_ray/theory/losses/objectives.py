"""Losses of both stages: tensors in, `(losses, metrics)` out.

There is one preference loss. The reward stage calls it with base = reference and temperature = beta; the cost stage
with base = reward policy and temperature = beta / multiplier (`cost_stage.cost_temperature`), chosen = the *cheaper*
answer (paper.md §2, §3). The reference does not appear in the cost stage because it cancels, which is why one frozen
base is enough. Margins, where a bonus enters the loss, are those of `margins`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.losses.value_stage import value_losses

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


def value_loss(
    chosen_log_ratio: Tensor,
    rejected_log_ratio: Tensor,
    *,
    temperature: float,
    margins: Tensor,
    weights: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Regression of a pair's log ratios on its measured costs (`value_stage`). [B], [B] -> losses [B], metrics.

    loss = weight * (temperature * (h(chosen) - h(rejected)) + margin)^2,  temperature = beta / s,
    margin = sum_i lambda_i (C_i(chosen) - C_i(rejected)) / s. Which answer is called chosen changes nothing. Metrics as
    those of `preference_loss`: `accurate` is 1 where the log ratios rank the pair as its costs do.
    """
    losses = value_losses(rejected_log_ratio, chosen_log_ratio, -margins, temperature=temperature)
    if weights is not None:
        losses = losses * weights
    difference = (chosen_log_ratio - rejected_log_ratio).detach()
    return losses, {"logit": temperature * difference, "accurate": agreement(-difference * margins)}


def support_loss(log_support_mass: Tensor, mask: Tensor, *, tokens: float | None = None) -> tuple[Tensor, Metrics]:
    """Mean over response tokens of -log of the policy's mass on the reference's support. [..., T], [..., T] -> [].

    The support of a token position are the tokens to which the reference gives at least a floor. The term holds the
    policy on texts that the reference would write and leaves choices inside that support alone; a KL strong enough to
    do the same would flatten the cost stage. `tokens` is the global number of response tokens (default: mask's sum).
    """
    # where, not multiplication: a padded position may hold -inf, and -inf * 0 is nan
    log_mass = torch.where(mask > 0, log_support_mass, torch.zeros_like(log_support_mass)) * mask
    count = mask.sum().clamp_min(1.0) if tokens is None else tokens
    loss = -log_mass.sum() / count
    outside = (1.0 - log_support_mass.detach().exp()) * mask
    return loss, {"off_support_per_token": torch.where(mask > 0, outside, torch.zeros_like(outside)).sum() / count}


def baseline_optimism_loss(baseline_log_probs: Tensor, *, alpha: float) -> tuple[Tensor, Metrics]:
    """XPO-style term alpha * log policy(y') over answers y' of the baseline, added to the cost stage. [B] -> [B].

    It pushes mass away from the baseline's answers without any notion of uncertainty, so it never switches off; use it
    where no features are at hand. Constants such as log reference do not matter: only the gradient does.
    """
    return alpha * baseline_log_probs, {"baseline_log_prob": baseline_log_probs.detach()}
