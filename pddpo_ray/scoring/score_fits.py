"""Fitting reward and cost models on labelled pairs, and their losses (docs/methods.md).

reward   softplus(-(r(better) - r(worse)))
cost     softplus(-(c(costlier) - c(cheaper))) + sum over both answers of softplus(-s c),  s = +1 unsafe, -1 safe

The pairwise terms know differences alone; the sign terms put the cost's zero where safe and unsafe are equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pddpo_ray.config import FitConfig
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array
from pddpo_ray.scoring.fit_checkpoints import FitCheckpoints, Progress
from pddpo_ray.scoring.held_out import ScoreRow, by_length
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.training.batches import Text, collate, minibatches, padded_passes
from pddpo_ray.training.device import PASS_TOKENS
from pddpo_ray.training.fit import schedule_factor
from pddpo_ray.training.models.score_model import ScoreModel
from pddpo_ray.training.passes.log_probs import device_of

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


def fit_scores(
    model: ScoreModel,
    rows: Sequence[ScoreRow],
    settings: FitConfig,
    seed: int,
    *,
    ridge: float = 0.0,
    micro_rows: int | None = None,
    checkpoints: FitCheckpoints | None = None,
) -> dict[str, float]:
    """Run the optimiser steps of one fit, in place. -> `loss`, `accuracy` over the last fifth of the steps.

    `ridge` times the squared score is added per answer. `micro_rows` pass through the model at a time: less memory, the
    same step. With `checkpoints` the fit resumes at its checkpoint. Raises RunError if there is no row or a gradient
    diverges.
    """
    if not rows:
        raise RunError("there is no decided pair to fit a scorer on; check the labels that abstained or failed")
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    trained = list(parameters.values())
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    done = Progress() if checkpoints is None else checkpoints.read(parameters, optimizer)
    for step, indices in enumerate(minibatches(len(rows), settings.steps, settings.batch_pairs, seed)):
        if step < done.steps:
            continue
        optimizer.zero_grad(set_to_none=True)
        loss, accuracy = _backward(model, [rows[i] for i in indices], ridge, micro_rows or len(indices))
        norm = float(torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm))
        if not np.isfinite(norm):
            raise RunError(f"the gradient of step {step + 1} of a scorer's fit is not finite: lower its learning rate")
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule_factor(settings, step)
        optimizer.step()
        done.steps = step + 1
        done.losses.append(loss)
        done.accuracies.append(accuracy)
        if checkpoints is not None:
            checkpoints.write(parameters, optimizer, done)
    tail = max(1, len(done.losses) // 5)
    return {"loss": float(np.mean(done.losses[-tail:])), "accuracy": float(np.mean(done.accuracies[-tail:]))}


def _backward(model: ScoreModel, rows: Sequence[ScoreRow], ridge: float, micro_rows: int) -> tuple[float, float]:
    """Adds the gradient of the rows' mean loss. -> that loss, and the share of pairs that are ordered rightly"""
    total, right, pairs = 0.0, 0.0, 0
    for start in range(0, len(rows), micro_rows):
        loss, accurate, count = _loss(model, rows[start : start + micro_rows], ridge)
        (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
        total, right, pairs = total + float(loss.detach()) / len(rows), right + accurate, pairs + count
    return total, right / pairs if pairs else 0.5


def _loss(model: ScoreModel, rows: Sequence[ScoreRow], ridge: float) -> tuple[Tensor, float, int]:
    """Sum of the losses of some rows, how many pairs are ordered rightly (a tie counts half), and how many there are.

    Without safety labels the cost loss is the reward loss.
    """
    pairs = [row for row in rows if row.lower is not None]
    single = [row for row in rows if row.lower is None]
    texts = [(row.prompt, row.higher) for row in (*pairs, *single)] + [(row.prompt, row.lower or ()) for row in pairs]
    scores = model(collate(texts).to(device_of(model)))
    higher, alone, lower = scores.split([len(pairs), len(single), len(pairs)])
    signs = [
        scores.new_tensor([float(sign) for sign in column])
        for column in (
            [row.higher_sign for row in pairs],
            [row.lower_sign for row in pairs],
            [row.higher_sign for row in single],
        )
    ]
    losses, metrics = cost_loss(higher, lower, signs[0], signs[1])
    total = losses.sum() + sign_loss(alone, signs[2]).sum() + score_ridge(scores, ridge).sum()
    return total, float(metrics["accurate"].sum()), len(pairs)


@torch.no_grad()
def held_out_metrics(model: ScoreModel, rows: Sequence[ScoreRow], batch: int | None = None) -> dict[str, float]:
    """`accuracy` of the order and, with safety labels, `sign_accuracy` of the side of zero; a tie counts half."""
    pairs = [row for row in rows if row.lower is not None]
    ordered = [text for row in pairs for text in ((row.prompt, row.higher), (row.prompt, row.lower or ()))]
    labelled = [answer for row in rows for answer in row.labelled]
    values = {}
    if pairs:
        scores = text_scores(model, ordered, batch).reshape(-1, 2)
        values["accuracy"] = float(agreement(scores[:, 0] - scores[:, 1]).mean())
    if labelled:
        signs = np.array([float(sign) for _, sign in labelled])
        costs = text_scores(model, [text for text, _ in labelled], batch)
        values["sign_accuracy"] = float(agreement(signs * costs).mean())
    return values


@torch.no_grad()
def text_scores(model: ScoreModel, texts: Sequence[Text], batch: int | None = None) -> Array:
    """Scores of texts, in order; each text passes through the model once, with those of its length. -> [n]

    A pass holds as many tokens as suits the device, and at most `batch` texts.
    """
    ordered, device = by_length(texts), device_of(model)
    cuts = padded_passes([len(text[0]) + len(text[1]) for text in ordered], PASS_TOKENS[device.type], batch)
    scores = [model(collate(ordered[cut]).to(device)).double().cpu().numpy() for cut in cuts]
    by_text = dict(zip(ordered, np.concatenate(scores), strict=True))
    return np.array([by_text[text] for text in texts])
