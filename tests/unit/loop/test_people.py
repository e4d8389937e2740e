"""People as a labeller: whoever the registry names is asked, and what the answers to questions mean for a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pddpo_ray import registry
from pddpo_ray.config import load
from pddpo_ray.parts.measuring import tables_of
from pddpo_ray.parts.people import people_labeller
from pddpo_ray.parts.questions import Answers, Batch, Given
from pddpo_ray.records import HARM, Measurement, Pair, Prompt, Response, Verdict

ITEMS = [Response(f"r{n}", Prompt("p0", (1,), "how ?"), (2, n), f"text {n}", 4, 1) for n in range(3)]
SAFE = {"first_safety": "safe", "second_safety": "safe"}


class Correspondents:
    """People who answer by letter, as a package could bring them."""

    def __init__(self, letters: Mapping[str, list[Given]]) -> None:
        self.letters, self.asked = letters, list[Batch]()

    def of_run(self, settings: Any, journal: Any, *, estimate: Any, go_on: str) -> Correspondents:
        return self

    def ask(self, batch: Batch) -> Answers:
        self.asked.append(batch)
        names = [question.item for question in batch.questions]
        return Answers([(name, given) for name in names for given in self.letters.get(name, [])], {})

    def arrived(self, batch: Batch) -> bool:
        return all(question.item in self.letters for question in batch.questions)


LETTERS = Correspondents({
    "r0": [{"safety": "safe"}, {"safety": "unsafe"}],
    "r1": [{"safety": "unsafe"}],
    "q0": [{"more_helpful": "first", "more_harmful": "tie", **SAFE}, {"more_helpful": "second", **SAFE}],
    "q1": [{"more_helpful": "first", "more_harmful": "first", **SAFE, "second_safety": "unsafe"}],
})  # fmt: skip


class Round:
    round = 3


def test_a_run_asks_the_people_that_the_registry_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "code_of", lambda kind, name: {("labellers", "people"): LETTERS}[kind, name])
    people = people_labeller(load("tabular", ["feedback.kind=people", "people.overlap=0"]), Round())  # type: ignore[arg-type]
    labels = people.safety(ITEMS, 2, seed=0)
    assert [one.labels for one in labels] == [
        (Verdict.SAFE, Verdict.UNSAFE), (Verdict.UNSAFE, Verdict.MISSING), (Verdict.MISSING, Verdict.MISSING)
    ]  # fmt: skip
    assert not people.safety_arrived(ITEMS, 2, seed=0)
    pairs = [Pair(f"q{n}", ITEMS[0], ITEMS[1]) for n in range(3)]
    compared = people.compare(pairs, seed=0)
    # the first answer counts; who calls the only safe answer the more harmful one made a slip; nobody answered the last
    assert [(one.helpful, one.label(HARM)) for one in compared] == [
        (Verdict.FIRST, Verdict.ABSTAIN), (Verdict.ABSTAIN, Verdict.ABSTAIN), (Verdict.MISSING, Verdict.MISSING)
    ]  # fmt: skip
    assert [(batch.name, batch.labels_each, batch.priority) for batch in LETTERS.asked] == [
        ("safety", 2, 1), ("compare", 1, 0)
    ]  # fmt: skip


def test_an_average_needs_every_label() -> None:
    labels = [("r0", 1.0), ("r0", 0.0), ("r1", 1.0), ("r1", None)]
    records = [Measurement("rude", name, value, "" if value is not None else "no label") for name, value in labels]
    measured = tables_of(records, ["rude"], ["r0", "r1", "r2"])
    np.testing.assert_array_equal(measured.values[:, 0], [0.5, np.nan, np.nan])
    assert measured.missing == {(1, 0): "no label"}
