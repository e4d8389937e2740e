"""How much of a limit's delta each candidate may spend, so that all certificates of a run together stay within it.

A *candidate* is a policy that is put to the test. Nothing is split among limits: a policy is released only if every
limit passed its own test, so a wrong release needs a false certificate of one broken limit (intersection-union test).

A certificate says more than "below the limit": its bound holds too. So every candidate spends its level, whether it was
certified or not, and another limit may be read off its bound at any time without spending more.
"""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.theory.certificates.certificate import candidate_level

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
