"""Data of the endpoint's users in a run's rounds: a share of its prompts, and pairs.

Both are journalled by name alone, so that a killed round continues with the same ones and a withdrawn text is nowhere.
Certificates draw from the recipe's own prompts, which this part never adds to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pddpo_ray.contracts import Prompts
from pddpo_ray.journal import Journal
from pddpo_ray.records import LabelledPair, Prompt
from pddpo_ray.theory.seeds import generator

PROMPTS, VERDICTS = "served-prompts", "verdicts"
"""Phases of a round: the users' prompts of each draw, and the pairs that are new in it."""


class WithUsersPrompts:
    """Satisfies contracts.Prompts: `share` of all prompts that are drawn are users', the others those of `prompts`.

    Users' prompts take turns: the user drawn least often comes next, and by seed among those. A draw has each at most
    once; where there are too few, `prompts` gives the rest.
    """

    def __init__(
        self, prompts: Prompts, served: Sequence[Prompt], journal: Journal, *, share: float, seed: int
    ) -> None:
        self._recipe_prompts, self._prompts, self._journal = prompts, {prompt.id: prompt for prompt in served}, journal
        self._share, self._seed = share, seed
        self._draws: Counter[int] = Counter()

    def draw(self, count: int) -> list[Prompt]:
        """The next `count` prompts, users' first."""
        round_ = self._journal.round
        self._draws[round_] += 1
        phase = f"{PROMPTS}-{self._draws[round_]}"
        draw = self._journal.once(phase, lambda: {"count": count, "ids": self._choose_ids(count, self._draws[round_])})
        own_prompts = self._recipe_prompts.draw(count - len(draw["ids"]))
        stored = self._journal.prompts() if self._has_withdrawn(draw["ids"]) else {}
        return [*(self._prompts.get(name) or stored.get(name) or own_prompts[0] for name in draw["ids"]), *own_prompts]

    def _has_withdrawn(self, names: Sequence[str]) -> bool:
        """Whether one was withdrawn since a killed process drew it: its place stays, without its text."""
        return any(name not in self._prompts for name in names)

    def _choose_ids(self, count: int, draw: int) -> list[str]:
        payloads = [entry.payload for entry in self._journal.phases(like=f"{PROMPTS}-%")]
        times = Counter(name for payload in payloads for name in payload["ids"])
        total = count + sum(payload["count"] for payload in payloads)
        quota = min(round(self._share * total) - times.total(), count - 1)
        names = sorted(self._prompts.keys() - self._journal.withdrawn)
        order = generator(self._seed, PROMPTS, self._journal.round, draw).permutation(len(names))
        ranking = sorted((times[names[index]], place, names[index]) for place, index in enumerate(order))
        return [name for _, _, name in ranking[: max(0, quota)]]


class UsersVerdicts:
    """Pairs that users' verdicts make, each from the round on in which it is new, at one weight."""

    def __init__(self, journal: Journal, pairs: Sequence[LabelledPair], weight: float) -> None:
        self._journal, self.weight = journal, weight
        self._pairs: Mapping[str, LabelledPair] = {item.pair.id: item for item in pairs}
        self._names_by_round: dict[int, list[str]] = {
            entry.round: entry.payload["pairs"] for entry in journal.phases(like=VERDICTS)
        }

    def labelled(self) -> list[tuple[int, LabelledPair]]:
        """Each pair with its round; none that was withdrawn or whose verdict was changed since."""
        number = self._journal.round
        if not self.weight or not number:
            return []
        if number not in self._names_by_round:
            past_names = {name for names in self._names_by_round.values() for name in names}
            new_names = [name for name in self._pairs if name not in past_names]
            self._names_by_round[number] = self._journal.once(VERDICTS, lambda: {"pairs": new_names})["pairs"]
            self._journal.add_metrics({"labels/users_pairs": float(len(self._names_by_round[number]))})
        withdrawn_ids = self._journal.withdrawn
        return [
            (round_, self._pairs[name])
            for round_, names in sorted(self._names_by_round.items())
            for name in names
            if name in self._pairs and self._pairs[name].pair.prompt.id not in withdrawn_ids
        ]
