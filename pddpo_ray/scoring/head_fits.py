"""A score head on frozen features: computed once, kept in files, and fitted to the optimum of a convex loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pddpo_ray.records import Array
from pddpo_ray.scoring.held_out import ScoreRow, Text, by_length
from pddpo_ray.scoring.score_fits import cost_loss, sign_loss
from pddpo_ray.storage.whole_files import written_aside
from pddpo_ray.training.batches import collate, padded_passes
from pddpo_ray.training.device import PASS_TOKENS
from pddpo_ray.training.models.score_model import ScoreModel
from pddpo_ray.training.passes.log_probs import device_of

DECAYS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Weights of the squared norm that are tried; the calibration rows choose."""
FURTHEST = (1e-6, 1e6)
"""While the best decay is at an end of the range, the range grows tenfold there, up to these bounds."""


def features_of(
    model: ScoreModel, texts: Sequence[Text], folder: Path, say: Callable[[str], None]
) -> dict[Text, Array]:
    """What the head reads of each text, [h]; passes that `folder` holds are read back."""
    ordered, device = by_length(texts), device_of(model)
    features: dict[Text, Array] = {}
    for cut in padded_passes([len(text[0]) + len(text[1]) for text in ordered], PASS_TOKENS[device.type]):
        part = ordered[cut]
        path = folder / f"features-{cut.start:06d}-{cut.stop:06d}.npy"
        if not path.exists():
            with torch.no_grad():
                states = model.last_hidden(collate(part).to(device)).float().cpu()
            with written_aside(path) as aside, aside.open("wb") as file:
                np.save(file, states.numpy())
            say(f"features of {cut.stop} of {len(ordered)} texts")
        features.update(zip(part, np.load(path), strict=True))
    return features


def fit_head(
    model: ScoreModel, features: dict[Text, Array], fitted: Sequence[ScoreRow], chosen_on: Sequence[ScoreRow]
) -> dict[str, float]:
    """Sets the head to the minimiser of the rows' loss, its decay the best one on `chosen_on`. -> metrics"""
    matrix = np.stack([features[text] for text in texts_of(fitted)]).astype(np.float64)
    mean, spread = matrix.mean(axis=0), matrix.std(axis=0) + 1e-6
    standard = {text: (vector - mean) / spread for text, vector in features.items()}
    device = model.score_head.weight.device
    table = _Table.of(standard, fitted, device)
    judging = _Table.of(standard, chosen_on, device) if chosen_on else table
    fits: dict[float, Tensor] = {}

    def loss_at(decay: float) -> float:
        fits[decay] = _minimiser(table, decay)
        with torch.no_grad():
            return float(_loss(fits[decay], judging))

    decay, judged = best_decay(loss_at) if chosen_on else (0.1, loss_at(0.1))
    weights = fits[decay]
    slope = weights[:-1].cpu().numpy() / spread
    head = model.score_head
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(slope)[None])
        head.bias.copy_(weights[-1:] - float(slope @ mean))
    return {"decay": decay, "loss": float(_loss(weights, table)), "loss_of_choice": judged}


@torch.no_grad()
def head_scores(model: ScoreModel, features: dict[Text, Array], texts: Sequence[Text]) -> Array:
    """Scores of texts whose features are known, without another pass through the base. -> [n]"""
    hidden = torch.from_numpy(np.stack([features[text] for text in texts]))
    return model.scores_of(hidden.to(model.score_head.weight)).double().cpu().numpy()


def best_decay(loss_at: Callable[[float], float]) -> tuple[float, float]:
    """The decay of the smallest loss among DECAYS and, from an end that is the best, beyond it. -> decay, its loss"""
    losses = {decay: loss_at(decay) for decay in DECAYS}
    for last, furthest, step in ((min, FURTHEST[0], 0.1), (max, FURTHEST[1], 10.0)):
        while (end := last(losses)) != furthest and end == min(losses, key=losses.__getitem__):
            beyond = float(f"{end * step:.0e}")
            losses[beyond] = loss_at(beyond)
    best = min(losses, key=losses.__getitem__)
    return best, losses[best]


def texts_of(rows: Sequence[ScoreRow]) -> list[Text]:
    """All texts of rows."""
    return [(row.prompt, side) for row in rows for side in (row.higher, row.lower) if side is not None]


@dataclass(frozen=True)
class _Table:
    """Standardised features and signs of rows, gathered once for all evaluations of their loss.

    higher, lower [p, h]: of p pairs; single [s, h]: of rows without a lower side; all float64.
    """

    higher: Tensor
    lower: Tensor
    single: Tensor
    signs: tuple[Tensor, Tensor, Tensor]
    """Of higher, lower and single."""

    @classmethod
    def of(cls, features: Mapping[Text, Array], rows: Sequence[ScoreRow], device: torch.device) -> _Table:
        pairs, single = ([row for row in rows if (row.lower is None) == alone] for alone in (False, True))

        def table(texts: Sequence[Text]) -> Tensor:
            width = len(next(iter(features.values())))
            return torch.from_numpy(np.array([features[text] for text in texts]).reshape(-1, width)).to(device)

        def sign(some: Sequence[ScoreRow], name: str) -> Tensor:
            return torch.tensor([float(getattr(row, name)) for row in some], dtype=torch.float64, device=device)

        return cls(
            table([(row.prompt, row.higher) for row in pairs]),
            table([(row.prompt, row.lower or ()) for row in pairs]),
            table([(row.prompt, row.higher) for row in single]),
            (sign(pairs, "higher_sign"), sign(pairs, "lower_sign"), sign(single, "higher_sign")),
        )


def _minimiser(table: _Table, decay: float) -> Tensor:
    """Weights and bias of the convex problem. -> [h + 1] float64"""
    weights = table.higher.new_zeros(table.higher.shape[1] + 1).requires_grad_()
    solver = torch.optim.LBFGS([weights], max_iter=200, tolerance_change=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        # the bias is not shrunk, but for a hair: pairs alone do not know it
        loss = _loss(weights, table) + decay * weights[:-1].square().mean() + 1e-6 * weights[-1].square()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def _loss(weights: Tensor, table: _Table) -> Tensor:
    """Mean loss of the rows, as a fit of the whole model has it."""
    higher, lower, single = (part @ weights[:-1] + weights[-1] for part in (table.higher, table.lower, table.single))
    pair_losses = cost_loss(higher, lower, table.signs[0], table.signs[1])[0]
    return (pair_losses.sum() + sign_loss(single, table.signs[2]).sum()) / (len(higher) + len(single))
