"""One rule says which answers are learned from; training, the report's numbers and the export follow it."""

from __future__ import annotations

import itertools

import pytest

from pddpo_lab.simulated_people import Manner, decide
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.exchange import contradictory, examples
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.parts.questions import contradicts_itself
from pddpo_ray.records import HARM, Pair, Prompt, Response, Verdict
from tests.support.annotation_queue import FreshQueue, people_of


def test_an_answer_contradicts_itself_where_the_only_safe_one_is_called_the_more_harmful() -> None:
    """All 36 answers to a pair's questions about harm, safety and helpfulness, against the sentence above."""
    slips = []
    for helpful, harmful, first, second in itertools.product(
        ("first", "second", "tie"), ("first", "second", "tie"), ("safe", "unsafe"), ("safe", "unsafe")
    ):
        given = {"more_helpful": helpful, "more_harmful": harmful, "first_safety": first, "second_safety": second}
        safe = [name for name in ("first", "second") if given[f"{name}_safety"] == "safe"]
        assert contradicts_itself(given) == (safe == [harmful])
        slips += [(harmful, first, second)] * contradicts_itself(given)
    assert sorted(set(slips)) == [("first", "safe", "unsafe"), ("second", "unsafe", "safe")]
    assert len(slips) == 2 * 3
    assert not contradicts_itself({"safety": "unsafe"})


@pytest.mark.slow
def test_what_contradicts_itself_is_neither_trained_on_nor_exported_and_is_counted(queue: FreshQueue) -> None:
    prompt = Prompt("p0", (1, 2), "how do i sleep ?")
    pairs = [
        Pair(f"q{n}", *(Response(f"{side}{n}", prompt, (3,), f"{side} {n}", 4, 1) for side in "ab")) for n in range(40)
    ]
    ana = queue.person("ana")
    numbers: dict[str, float] = {}
    said: dict[str, dict[str, str]] = {}

    def answer(seconds: float) -> None:
        """Harmful is what begins with b; in every fourth pair the safety buttons are mixed up."""
        queue.wait(seconds)
        lease = queue.leases.lease(ana)
        if isinstance(lease, Lease):
            harmful, other = ("left", "right") if lease.left.startswith("b") else ("right", "left")
            number = int(lease.left.split()[1])
            unsafe, safe = (other, harmful) if number % 4 == 0 else (harmful, other)
            given = {"more_helpful": other, "more_harmful": harmful}
            given |= {f"{unsafe}_safety": "unsafe", f"{safe}_safety": "safe"}
            queue.answers.answer(ana, f"key-{number:05d}", lease.id, Submission("label", given))
            said[f"q{number}"] = given

    people = people_of(queue, Waiting(1000.0),
        record=numbers.update, clock=lambda: queue.now_ms, sleep=answer,
    )  # fmt: skip
    labelled = people.compare(pairs, seed=0)
    assert len(said) == 40
    for item in labelled:
        slip = int(item.pair.id[1:]) % 4 == 0
        expected = (Verdict.ABSTAIN,) * 2 if slip else (Verdict.FIRST, Verdict.SECOND)
        assert (item.helpful, item.label(HARM)) == expected, item.pair.id
    assert numbers["people/compare_contradictory"] == 10
    assert numbers["people/compare_labels"] == 40
    assert contradictory(queue.store) == 10
    trained = {item.pair.id for item in labelled if item.label(HARM) is not Verdict.ABSTAIN}
    assert {str(row.id).rpartition("-")[0] for row in examples(queue.store)} == trained


@pytest.mark.parametrize("error", [0.0, 0.3])
def test_simulated_people_who_err_contradict_themselves_and_careful_ones_do_not(error: float) -> None:
    """With scores far from the boundary nothing but an error can make a slip: 0 of 400, and some of 400."""
    import numpy as np

    task = {"kind": "pair", "prompt": {"text": "p"}, "left": {"text": "good"}, "right": {"text": "bad"}}
    rng = np.random.default_rng([7, 1])
    slips = 0
    for _ in range(400):
        shown = decide(task, Manner(error=error), lambda _, text: (0.0, -50.0 if text == "good" else 50.0), rng)
        stored = {key.replace("left", "first").replace("right", "second"): value for key, value in shown.items()}
        stored["more_harmful"] = {"left": "first", "right": "second"}[shown["more_harmful"]]
        slips += contradicts_itself(stored)
    # harm and both safety labels wrong or right alike: error^1 (1-error)^2 + (1-error) error^2 = error (1 - error)
    expected = 400 * error * (1 - error)
    assert abs(slips - expected) <= 4 * max(np.sqrt(expected), 0)
