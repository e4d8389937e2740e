"""How much of a limit's delta each candidate may spend, so that all certificates of a run together stay within it.

A *candidate* is a policy that is put to the test. Nothing is split among limits: a policy is released only if every
limit passed its own test, so a wrong release needs a false certificate of one broken limit (intersection-union test).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pddpo_ray.theory.certificate import candidate_level

ROUNDING = 1e-12


@dataclass(frozen=True)
class Allocation:
    """Share a_k of delta for the k-th candidate: 6 / (pi^2 k^2), or the `shares` fixed before the first one.

    Raises ValueError for shares that are not positive or sum to more than 1.
    """

    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.shares is None:
            return
        if not self.shares or any(not share > 0.0 for share in self.shares):
            raise ValueError(f"every candidate needs a share above 0, got {list(self.shares)}")
        if sum(self.shares) > 1.0 + ROUNDING:
            raise ValueError(f"the shares of all candidates sum to at most 1, got {sum(self.shares):g}")

    def level(self, delta: float, number: int) -> float:
        """alpha of the k-th candidate, k = 1, 2, ...; 0 where the fixed shares are used up: it cannot be certified."""
        if self.shares is None or number < 1:
            return candidate_level(delta, number)
        return delta * self.shares[number - 1] if number <= len(self.shares) else 0.0


def fixed_sequence(certified: Iterable[bool]) -> int:
    """How many of the candidates that were ordered in advance count, when each was tested at the same, whole level.

    The first that is not certified ends the sequence: a false certificate needs one at the first candidate that breaks
    its limit, so the level is spent once (Learn-then-Test; Angelopoulos et al. 2021). fixed_sequence([1, 1, 0, 1]) = 2
    """
    number = 0
    for passed in certified:
        if not passed:
            break
        number += 1
    return number
