"""Fitting reward and cost models on labelled pairs, and their losses (docs/methods.md).

reward   softplus(-(r(better) - r(worse)))
cost     softplus(-(c(costlier) - c(cheaper))) + sum over both answers of softplus(-s c),  s = +1 unsafe, -1 safe

The pairwise terms know differences alone; the sign terms put the cost's zero where safe and unsafe are equally likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pddpo_ray.config import FitConfig
from pddpo_ray.errors import RunError
from pddpo_ray.records import LabelledPair, Response, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import copy_plain_files
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.training.batches import collate, minibatches
from pddpo_ray.training.fit import schedule_factor
from pddpo_ray.training.log_probs import device_of
from pddpo_ray.training.score_model import ScoreModel, score_model_of, score_tensors, write_score_config

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


Kind = Literal["reward", "cost"]


@dataclass(frozen=True)
class ScoreRow:
    """One comparison: `higher` won it (the better answer of a reward row, the costlier one of a cost row).

    Signs are those of the safety labels: +1 unsafe, -1 safe, 0 where there is none (always 0 in a reward row).
    """

    prompt: tuple[int, ...]
    higher: tuple[int, ...]
    lower: tuple[int, ...]
    higher_sign: int = 0
    lower_sign: int = 0


def rows_of(labelled: Sequence[LabelledPair], kind: Kind, unsafe: Mapping[str, bool] | None = None) -> list[ScoreRow]:
    """Training rows of the decided pairs; `unsafe` holds one safety label per answer, by its id."""
    bits = unsafe if kind == "cost" and unsafe is not None else {}

    def sign(answer: Response) -> int:
        return 0 if answer.id not in bits else 1 if bits[answer.id] else -1

    rows = []
    for item in labelled:
        verdict = item.helpful if kind == "reward" else item.harmful
        if verdict not in (Verdict.FIRST, Verdict.SECOND):
            continue
        first, second = item.pair.first, item.pair.second
        higher, lower = (first, second) if verdict is Verdict.FIRST else (second, first)
        rows.append(ScoreRow(item.pair.prompt.token_ids, higher.token_ids, lower.token_ids, sign(higher), sign(lower)))
    return rows


def split(rows: Sequence[ScoreRow], held_out: float, seed: int) -> tuple[list[ScoreRow], list[ScoreRow]]:
    """(rows to fit, rows held out), drawn by seed; a share of 0 holds nothing out."""
    count = round(held_out * len(rows))
    apart = set(np.random.default_rng([seed, len(rows), 5]).permutation(len(rows))[:count].tolist())
    return [row for i, row in enumerate(rows) if i not in apart], [rows[i] for i in sorted(apart)]


def train_scorer(
    kind: Kind,
    labelled: Sequence[LabelledPair],
    unsafe: Mapping[str, bool],
    *,
    folder: Path,
    store: ArtifactStore,
    settings: FitConfig,
    seed: int,
    ridge: float = 1e-3,
    held_out: float = 0.1,
) -> tuple[str, str, dict[str, float]]:
    """Fit a score model that starts as the language model in `folder` and store it. -> path, sha256, metrics

    Its folder reads back with `loading.load_scorer`; metrics are those of the fit and of the rows held out.
    """
    fitted, apart = split(rows_of(labelled, kind, unsafe), held_out, seed)
    model = score_model_of(folder, kind)
    metrics = fit_scores(model, fitted, settings, seed, ridge=ridge)
    if apart:
        metrics |= {f"held_out_{name}": value for name, value in held_out_metrics(model, apart).items()}

    def fill(target: Path) -> None:
        copy_plain_files(folder, target)
        write_score_config(model, target, "tokens")

    path, sha256 = store.write_tensors(f"{kind}-model", score_tensors(model), fill=fill)
    return path, sha256, metrics | {"rows": float(len(fitted))}


def fit_scores(
    model: ScoreModel, rows: Sequence[ScoreRow], settings: FitConfig, seed: int, *, ridge: float = 0.0
) -> dict[str, float]:
    """Run the optimiser steps of one fit, in place. -> `loss`, `accuracy` over the last fifth of the steps.

    `ridge` times the squared score is added per answer. Raises RunError if there is no row or a gradient diverges.
    """
    if not rows:
        raise RunError("there is no decided pair to fit a scorer on; check the labels that abstained or failed")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    losses, accuracies = [], []
    for step, indices in enumerate(minibatches(len(rows), settings.steps, settings.batch_pairs, seed)):
        loss, accuracy = _loss(model, [rows[i] for i in indices], ridge)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm))
        if not np.isfinite(norm):
            raise RunError(f"the gradient of step {step + 1} of a scorer's fit is not finite: lower its learning rate")
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule_factor(settings, step)
        optimizer.step()
        losses.append(float(loss.detach()))
        accuracies.append(accuracy)
    tail = max(1, len(losses) // 5)
    return {"loss": float(np.mean(losses[-tail:])), "accuracy": float(np.mean(accuracies[-tail:]))}


@torch.no_grad()
def held_out_metrics(model: ScoreModel, rows: Sequence[ScoreRow], batch: int = 256) -> dict[str, float]:
    """`accuracy` of the order and, with safety labels, `sign_accuracy` of the side of zero; a tie counts half."""
    scores = [_pair_scores(model, rows[start : start + batch]) for start in range(0, len(rows), batch)]
    higher = torch.cat([pair[0] for pair in scores]).double().cpu().numpy()
    lower = torch.cat([pair[1] for pair in scores]).double().cpu().numpy()
    values = {"accuracy": float(agreement(higher - lower).mean())}
    signs = np.array([[row.higher_sign, row.lower_sign] for row in rows])
    if np.any(signs):
        right = agreement(signs * np.stack([higher, lower], axis=1))[signs != 0]
        values["sign_accuracy"] = float(right.mean())
    return values


def _loss(model: ScoreModel, rows: Sequence[ScoreRow], ridge: float) -> tuple[Tensor, float]:
    """Mean loss and accuracy of a minibatch. Without safety labels the cost loss is the reward loss."""
    higher, lower = _pair_scores(model, rows)
    signs = [
        torch.tensor([float(sign) for sign in column], device=higher.device)
        for column in ([row.higher_sign for row in rows], [row.lower_sign for row in rows])
    ]
    losses, metrics = cost_loss(higher, lower, *signs)
    losses = losses + score_ridge(higher, ridge) + score_ridge(lower, ridge)
    return losses.mean(), float(metrics["accurate"].mean())


def _pair_scores(model: ScoreModel, rows: Sequence[ScoreRow]) -> tuple[Tensor, Tensor]:
    texts = [(row.prompt, row.higher) for row in rows] + [(row.prompt, row.lower) for row in rows]
    scores = model(collate(texts).to(device_of(model)))
    return scores[: len(rows)], scores[len(rows) :]
