"""What a run outputs: which rounds' policies, with which weights, and which is tested first (paper.md §10)."""

from __future__ import annotations

from collections.abc import Mapping


def output_weights(rounds: int) -> tuple[float, ...]:
    """Weight of each round's policy in the theorem's mixture: all alike."""
    if rounds < 1:
        raise ValueError("a mixture needs at least one finished round")
    return (1.0 / rounds,) * rounds


def shortfall(
    estimates: Mapping[str, float], reachable: Mapping[str, float], limits: Mapping[str, float]
) -> float | None:
    """How far a policy's estimates are from what a test can be expected to certify, in parts of the way to the limit.

    At most 0: every estimate is low enough; 1: one is at its limit. None: one is above it, or there is none.
    `reachable` lies below its limit by the width of the test.
    """
    parts = []
    for name, limit in limits.items():
        if not estimates.get(name, float("inf")) <= limit:
            return None
        parts.append((estimates[name] - reachable[name]) / (limit - reachable[name]))
    return max(parts)


def in_order_of_test(shortfalls: Mapping[int, float | None], helpfulness: Mapping[int, float]) -> list[int]:
    """Rounds in the order in which they are put to the test; those with a shortfall of None are not.

    Those whose test can be expected to succeed come first, the most helpful of them before all; then the others, the
    nearest first. in_order_of_test({1: 0.0, 2: None, 3: -0.2, 4: 0.5}, {1: 0.1, 2: 9.0, 3: 0.3, 4: 5.0}) = [3, 1, 4]
    """
    candidates = {number: short for number, short in shortfalls.items() if short is not None}
    likely = sorted((n for n, short in candidates.items() if short <= 0), key=lambda n: (-helpfulness[n], -n))
    return likely + sorted((n for n, short in candidates.items() if short > 0), key=lambda n: (candidates[n], -n))
