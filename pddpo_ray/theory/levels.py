"""How much of a limit's delta each candidate may spend, so that all certificates of a run together stay within it.

A *candidate* is a policy that is put to the test. Nothing is split among limits: a policy is released only if every
limit passed its own test, so a wrong release needs a false certificate of one broken limit (intersection-union test).

A candidate that was certified has spent nothing: the next one is tested at the same level. Until something false is
certified, every broken policy counts as a failure, so the m-th broken one is tested at no more than the m-th level, and
the chances of a first false certificate sum to at most delta. It needs levels that do not rise, and labels of a
candidate that are drawn after it was entered. With one share of 1 this is fixed-sequence testing (Learn-then-Test;
Angelopoulos et al. 2021): every candidate at the whole delta, until the first that is not certified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pddpo_ray.theory.certificate import candidate_level

ROUNDING = 1e-12


@dataclass(frozen=True)
class Allocation:
    """Share a_k of delta for the k-th place: 6 / (pi^2 k^2), or the `shares` fixed before the first candidate.

    Raises ValueError for shares that are not positive, rise, or sum to more than 1.
    """

    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.shares is None:
            return
        if not self.shares or any(not share > 0.0 for share in self.shares):
            raise ValueError(f"every candidate needs a share above 0, got {list(self.shares)}")
        if sum(self.shares) > 1.0 + ROUNDING:
            raise ValueError(f"the shares of all candidates sum to at most 1, got {sum(self.shares):g}")
        if list(self.shares) != sorted(self.shares, reverse=True):
            raise ValueError(f"a later share is at most an earlier share, got {list(self.shares)}")

    def level(self, delta: float, place: int) -> float:
        """alpha in the k-th place, k = 1, 2, ...; 0 where the fixed shares are used up: it cannot be certified."""
        if self.shares is None or place < 1:
            return candidate_level(delta, place)
        return delta * self.shares[place - 1] if place <= len(self.shares) else 0.0


def place_after(certified: Iterable[bool]) -> int:
    """Place of the next candidate: one more than there are candidates before it without a certificate.

    place_after([]) = 1, place_after([True, False, True]) = 2
    """
    return 1 + sum(not passed for passed in certified)
