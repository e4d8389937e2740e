"""What the controller of limits keeps of a round's measures and says of them: audits, windows, seeds, bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pddpo_ray.journal import Journal
from pddpo_ray.limits.reading import FEEDBACK, Asking, stated_limit
from pddpo_ray.parts.dual_step import DualController, LocalDual
from pddpo_ray.parts.held_limit import OUTSIDE, UNSAFE_RATE, HeldLimit
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.limits import ANSWERS, PAIRS, REFERENCE, LimitsController
from pddpo_ray.parts.measuring import MACHINE
from pddpo_ray.records import (
    HARM,
    MeasuredValues,
    Measurement,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.theory.intervals import bounded_interval
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state

PROMPTS = [Prompt(f"p{number}", (number,), f"question {number} ?") for number in range(2)]
EVERYWHERE = {prompt.token_ids: 1.0 for prompt in PROMPTS}
NAN = float("nan")
LENGTH = {"mean": {"function": "my:words"}, "at_most": 1, "bounds": [0, 2]}
RUDE = {"rate": {"world": "cost"}, "at_most": "50 %", "labels_each": 1}
LIMITS = [HeldLimit(stated_limit("length", LENGTH, "recipe"), 2.0, EVERYWHERE),
          HeldLimit(stated_limit("rude", RUDE, "recipe"), 1.0, EVERYWHERE)]  # fmt: skip
"""Both limits have sources of their own."""


class Auditors:
    """Two people's words about the rate of the first two answers, each asked with the chance 1/2: not rude."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.seeds: list[int] = []

    def asked(self, *, for_estimates: bool) -> bool:
        return for_estimates

    def open_round(self, measured: Any, answers: Any, references: Any, phase: str, seed: int) -> None:
        self.opened.append(seed)

    def of_round(self, measured: Any, answers: Any, references: Any, phase: str, seed: int) -> list[Measurement]:
        self.seeds.append(seed)
        return [Measurement("rude", one.id, 0.0, source="people", opinion=1, chance=0.5) for one in answers[:2]]


class Fits:
    def __init__(self) -> None:
        self.rows: list[list[PairRow]] = []

    def fit(self, objective: Any, pairs: Sequence[PairRow]) -> PolicyVersion:
        self.rows.append(list(pairs))
        return PolicyVersion(2, "cost-1", "none", "none")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


def answers(round_: int) -> list[Response]:
    """Two answers to each prompt, drawn together."""
    return [Response(f"a{round_}-{n}", PROMPTS[n // 2], (round_, n), f"text {n}", 2, 0) for n in range(4)]


def drawn(journal: Journal, round_: int) -> list[Response]:
    """The same, in the journal."""
    journal.add_samples("cost", answers(round_))
    return answers(round_)


def controller(
    journal: Journal, costs: Sequence[Sequence[float]], limits: Sequence[HeldLimit] = LIMITS, **options: Any
) -> LimitsController:
    def measure(asked: Sequence[Response], seed: int, references: Sequence[Response | None] = (), /) -> MeasuredValues:
        measured = MeasuredValues.nothing(len(costs), len(limits))
        measured.values[:] = costs
        return measured

    about: dict[str, Any] = {"rho": 1.0, "rule": ProjectedFixed(1, 1.0, 1.0), "limit": 0.5}
    state = DualState(tuple(limit_state(one.name, first=1.0, **about) for one in limits))
    given: dict[str, Any] = {
        "beta": 1.0, "by_covariance": True, "seed": 3, "due": None, "drift": None, "reference": None,
        "log_probs": lambda policy, asked: np.zeros(len(asked)), "feedback": None, **options,
    }  # fmt: skip
    return LimitsController(journal, limits, measure, DualController(LocalDual(state), journal), **given)


def test_of_an_audited_rate_a_machines_word_about_what_people_did_not_see_may_be_missing(journal: Journal) -> None:
    """Costs 0, 0, 1, 1: people say 0 of the first two, so that the rate is .5 and may be 0; the mean is all known."""
    people = Auditors()
    measured = controller(journal, [[1, 0], [1, 0], [1, 1], [1, 1]], people=people)
    for number in journal.rounds(2):
        measured.open(drawn(journal, number))
        length, rude = measured.estimates(answers(number))
        assert (rude.value, rude.missing, rude.responses) == (0.5, 0.5, 2)
        assert (length.value, length.missing, length.responses) == (1.0, 0.0, 4)
        assert (length.bounds, length.low, length.high) == ((0.0, 2.0), *bounded_interval([1, 1], 0, 2))
        assert (rude.bounds, rude.low, rude.high) == (None, None, None), "people's labels say how sure a rate is"
        audited = [one for one in journal.measurements(number, ANSWERS) if one.chance is not None]
        assert [(one.answer, one.limit, one.value, one.chance, one.source) for one in audited] == [
            (f"a{number}-{row}", "rude", 0.0, 0.5, "people") for row in range(2)
        ]
        assert journal.phases(number, f"{MACHINE}{ANSWERS}"), "what machines measured is kept before people are asked"
    assert people.seeds == people.opened
    assert len(set(people.seeds)) == 2, "other answers are audited in every round"


def test_what_was_not_asked_is_no_failure_and_the_bounds_are_inside(journal: Journal) -> None:
    measured = controller(journal, [[2, 0], [NAN, 0], [2, 1], [NAN, 1]])
    for _ in journal.rounds(1):
        length, _ = measured.estimates(drawn(journal, 1))
    assert (length.value, length.responses) == (2.0, 2)
    assert not [name for name in journal.metrics()[1] if name.endswith((OUTSIDE, UNSAFE_RATE))]


def test_a_round_without_measures_leaves_a_gap_in_the_window(journal: Journal) -> None:
    measured = controller(journal, [[1, 0], [1, 0], [1, 1], [2, 1]], window=8)
    for number in journal.rounds(3):
        if number > 1:
            length, _ = measured.estimates(drawn(journal, number))
            assert (length.value, length.responses) == (1.25, 4 * (number - 1))


class UnsafeInEvenRounds:
    """A labeller by the round that an answer's tokens name."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        said = {0: Verdict.UNSAFE, 1: Verdict.SAFE}
        return [SafetyLabels(one, (said[one.token_ids[0] % 2],) * labels_each) for one in items]

    def compare(self, pairs: Any, seed: int) -> list[Any]:
        raise AssertionError


def by_labels(journal: Journal, window: int | None) -> LimitsController:
    """One rate of which feedback gives two labels an answer."""
    stated = stated_limit("cost", {"rate": {"world": "cost"}, "at_most": "50 %", "labels_each": 2}, "recipe")
    limit = HeldLimit(replace(stated, source=replace(stated.source, kind=FEEDBACK, labeller="world")), 1.0, EVERYWHERE)
    state = DualState((limit_state("cost", rho=1.0, first=1.0, rule=ProjectedFixed(1, 1.0, 1.0), limit=0.5),))
    nothing: Any = None
    return LimitsController(
        journal, [limit], nothing, DualController(LocalDual(state), journal), beta=1.0, by_covariance=True,
        drift=nothing, log_probs=nothing, reference=nothing, seed=3, window=window,
        feedback=FeedbackController({HARM: UnsafeInEvenRounds()}, journal, seed=0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("window", "unsafe", "of"),
    [(None, 0, 4), (1, 0, 1), (4, 0, 4), (5, 1, 5), (7, 3, 7), (12, 4, 12), (99, 4, 12)],
)
def test_a_window_of_labels_reaches_back_as_far_as_it_must_and_never_before_round_1(
    journal: Journal, window: int | None, unsafe: int, of: int
) -> None:
    """Also after a restart. Of three rounds of four answers the second has unsafe ones alone."""
    measured = by_labels(journal, window)
    for number in journal.rounds(3):
        if number == 3:
            measured = by_labels(journal, window)
        [found] = measured.estimates(drawn(journal, number))
    assert found.value == pytest.approx(unsafe / of)
    assert found.responses == of
    assert (found.constraint, found.mode, found.labels_each, found.missing) == ("cost", "unsafe_rate", 2, 0.0)


def test_an_answer_that_the_stages_policy_cannot_write_leaves_the_others_their_learned_costs(journal: Journal) -> None:
    impossible = np.array([-np.inf, 0.0, 0.0, 0.0])
    measured = controller(
        journal, [[1, 0], [1, 0], [1, 1], [1, 1]],
        log_probs=lambda policy, asked: impossible if policy.number == 2 else np.zeros(len(asked)),
    )  # fmt: skip
    for number in journal.rounds(1):
        measured.stages(Fits(), None, PolicyVersion(1, "reward-1", "none", "none"))  # type: ignore[arg-type]
        _, rude = measured.estimates(drawn(journal, number))
    assert (rude.value, rude.missing) == (0.5, 0.0)


@pytest.mark.parametrize(("newest", "pairs"), [(False, [0, 2, 12]), (True, [0, 2, 2])])
def test_older_answers_to_a_prompt_that_is_asked_again_teach_only_where_all_do(
    journal: Journal, newest: bool, pairs: list[int]
) -> None:
    """Two answers to each of two prompts a round: one pair of a prompt, or the six of both rounds."""
    trainer, policy = Fits(), PolicyVersion(1, "reward-1", "none", "none")
    preferences: Any = None
    measured = controller(journal, [[0, 0], [1, 0], [0, 1], [1, 1]], newest=newest)
    for number in journal.rounds(3):
        measured.stages(cast(Any, trainer), preferences, policy)
        measured.open(drawn(journal, number))
        measured.estimates(answers(number))
    assert [len(rows) for rows in trainer.rows] == pairs
    authors = {token for row in trainer.rows[2] for token in (row.chosen[0], row.rejected[0])}
    assert authors == ({2} if newest else {1, 2})


def test_what_a_phase_measured_is_its_own(journal: Journal) -> None:
    """Answers of the round that are explored pairs too are measured for the estimates as well."""
    measured = controller(journal, [[1, 0], [1, 0], [1, 1], [1, 1]])
    for _ in journal.rounds(1):
        first, second, third, fourth = drawn(journal, 1)
        measured.measure_pairs([Pair("one", first, second), Pair("two", third, fourth)])
        _, rude = measured.estimates(answers(1))
    assert (rude.value, rude.missing, rude.responses) == (0.5, 0.0, 4)


@pytest.mark.parametrize(
    ("source", "budget", "phases"),
    [
        ({"world": "reward"}, None, [PAIRS, ANSWERS]),
        ({"people": {}}, None, [ANSWERS]),
        ({"people": {}}, 4, [PAIRS, ANSWERS]),
    ],
)
def test_wins_of_pairs_are_judged_by_machines_and_by_people_on_a_budget(
    journal: Journal, source: dict[str, Any], budget: int | None, phases: list[str]
) -> None:
    asked_for: list[str] = []

    def reference(purpose: str, prompts: Sequence[Prompt]) -> list[Response]:
        asked_for.append(purpose.removeprefix(REFERENCE))
        return [Response(f"{purpose}-{n}", prompt, (9,), "", 1, 0) for n, prompt in enumerate(prompts)]

    stated = stated_limit("wins", {"rate": source, "versus": "reference", "at_least": "50 %"}, "recipe")
    limit = HeldLimit(replace(stated, asking=Asking(budget)), 1.0, EVERYWHERE)
    measured = controller(journal, [[1], [0], [1], [0]], limits=[limit], reference=reference)
    for _ in journal.rounds(1):
        first, second, third, fourth = drawn(journal, 1)
        measured.measure_pairs([Pair("one", first, second), Pair("two", third, fourth)])
        measured.estimates(answers(1))
    assert asked_for == phases
