"""Feedback as the methods see it: exactly the labels that the protocol asks for, or an error that names the missing.

A failed or missing label never becomes a number: the labeller is asked again for what it could not read, and what stays
without a label counts as unsafe and widens the interval. Too much of that ends the round with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from pddpo_ray.contracts import EarlyLabeller, Labeller, LateLabeller
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.rows import SAFETY
from pddpo_ray.limits.sources import asked_first
from pddpo_ray.parts.measuring import numbers_of, tables_of
from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.seeds import seed_of

COUNTS = (Verdict.SAFE, Verdict.UNSAFE)
DECISIVE = (Verdict.FIRST, Verdict.SECOND, Verdict.ABSTAIN, Verdict.MISSING)
"""Nothing is asked again after these."""


class FeedbackController:
    """Labels from one labeller per comparison, journalled with their source.

    `labellers` maps the comparison's name to its labeller; that of `HARM` also says what is helpful. `excluded` is the
    share of items that may have no readable label after all attempts: their labels are missing, as are those that the
    labeller refuses for good, and pairs are journalled as failed. Only a source that cannot always be read (a judge)
    gets a share. `models` are the reward and cost models that give labels.
    """

    def __init__(
        self,
        labellers: Mapping[str, Labeller],
        journal: Journal,
        *,
        seed: int,
        source: str = "world",
        attempts: int = 3,
        excluded: float = 0.0,
        models: ScoredLabeller | None = None,
    ) -> None:
        self.models = models
        self._labellers = dict(labellers)
        self._journal = journal
        self._seed = seed
        self._source = source
        self._attempts = attempts
        self._excluded_share = excluded

    def prepare(self) -> None:
        """What labels is made ready before round 1; most labellers are."""
        if self.models is not None:
            self.models.prepare()

    def open_safety(self, items: Sequence[Response], labels_each: int) -> None:
        """Sends every limit's safety questions to its labeller, if that one can begin before the run waits. `safety`
        with the same items collects the labels. Without this call they are the same, only later."""
        for name, labeller in self._labellers.items():
            if isinstance(labeller, EarlyLabeller) and not self._journal.is_finished(self._safety_phase(name)):
                labeller.open_safety(items, labels_each, self._safety_seed(name))

    def safety_arrived(self, items: Sequence[Response], labels_each: int) -> bool:
        """Whether all labellers that can tell have the labels that `safety` collects; False where none can."""
        return self._is_ready(lambda key, labeller: labeller.safety_arrived(items, labels_each, self._safety_seed(key)))

    def open_comparisons(self, pairs: Sequence[Pair]) -> None:
        """Sends the questions that `compare` collects to labellers that can begin before the run waits."""
        for name, labeller in self._labellers.items():
            if isinstance(labeller, LateLabeller) and not self._journal.is_finished("compare"):
                labeller.open_compare(pairs, self._compare_seed(name))

    def comparisons_arrived(self, pairs: Sequence[Pair]) -> bool:
        """As `safety_arrived`, of comparisons."""
        return self._is_ready(lambda key, labeller: labeller.comparisons_arrived(pairs, self._compare_seed(key)))

    def _is_ready(self, has_labels: Callable[[str, LateLabeller], bool]) -> bool:
        late = {name: labeller for name, labeller in self._labellers.items() if isinstance(labeller, LateLabeller)}
        return bool(late) and all(has_labels(name, labeller) for name, labeller in late.items())

    def collect_safety(self, items: Sequence[Response], labels_each: int, name: str) -> None:
        """Journals exactly `labels_each` safe-or-unsafe labels of every item under the cost of this name. Raises
        RunError that names the items without labels."""
        self._journal.once(self._safety_phase(name), lambda: self._add_safety_labels(items, labels_each, name))

    def safety(self, items: Sequence[Response], labels_each: int, name: str) -> list[SafetyLabels]:
        """The same, read back."""
        self.collect_safety(items, labels_each, name)
        return self._journal.safety(self._journal.round, name)

    def unsafe_shares(
        self, items: Sequence[Response], labels_each: int, constraint: str, batch: str
    ) -> list[float | None]:
        """Unsafe share of exactly `labels_each` labels of every item, in order; one of several batches of a round.

        None where the labeller gave none; RunError where nothing that it said about any of them could be read.
        """
        phase = f"safety-{constraint}-{batch}"
        self._journal.once(phase, lambda: self._add_safety_labels(items, labels_each, constraint, may_lack=True))
        ids = [item.id for item in items]
        # of this batch alone: a round has as many labels of others as it had batches
        records = self._journal.measurements(self._journal.round, SAFETY, constraint, ids)
        return numbers_of(tables_of(records, [constraint], ids).values[:, 0])

    def compare(self, pairs: Sequence[Pair]) -> list[LabelledPair]:
        """One label of every pair, for helpfulness and for every constraint, in order. Abstaining is one.
        Raises RunError that names the pairs without a label."""
        self._journal.once("compare", lambda: self._collect_comparisons(pairs))
        return [entry.labelled for entry in self._journal.pairs(self._journal.round)]

    def _safety_phase(self, name: str) -> str:
        return "safety" if name == HARM else f"safety-{name}"

    def _safety_seed(self, name: str, attempt: int = 0) -> int:
        return seed_of(self._seed, self._journal.round, "safety", name, attempt)

    def _compare_seed(self, name: str, attempt: int = 0) -> int:
        return seed_of(self._seed, self._journal.round, "compare", name, attempt)

    def _add_safety_labels(
        self, items: Sequence[Response], labels_each: int, name: str, *, may_lack: bool = False
    ) -> dict[str, list[str]]:
        self._journal.add_safety(self._label_items(items, labels_each, name, may_lack), self._source)
        return {"ids": [item.id for item in items]}

    def _label_items(
        self, items: Sequence[Response], labels_each: int, name: str, may_lack: bool
    ) -> list[SafetyLabels]:
        """Labels of every item, MISSING where there is none, which are counted."""
        counted = self._ask_for_safety(items, labels_each, name, may_lack=may_lack)
        labelled = []
        for item in items:
            labels, people = zip(*counted[item.id], strict=True) if counted[item.id] else ((), ())
            missing = (Verdict.MISSING,) * (labels_each - len(labels))
            labelled.append(SafetyLabels(item, (*labels, *missing), name, people=people))
        label_count = sum(map(len, counted.values()))
        if missing_labels := labels_each * len(items) - label_count:
            self._journal.add_metrics({f"labels/missing_{name}": missing_labels})
        self._journal.add_metrics({"labels/safety" if name == HARM else f"labels/{name}": label_count})
        return labelled

    def _ask_for_safety(
        self, items: Sequence[Response], labels_each: int, name: str, *, may_lack: bool
    ) -> dict[str, list[tuple[Verdict, str | None]]]:
        """Labels by item with who gave them, as many as there are after all attempts. Raises RunError if more items
        lack labels than may, apart from those whose labels are not asked for again, or all do."""
        counted: dict[str, list[tuple[Verdict, str | None]]] = {item.id: [] for item in items}
        open_items, missing_ids, reason = list(items), set[str](), ""
        for attempt in range(self._attempts):
            for labels in self._labellers[name].safety(open_items, labels_each, self._safety_seed(name, attempt)):
                entries = counted.get(labels.response.id)
                if entries is None:
                    raise RunError(f"labeller {self._source} labelled {labels.response.id}, which was not asked")
                votes = zip_longest(labels.labels, labels.people)
                entries += [(label, person) for label, person in votes if label in COUNTS][: labels_each - len(entries)]
                reason = labels.reason or reason
                if Verdict.MISSING in labels.labels:
                    missing_ids.add(labels.response.id)
            open_items = [item for item in items if len(counted[item.id]) < labels_each and item.id not in missing_ids]
            if not open_items:
                break
        may_stay = len(open_items) <= self._excluded_share * len(items) or (may_lack and len(open_items) < len(items))
        # what refuses everything is no source of labels; a person's decision gives no reason
        if may_stay and (may_lack or not reason or any(counted.values())):
            return counted
        short_items = [item for item in items if len(counted[item.id]) < labels_each]
        missing = sum(labels_each - len(counted[item.id]) for item in short_items)
        raise RunError(
            f"round {self._journal.round}: {missing} safety labels for {name} are missing from {self._source}"
            f" after {self._attempts} attempts, on {_names_text([item.id for item in short_items])}"
            f"{f' ({self._source} {reason})' if reason else ''}: correct that, then resume"
        )

    def _collect_comparisons(self, pairs: Sequence[Pair]) -> int:
        table = {name: self._ask_to_compare(pairs, name) for name in self._labellers}
        labelled = [
            LabelledPair(
                pair, table[HARM][pair.id].helpful, {name: row[pair.id].labels[name] for name, row in table.items()}
            )
            for pair in pairs
        ]
        self._journal.add_pair_labels(labelled, self._source)
        return len(labelled)

    def _ask_to_compare(self, pairs: Sequence[Pair], name: str) -> dict[str, LabelledPair]:
        answers: dict[str, LabelledPair] = {}
        items: dict[str, LabelledPair] = {}
        open_pairs = list(pairs)
        pair_ids = {pair.id for pair in pairs}
        for attempt in range(self._attempts):
            for item in self._labellers[name].compare(open_pairs, self._compare_seed(name, attempt)):
                if item.pair.id not in pair_ids:
                    raise RunError(f"labeller {self._source} answered pair {item.pair.id}, which was not asked")
                if name not in item.labels:
                    raise RunError(
                        f"labeller {self._source} did not compare pair {item.pair.id} by {name}: a LabelledPair needs"
                        f' labels={{"{name}": verdict}}'
                    )
                items[item.pair.id] = item
                if all(label in DECISIVE for label in (item.helpful, item.labels[name])):
                    answers[item.pair.id] = item
            open_pairs = [pair for pair in pairs if pair.id not in answers]
            if not open_pairs:
                return answers
        if len(open_pairs) <= self._excluded_share * len(pairs):
            # What one question said stays; the other is a failed label, which no training row is made of.
            failures = {pair.id: LabelledPair(pair, Verdict.FAILED, {name: Verdict.FAILED}) for pair in open_pairs}
            return failures | {name: item for name, item in items.items() if name in failures} | answers
        why = next((f" ({self._source} {items[pair.id].reason})" for pair in open_pairs if items[pair.id].reason), "")
        raise RunError(
            f"round {self._journal.round}: {len(open_pairs)} of {len(pairs)} pairs for {name} have no answer from"
            f" {self._source} after {self._attempts} attempts: {_names_text([pair.id for pair in open_pairs])}{why}"
        )


def _names_text(names: Sequence[str], shown: int = 5) -> str:
    surplus = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {surplus} more" if surplus > 0 else "")


# --- mixed feedback: people compare the pairs of which a model is least sure and a random share, the model the rest ---
#
# A wrong model costs accuracy of the fits, never a limit: people audit limits separately (`audited_by`).


MODEL, PEOPLE = "model", "people"


class MixedComparisons(FeedbackController):
    """Comparisons by a model and by people, who are asked about `unsure` pairs and `random` others of a round."""

    models: ScoredLabeller

    def __init__(
        self, people: Labeller, models: ScoredLabeller, journal: Journal, *, unsure: int, random: int, seed: int
    ) -> None:
        super().__init__({HARM: people}, journal, seed=seed, source=PEOPLE, models=models)
        self._unsure_count, self._pair_count = unsure, unsure + random

    def open_comparisons(self, pairs: Sequence[Pair]) -> None:
        super().open_comparisons(self._pairs_for_people(pairs))

    def comparisons_arrived(self, pairs: Sequence[Pair]) -> bool:
        return super().comparisons_arrived(self._pairs_for_people(pairs))

    def _collect_comparisons(self, pairs: Sequence[Pair]) -> int:
        """People's answers where they are asked, the model's for all other pairs; the journal tells them apart."""
        shown_pairs = self._pairs_for_people(pairs)
        model_pairs = [pair for pair in pairs if pair.id not in {item.id for item in shown_pairs}]
        answers = self._ask_to_compare(shown_pairs, HARM) if shown_pairs else {}
        labels = (
            self.models.compare(model_pairs, seed_of(self._seed, self._journal.round, "compare-model"))
            if model_pairs
            else []
        )
        self._journal.add_pair_labels([answers[pair.id] for pair in shown_pairs], PEOPLE)
        self._journal.add_pair_labels(labels, MODEL)
        self._journal.add_metrics({"mixed/pairs_asked": float(len(shown_pairs))})
        return len(pairs)

    def _pairs_for_people(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs that people are asked about. A model's certainty of a pair is the smaller of its differences
        in reward and in cost."""
        if not pairs:
            return []
        sides = [pair.first for pair in pairs] + [pair.second for pair in pairs]
        scores = np.stack([self.models.rewards(sides), self.models.costs(sides)]).reshape(2, 2, len(pairs))
        margins = np.abs(scores[:, 0] - scores[:, 1]).min(axis=0).tolist()
        seed = seed_of(self._seed, self._journal.round, "screen-pairs")
        return [pairs[index] for index in asked_first("pairs", margins, self._unsure_count, self._pair_count, seed)]
