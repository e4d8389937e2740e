"""Items about which a judge gives no verdict: they count as unsafe, widen the interval and are not asked for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.preferences import cost_rows, reward_rows
from pddpo_ray.records import HARM, LabelledPair, Measurement, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.theory.estimates.estimate_interval import interval
from tests.support.label_estimates import label_estimate

WORLD = trap_world()
ANSWERS = [WORLD.response(x, y, f"a{x}{y}") for x in range(2) for y in range(4)]
PAIRS = [Pair(f"q{x}", WORLD.response(x, 0, f"f{x}"), WORLD.response(x, 1, f"s{x}")) for x in range(4)]


class Unreadable:
    """The world's labels, but nothing can be read about one answer, nor who is more harmful in one pair."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        found = WORLD.labeller().safety(items, labels_each, seed)
        return [replace(x, labels=(Verdict.FAILED,) * labels_each) if x.response.id == "a11" else x for x in found]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        found = WORLD.labeller().compare(pairs, seed)
        return [replace(item, labels={HARM: Verdict.FAILED}) if item.pair.id == "q2" else item for item in found]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


def drawn(journal: Journal) -> None:
    """What a round has drawn before it asks."""
    journal.add_samples("cost", ANSWERS)
    journal.add_samples("candidate", [answer for pair in PAIRS for answer in (pair.first, pair.second)])
    journal.add_pair_questions(PAIRS)


def controller(journal: Journal, excluded: float) -> FeedbackController:
    return FeedbackController({"cost": Unreadable()}, journal, seed=0, source="judge", excluded=excluded)


def test_what_cannot_be_read_is_counted_and_missing(journal: Journal) -> None:
    for _ in journal.rounds(1):
        drawn(journal)
        feedback = controller(journal, excluded=0.25)
        labelled = feedback.safety(ANSWERS, 3, HARM)
        compared = {item.pair.id: item for item in feedback.compare(PAIRS)}
    assert [item.response.id for item in labelled] == [answer.id for answer in ANSWERS]
    assert labelled[5].labels == (Verdict.MISSING,) * 3
    assert journal.metrics()[1]["labels/missing_cost"] == 3
    assert journal.metrics()[1]["labels/safety"] == 3 * 7
    assert compared["q2"].label(HARM) is Verdict.FAILED
    assert len(reward_rows(compared["q2"], 1)) == 1, "what was read about it counts"
    assert cost_rows(compared["q2"], 1, HARM) == []
    assert len(cost_rows(compared["q1"], 1, HARM)) == 1


def test_beyond_the_share_the_round_stops(journal: Journal) -> None:
    for _ in journal.rounds(1):
        drawn(journal)
        with pytest.raises(RunError, match="3 safety labels for cost are missing from judge"):
            controller(journal, excluded=0.1).safety(ANSWERS, 3, HARM)
        with pytest.raises(RunError, match="1 of 4 pairs for cost have no answer from judge"):
            controller(journal, excluded=0.1).compare(PAIRS)
        break


def test_before_the_first_round_the_same_holds(journal: Journal) -> None:
    """A text that nobody can judge would end every beginning of the run."""
    drawn(journal)
    assert controller(journal, excluded=0.25).safety(ANSWERS, 3, HARM)[5].labels == (Verdict.MISSING,) * 3
    assert len(controller(journal, excluded=0.25).compare(PAIRS)) == len(PAIRS)


class Refusing(Unreadable):
    """A judge whose endpoint refuses some texts for good; `asked` counts its questions about answers."""

    def __init__(self, refused: set[str]) -> None:
        self.refused, self.asked = refused, 0

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        self.asked += len(items)
        found = WORLD.labeller().safety(items, labels_each, seed)
        missing, why = (Verdict.MISSING,) * labels_each, "stopped it by a filter: 400 not this text"
        return [replace(x, labels=missing, reason=why) if x.response.id in self.refused else x for x in found]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        found = WORLD.labeller().compare(pairs, seed)
        return [replace(item, labels={HARM: Verdict.MISSING}) if item.pair.id == "q2" else item for item in found]


def test_a_text_that_is_refused_is_asked_about_once_and_counts_as_unsafe(journal: Journal) -> None:
    """Half of the answers, with no share at all: the share is about what cannot be read."""
    judge = Refusing({answer.id for answer in ANSWERS[::2]})
    for _ in journal.rounds(1):
        drawn(journal)
        feedback = FeedbackController({"cost": judge}, journal, seed=0, source="judge", excluded=0.0)
        labelled = feedback.safety(ANSWERS, 3, HARM)
        compared = {item.pair.id: item for item in feedback.compare(PAIRS)}
    assert judge.asked == len(ANSWERS)
    estimate = label_estimate(labelled, labels_each=3, cost_max=2.0, kind="rate")
    labels = [item.labels for item in labelled]
    unsafe = sum(label is not Verdict.SAFE for own in labels for label in own) / 24
    assert estimate.value == pytest.approx(unsafe)
    assert estimate.missing == pytest.approx(0.5)
    ends, known = interval(estimate), estimate.value - 0.5
    assert ends is not None
    assert ends[0] < known < estimate.value < ends[1]
    assert compared["q2"].label(HARM) is Verdict.MISSING
    assert cost_rows(compared["q2"], 1, HARM) == []


def test_a_judge_that_refuses_everything_ends_the_round_with_its_reason(journal: Journal) -> None:
    judge = Refusing({answer.id for answer in ANSWERS})
    for _ in journal.rounds(1):
        drawn(journal)
        feedback = FeedbackController({"cost": judge}, journal, seed=0, source="judge", excluded=0.5)
        with pytest.raises(RunError, match=r"24 safety labels for cost are missing.*stopped it by a filter: 400"):
            feedback.safety(ANSWERS, 3, HARM)
        assert feedback.unsafe_shares(ANSWERS, 3, "cost", "draws") == [None] * 8, "of a certificate each draw counts"
        break


def test_a_batch_of_draws_reads_its_own_labels_alone(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate asks for hundreds of batches: with all earlier ones read again their time grows as its square."""
    read: list[int] = []
    measurements = journal.measurements

    def counted(*about: Any, **more: Any) -> list[Measurement]:
        found = measurements(*about, **more)
        read.append(len(found))
        return found

    monkeypatch.setattr(journal, "measurements", counted)
    for _ in journal.rounds(1):
        drawn(journal)
        feedback = controller(journal, excluded=0.0)
        batches = [ANSWERS[0:3], ANSWERS[6:8]]
        shares = [feedback.unsafe_shares(batch, 4, "cost", f"{number}") for number, batch in enumerate(batches)]
    assert [len(found) for found in shares] == [3, 2]
    assert read == [12, 8]
