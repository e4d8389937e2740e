"""One forward pass over pairs and what a fit takes from it: a function of tensors that lie on one device.

Nothing in it asks the host for anything, so that a GPU can be given its kernels once and replay them (`graphs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pddpo_ray.records import Objective, PairRow
from pddpo_ray.theory.objectives import preference_loss, support_loss, value_loss
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.log_probs import ResponseScorer, Support, TextPass


@dataclass(frozen=True)
class PairPass:
    """What a pass over B pairs reads. base [2B]: log-probabilities of their texts under the objective's base; weights,
    margins [B]; whole [3]: pairs and response tokens of the whole minibatch, and 0 where this part of it is a stopgap.
    """

    texts: TextPass
    base: Tensor
    weights: Tensor
    margins: Tensor
    whole: Tensor

    @classmethod
    def of(
        cls,
        scorer: ResponseScorer,
        rows: Sequence[PairRow],
        *,
        base: Sequence[float],
        margins: Sequence[float] | None,
        supports: Sequence[Support] | None,
        whole: tuple[float, float, float],
    ) -> PairPass:
        """On the host."""
        numbers = (base, [row.weight for row in rows], margins or [0.0] * len(rows), whole)
        columns = (torch.tensor(column, dtype=scorer.number_type) for column in numbers)
        return cls(scorer.to_read(texts_of(rows), supports), *columns)


@dataclass(frozen=True)
class PairLoss:
    """The loss of an objective: `loss_scale` of the pairs' mean loss and `support_weight` of the tokens' mean loss."""

    scorer: ResponseScorer
    objective: Objective
    loss_scale: float = 1.0
    support_weight: float = 0.0

    def __call__(self, given: PairPass) -> tuple[Tensor, Tensor]:
        """-> this part's share of the whole minibatch's loss [], and of [pair loss, correctly ranked weight, mass off
        the support, weighted log ratios of the better answers, of the worse ones] without gradient, float64 [5]"""
        log_probs, supported, counts = self.scorer.log_probs_of(given.texts)
        chosen, rejected = (log_probs - given.base).chunk(2)
        values = bool(self.objective.values) and self.objective.margins is not None
        margins = given.margins if self.objective.margins else None
        options = {"temperature": self.objective.temperature, "margins": margins, "weights": given.weights}
        losses, metrics = (value_loss if values else preference_loss)(chosen, rejected, **options)  # type: ignore[arg-type]
        pairs, tokens, part = given.whole
        loss, off_support = self.loss_scale * losses.sum() / pairs, losses.new_zeros(())
        if supported is not None and counts is not None:
            term, support_metrics = support_loss(supported, counts, tokens=1.0)
            loss, off_support = loss + self.support_weight * term / tokens, support_metrics["off_support_per_token"]
        with torch.no_grad():
            # of measured values the row does not say which answer is better, its margin does
            first = given.margins <= 0 if values else torch.ones_like(chosen, dtype=torch.bool)
            better, worse = torch.where(first, chosen, rejected), torch.where(first, rejected, chosen)
            weighted = [(one * given.weights).sum() for one in (metrics["accurate"], better, worse)]
            said = torch.stack([losses.sum(), weighted[0], off_support, *weighted[1:]]).double()
            divided = part * said / torch.stack([pairs, pairs, tokens, pairs, pairs])
        return part * loss, divided
