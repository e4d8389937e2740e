"""Other annotation tools: questions go there, answers come back, and the queue's rules decide about each of them."""

from __future__ import annotations

from typing import Protocol

from pddpo_ray.annotation.exchange import GivenElsewhere, OpenQuestion


class Connector(Protocol):
    """One project of another tool. Both directions may be repeated at any time."""

    name: str

    def push(self, questions: list[OpenQuestion]) -> int:
        """Adds the questions that are not there yet. Returns how many were added."""
        ...

    def pull(self) -> list[GivenElsewhere]:
        """All answers that are there, old ones too."""
        ...

    def close(self) -> None: ...
