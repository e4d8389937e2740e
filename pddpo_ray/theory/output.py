"""What a run hands over: which rounds' policies, with which weights, and whether one may be released (paper.md §10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pddpo_ray.records import CostEstimate

STANDARD_ERRORS = 1.64
"""Distance that an estimate keeps from its limit; asked in every round, that is no level of confidence."""
ACCURACY_DROP = 0.02


def output_weights(rounds: int) -> tuple[float, ...]:
    """Weight of each round's policy in the theorem's mixture: all alike."""
    if rounds < 1:
        raise ValueError("a mixture needs at least one finished round")
    return (1.0 / rounds,) * rounds


@dataclass(frozen=True)
class ReleaseDecision:
    """Whether a version may be served as `released`, and why (one line)."""

    released: bool
    reason: str


def release_decision(
    estimate: CostEstimate,
    threshold: float,
    *,
    accuracy: float | None = None,
    accuracy_before: float | None = None,
    written: Callable[[float], str] = "{:.4g}".format,
) -> ReleaseDecision:
    """Released when c~ + 1.64 se <= d and held-out reward accuracy fell by at most 2 points.

    `written` writes a cost in the unit that its limit is stated in.
    """
    bound = estimate.value + STANDARD_ERRORS * estimate.standard_error
    said = f"estimated {estimate.constraint}, {STANDARD_ERRORS} standard errors to the worse, is {written(bound)}"
    if not bound <= threshold:
        return ReleaseDecision(False, f"{said}, beyond the limit {written(threshold)}")
    if accuracy is not None and accuracy_before is not None and accuracy < accuracy_before - ACCURACY_DROP:
        return ReleaseDecision(
            False, f"held-out reward accuracy fell from {accuracy_before:.3f} to {accuracy:.3f}, by more than 2 points"
        )
    return ReleaseDecision(True, f"{said}, within the limit {written(threshold)}")
