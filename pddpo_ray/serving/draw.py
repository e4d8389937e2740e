"""Which round's policy answers a conversation: an even draw that the same conversation always repeats.

Every round gets a pseudo-random weight from (seed, round, conversation) and the heaviest one is drawn. So no state is
kept, every entrance draws alike, and when a round joins the mixture only its own share of the conversations, one in
K + 1, moves: to the new round.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence


def drawn_round(conversation: str, rounds: Sequence[int], seed: int = 0) -> int:
    """k ~ Unif(rounds), the same for the same conversation and seed (paper.md §10)."""
    if not rounds:
        raise ValueError("a mixture needs at least one round")
    return max(rounds, key=lambda number: (_weight(conversation, number, seed), number))


def _weight(conversation: str, round_: int, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\0{round_}\0{conversation}".encode(), digest_size=8).digest()


def conversation_of(named: str | None, seed: int | None, opening: str) -> str:
    """What a request is drawn by: the conversation it names; else the sampling seed that it gives together with its
    opening, so that the same request is answered alike; else a conversation of its own.
    """
    if named:
        return named
    if seed is not None:
        return f"seed-{seed}-{hashlib.sha256(opening.encode()).hexdigest()[:16]}"
    return uuid.uuid4().hex
