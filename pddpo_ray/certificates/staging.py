"""A staged release: a new round answers a share of the conversations, which grows by a fixed schedule.

share(t) = 1, 5, 25, 50 % in the four quarters of the time that was given, then every conversation.

Which conversations: those whose keyed hash, a number in [0, 1), lies below the share. So a conversation that meets the
new round stays with it while the share grows, and without the run's secret nobody can name one that does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SHARES = (0.01, 0.05, 0.25, 0.5)
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Stage:
    """Round `round` began to be released at `began_ms` and answers all users after `hours` (above 0)."""

    round: int
    began_ms: int
    hours: float

    @property
    def whole_ms(self) -> int:
        """When all users get it."""
        return self.began_ms + round(self.hours * HOUR_MS)

    def share(self, now_ms: int) -> float:
        """Share of the conversations at a time; a clock that went back gives the first share."""
        fraction = (now_ms - self.began_ms) / (self.hours * HOUR_MS)
        return 1.0 if fraction >= 1 else SHARES[max(0, int(fraction * len(SHARES)))]

    def answers(self, conversation: str, now_ms: int, seed: int, secret: str) -> bool:
        """Whether the new round answers this conversation now."""
        return in_unit_interval(f"{seed}\0stage {self.round}\0{conversation}", secret) < self.share(now_ms)


def in_unit_interval(text: str, secret: str) -> float:
    """A number in [0, 1) that only the run's secret knows."""
    return int.from_bytes(keyed(text, secret)[:6], "big") / 2**48


def keyed(text: str, secret: str) -> bytes:
    """Eight pseudo-random bytes of a text under the run's secret."""
    key = hashlib.sha256(secret.encode()).digest()
    return hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
