"""Which policies the journal records as certified, and what each answer carries of their certificate.

A certificate is bound to what was tested: the weights by their hash, the template, the decoding, the source of labels
and the prompts. Another decoding of the same weights is another policy, and carries none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pddpo_ray.journal import JournalReader

PHASE = "certified"
"""Phase under the candidate's round of the ledger once it keeps all limits of the recipe; never undone. For a mixture
that its rounds' own draws certify, the name ends with the number of rounds."""


@dataclass(frozen=True)
class Certified:
    """A policy whose limits are all certified. `sha256` are the weights that it draws from, evenly."""

    candidate: int
    policy: str
    rounds: tuple[int, ...]
    sha256: tuple[str, ...]
    template: str
    decoding: Mapping[str, Any]
    limits: tuple[str, ...]
    """Of each limit its name, bound and confidence."""
    statement: tuple[str, ...]
    """The sentences."""

    @property
    def header(self) -> str:
        """One line for `x-pddpo-certificate`: the bounds, and the hash of the first weights."""
        fields = ["certified", *self.limits, f"candidate {self.candidate}", f"sha256 {self.sha256[0][:16]}"]
        return "; ".join(fields).encode("ascii", "backslashreplace").decode("ascii")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        lists = {name: tuple(stored[name]) for name in ("rounds", "sha256", "limits", "statement")}
        return cls(**{**stored, **lists})


def read_certified(journal: JournalReader) -> list[Certified]:
    """All that are certified, in the order in which they entered the ledger."""
    phases = [phase for phase in journal.phases(like=f"{PHASE}%") if phase.round < 0]
    return [Certified.from_json(phase.payload) for phase in sorted(phases, key=lambda phase: -phase.round)]
