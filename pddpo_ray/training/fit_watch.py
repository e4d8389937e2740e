"""The record of a fit, step by step: its curve, the pairs that it keeps apart, and the step it ends with.

A loss alone does not tell whether a policy moves. Log-probabilities of better and of worse answers are kept apart: a
margin can grow although both fall (likelihood displacement), and then the policy says something else altogether.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pddpo_ray.training.progress import PROGRESS, LinePace

CHECKS = 4
"""How often a fit looks at the pairs that it keeps apart, its end among them."""
STEP = ("loss", "accuracy", "better", "worse", "norm", "off_support")
"""Numbers of each step."""
LOOK = ("held_out_step", "held_out_loss", "held_out_accuracy")
"""Numbers of each look at the pairs kept apart."""


@dataclass
class FitCurve:
    """The steps of one fit, in order, and the looks at the pairs that were kept apart."""

    name: str
    steps: int
    rows: int
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    better: list[float] = field(default_factory=list)
    """Mean log policy/base of the better answers of a step's pairs, in nats."""
    worse: list[float] = field(default_factory=list)
    norm: list[float] = field(default_factory=list)
    """Of the gradient, before clipping."""
    off_support: list[float] = field(default_factory=list)
    """Mass off the reference's support, per token."""
    held_out_step: list[int] = field(default_factory=list)
    held_out_loss: list[float] = field(default_factory=list)
    held_out_accuracy: list[float] = field(default_factory=list)
    best: int = 0
    """The step whose weights the fit ends with, that of the smallest loss on the pairs kept apart; 0: no pair was."""
    _pace: LinePace = field(default_factory=LinePace)

    def add(self, **numbers: float) -> None:
        """Adds a step, a number for each of `STEP`, and from time to time logs how far the fit is."""
        for name in STEP:
            getattr(self, name).append(numbers[name])
        if self._pace.due():
            PROGRESS.tell(self.line())
        PROGRESS.advance()

    def line(self) -> str:
        """The newest step in words."""
        return (
            f"{self.name}: step {len(self.loss)} of {self.steps}, loss {self.loss[-1]:.3g},"
            f" right {100 * self.accuracy[-1]:.0f} %, better answers {self.better[-1]:+.2f} nats,"
            f" worse {self.worse[-1]:+.2f}"
        )

    def look(self, loss: float, accuracy: float) -> bool:
        """Adds a look at the pairs kept apart, the first before any step. -> whether it is the best after a step"""
        best = bool(self.loss) and loss < min([*self.held_out_loss[1:], np.inf])
        if best:
            self.best = len(self.loss)
        self.held_out_step.append(len(self.loss))
        self.held_out_loss.append(loss)
        self.held_out_accuracy.append(accuracy)
        return best

    def due(self) -> bool:
        """Whether the pairs kept apart are looked at after this step."""
        done = len(self.loss)
        return done == self.steps or done % max(1, self.steps // CHECKS) == 0

    def as_metrics(self) -> dict[str, float]:
        """What a fit's record holds: the loss, and where better and worse answers stand, over the last fifth of the
        steps; the accuracy over all of them; the looks at the pairs kept apart."""
        metrics = {
            "fit/loss": last_fifth(self.loss),
            "fit/loss_at_start": self.loss[0],
            "fit/accuracy": float(np.mean(self.accuracy)),
            "fit/better": last_fifth(self.better),
            "fit/worse": last_fifth(self.worse),
            "fit/gradient_norm": float(np.mean(self.norm)),
            "fit/off_support_per_token": float(np.mean(self.off_support)),
            "fit/steps": float(self.steps),
            "fit/rows": float(self.rows),
        }
        if self.held_out_loss:
            metrics |= {
                "fit/held_out_start": self.held_out_loss[0],
                "fit/held_out_loss": min(self.held_out_loss[1:]),
                "fit/held_out_accuracy": self.held_out_accuracy[self.held_out_step.index(self.best)],
                "fit/best_step": float(self.best),
            }
        return metrics

    def as_json(self) -> dict[str, list[float] | int]:
        """For the journal."""
        numbers = {name: [round(value, 6) for value in getattr(self, name)] for name in (*STEP, *LOOK)}
        return numbers | {"best": self.best}


def last_fifth(values: Sequence[float]) -> float:
    """Mean of the last fifth of a fit's steps."""
    return float(np.mean(values[-max(1, len(values) // 5) :]))
