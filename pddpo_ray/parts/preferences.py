"""D^r and D^c: labelled pairs as training rows, from before the first round and from every round since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.production import UsersVerdicts
from pddpo_ray.records import HARM, LabelledPair, PairRow, Verdict


class Preferences:
    """Rows of both data sets, in the order of the journal.

    A restarted run begins with the pairs of its finished rounds; `extend` adds those of the current one. Abstained and
    failed labels are counted and left out: they never become a preference. `verdicts` adds pairs of the endpoint's
    users; what a user withdrew is in no row.
    """

    def __init__(
        self,
        journal: Journal,
        aspects: Sequence[str] = (HARM,),
        verdicts: UsersVerdicts | None = None,
    ) -> None:
        self._journal = journal
        self._verdicts = verdicts
        self._comparisons = tuple(aspects)
        self._pairs: list[tuple[int, LabelledPair]] = [
            (entry.round, entry.labelled) for entry in journal.pairs() if entry.round < journal.next_round
        ]

    @property
    def labelled(self) -> list[LabelledPair]:
        """All pairs with their labels, usable or not."""
        return [item for _, item in self._remaining_pairs]

    @property
    def _remaining_pairs(self) -> list[tuple[int, LabelledPair]]:
        withdrawn_ids = self._journal.withdrawn
        return [(number, item) for number, item in self._pairs if item.pair.prompt.id not in withdrawn_ids]

    @property
    def reward(self) -> list[PairRow]:
        """D^r: `chosen` is the more helpful answer."""
        return self._rows(reward_rows)

    @property
    def cost(self) -> list[PairRow]:
        """D^c of a run that learns from one comparison: `chosen` is the cheaper answer. Raises RunError of several."""
        if len(self._comparisons) > 1:
            raise RunError(
                f"preferences.cost is of one comparison, and pairs are compared by {', '.join(self._comparisons)}: name"
                " one, preferences.cost_of(NAME)"
            )
        return self.cost_of(self._comparisons[0])

    def cost_of(self, comparison: str) -> list[PairRow]:
        """D^c of one comparison: `chosen` is the cheaper answer. Raises RunError of one that nobody makes."""
        if comparison not in self._comparisons:
            raise RunError(f"no pair is compared by {comparison}, only by {', '.join(self._comparisons)}")
        return self._rows(lambda item, number: cost_rows(item, number, comparison))

    def _rows(self, rows_of: Callable[[LabelledPair, int], list[PairRow]]) -> list[PairRow]:
        rows = [row for number, item in self._remaining_pairs for row in rows_of(item, number)]
        if self._verdicts is None:
            return rows
        weight = self._verdicts.weight
        user_rows = [row for number, item in self._verdicts.labelled() for row in rows_of(item, number)]
        return rows + [replace(row, weight=weight) for row in user_rows]

    def extend(self, labelled: Sequence[LabelledPair]) -> None:
        """Adds the pairs of this round, all at once; a second call doubles none."""
        number = self._journal.round
        self._journal.once("preferences", lambda: self._count_rows(number, labelled))
        other_pairs = [(round_, item) for round_, item in self._pairs if round_ != number]
        # By round: a restarted run adds round 0 again after the later ones, and minibatches depend on the order.
        self._pairs = sorted([*other_pairs, *((number, item) for item in labelled)], key=lambda entry: entry[0])

    def _count_rows(self, number: int, labelled: Sequence[LabelledPair]) -> dict[str, int]:
        """How many rows of each data set the pairs make."""
        counts = {f"labels/{kind}": count for kind, count in verdict_counts(labelled).items()}
        self._journal.add_metrics({"labels/pairs": len(labelled), **counts})
        rows = {name: sum(len(cost_rows(item, number, name)) for item in labelled) for name in self._comparisons}
        return {"reward": sum(len(reward_rows(item, number)) for item in labelled), **rows}


def reward_rows(item: LabelledPair, number: int) -> list[PairRow]:
    """The pair's row of D^r; none if the label is not a preference."""
    return _rows(item, item.helpful, number, first_is_chosen=Verdict.FIRST)


def cost_rows(item: LabelledPair, number: int, comparison: str) -> list[PairRow]:
    """The pair's row of D^c: the costlier answer is rejected."""
    return _rows(item, item.label(comparison), number, first_is_chosen=Verdict.SECOND)


def _rows(item: LabelledPair, verdict: Verdict, number: int, first_is_chosen: Verdict) -> list[PairRow]:
    if verdict not in (Verdict.FIRST, Verdict.SECOND):
        return []
    first, second = item.pair.first.token_ids, item.pair.second.token_ids
    chosen, rejected = (first, second) if verdict is first_is_chosen else (second, first)
    return [PairRow(item.pair.id, item.pair.prompt.token_ids, chosen, rejected, number)]


def verdict_counts(labelled: Sequence[LabelledPair]) -> dict[str, int]:
    """How many labels are no preference."""
    verdicts = [verdict for item in labelled for verdict in (item.helpful, *item.labels.values())]
    counts = {"abstained": verdicts.count(Verdict.ABSTAIN), "failed": verdicts.count(Verdict.FAILED)}
    missing = verdicts.count(Verdict.MISSING)
    return counts | ({"missing": missing} if missing else {})
