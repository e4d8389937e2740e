"""What the dual and the exploration part write down and read back, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.methods.loss_bonus import LossBonus, LossBonuses
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.dual_step import DualController, Estimates, LocalDual, journalled_estimates
from pddpo_ray.parts.exploring import ExplorationController
from pddpo_ray.records import (
    HARM,
    CandidateSet,
    CostEstimate,
    LabelledPair,
    Pair,
    PairRow,
    Response,
    Verdict,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, ascend, limit_state

WORLD = trap_world()
ANSWERS = [WORLD.response(x, y, f"a{x}{y}") for x in range(3) for y in range(4)]
PAIRS = [Pair(f"x{i}", ANSWERS[2 * i], ANSWERS[2 * i + 1]) for i in range(6)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={"dual": {"cost_max": 2.0}}) as opened:
        opened.add_samples("candidate", ANSWERS)
        yield opened


def two() -> DualState:
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0, step=9.0)
    return DualState(tuple(limit_state(name, rho=rho, rule=rule) for name, rho in (("harm", 1.0), ("length", 3.0))))


def estimate(value: float, name: str) -> CostEstimate:
    return CostEstimate(value, 0.1, 9, 5, constraint=name, within_variance=0.25, cost_max=2.0)


def test_a_step_of_all_limits_is_one_phase_with_each_ones_metrics_and_message(journal: Journal) -> None:
    dual = DualController(LocalDual(two()), journal)
    state = two()
    for number in journal.rounds(4):
        assert dual.multiplier == dual.multipliers["harm"]
        both = [estimate(value, name) for name, value in (("harm", 0.5), ("length", 0.25))]
        multipliers, following = dual.multipliers, dual.step(both)
        (payload,) = (entry.payload for entry in journal.phases(number, "dual"))
        assert (payload["moved"], payload["covariance"]) == ([], None)
        for asked, value in zip(both, (0.5, 0.25), strict=True):
            name = asked.constraint
            state, step = ascend(state, asked)
            assert following[name] == step.multiplier_after
            assert dual.multipliers[name] == multipliers[name] == step.multiplier_before
            prefix = "" if name == "harm" else "length/"
            ends = interval(asked)
            assert ends is not None
            told = {
                "dual/multiplier": step.multiplier_before, "dual/next": step.multiplier_after, "dual/eta": step.eta,
                "cost/estimate": value, "cost/standard_error": 0.1, "cost/low": ends[0], "cost/high": ends[1],
            }  # fmt: skip
            metrics = journal.metrics()[number]
            assert {key: metrics[prefix + key] for key in told} == told
            assert payload["limits"][name] == {
                "multiplier": step.multiplier_after, "message": step.message, "within_variance": 0.25, "rounds_late": 0,
            }  # fmt: skip
        if number < 3:
            assert dual.message is None
    harm, length = (dual.message or "").split("; ")
    assert harm.startswith("harm: the multiplier sits at its upper end 2 for 4 rounds")
    assert length.startswith("length: the multiplier sits at its upper end 6 for 3 rounds")
    steps = journal.dual_steps()
    assert [(step.round, step.constraint, step.eta) for step in steps[:2]] == [(1, "harm", 9.0), (1, "length", 9.0)]
    assert steps[0].estimate == replace(estimate(0.5, "harm"), within_variance=None)


def test_an_observed_cost_is_journalled_at_the_multiplier_that_it_is_told(journal: Journal) -> None:
    dual = DualController(LocalDual(two()), journal)
    asked: tuple[dict[str, float], ...] = ({}, {"multiplier": 0.0}, {"multiplier": 0.25, "following": 0.0})
    expected = [(1.0, 3.0, 1.0, 3.0), (0.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.0, 0.0)]
    for number, given in zip(journal.rounds(3), asked, strict=True):
        dual.observe([estimate(0.5, name) for name in ("harm", "length")], **given)
        told = journal.metrics()[number]
        names = ("dual/multiplier", "length/dual/multiplier", "dual/next", "length/dual/next")
        assert tuple(told[name] for name in names) == expected[number - 1]
        assert told["dual/eta"] == 0.0
        assert dual.multipliers == {"harm": 1.0, "length": 3.0}
    payloads = [entry.payload for entry in journal.phases(like="dual%")]
    told_of = [one for payload in payloads for one in payload["limits"].values()]
    assert {(one["message"], one["within_variance"]) for one in told_of} == {(None, 0.25)}
    assert all(payload["observed"] for payload in payloads)
    assert journalled_estimates(journal) == []
    assert dual.message is None


def test_multipliers_of_any_round_are_known_whatever_was_stepped_since() -> None:
    owner = LocalDual(two())
    taken = [
        Estimates(number, (estimate(0.05, "harm"),), held={"harm": "it waits"} if number < 3 else {})
        for number in (1, 2, 3, 4)
    ]
    for number, estimates in enumerate(taken, 1):
        (step,) = owner.step(estimates).steps
        assert owner.step(Estimates(number, (estimate(0.9, "harm"),))).steps == (step,)
        assert (step.eta, step.message is None) == ((0.0, False) if number < 3 else (9.0, True))
    found = [owner.multipliers(number)["harm"] for number in range(6)]
    assert found == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.45, 1.9])
    assert [owner.multipliers(number)["length"] for number in (1, 5)] == [3.0, 3.0]
    again = LocalDual(two())
    again.restore(taken)
    assert [again.multipliers(number) for number in range(6)] == [owner.multipliers(number) for number in range(6)]


def test_steps_of_an_older_version_are_refused_in_one_line(journal: Journal) -> None:
    for _ in journal.rounds(1):
        journal.once(
            "dual", lambda: {"multiplier": 1.0, "message": None, "constraint": "harm", "within_variance": None}
        )
    with pytest.raises(UserError, match="begun with an older version") as refused:
        DualController(LocalDual(two()), journal)
    assert "\n" not in str(refused.value)


class Chooser:
    """Chooses every second answer against its neighbour; keeps what it is told."""

    def __init__(self) -> None:
        self.met: list[dict[str, list[str]]] = []
        self.updates: list[list[Pair]] = []
        self.selected: list[tuple[int, int, float]] = []
        self.learned: list[list[str]] = []
        self.metrics = {"explore/tau": 0.5, "explore/pairs": 99.0}

    def meet(self, baseline: Mapping[str, Sequence[Response]]) -> None:
        self.met.append({prompt: [answer.id for answer in answers] for prompt, answers in baseline.items()})

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]:
        return [Pair("any", one.responses[0], one.responses[1]) for one in candidates]

    def select(self, pairs: Sequence[Pair], keep: int, random_share: float) -> list[Pair]:
        self.selected.append((len(pairs), keep, random_share))
        return list(pairs)[1 : 1 + keep]

    def update(self, pairs: Sequence[Pair]) -> None:
        self.updates.append(list(pairs))

    def learn(self, labelled: Callable[[], Sequence[LabelledPair]]) -> None:
        self.learned.append([item.pair.id for item in labelled()])

    def bonuses(self, responses: Sequence[Response]) -> tuple[np.ndarray, np.ndarray]:
        reward = np.array([10.0 * r.prompt.token_ids[0] + r.token_ids[0] for r in responses])
        return reward, 0.25 * reward


def sets() -> list[CandidateSet]:
    log = (0.0, 0.0)
    return [CandidateSet(pair.prompt, (pair.first, pair.second), log, log) for pair in PAIRS[:3]]


def test_a_round_is_chosen_with_the_labels_of_the_rounds_before(journal: Journal) -> None:
    chooser = Chooser()
    plain = ExplorationController(chooser, journal)
    for _ in journal.rounds(2):
        labelled = [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND}) for pair in plain.choose(sets())]
        journal.once("compare", partial(journal.add_pair_labels, labelled, "world"))
    assert chooser.learned == [[], ["1-pair-0", "1-pair-1", "1-pair-2"]]


def test_chosen_pairs_are_named_by_round_and_counted(journal: Journal) -> None:
    chooser, source = Chooser(), Chooser()
    plain = LossBonuses(chooser, journal, source)
    for number in journal.rounds(2):
        pairs = plain.choose(sets())
        assert pairs == [replace(p, id=f"{number}-pair-{i}") for i, p in enumerate(PAIRS[:3])]
        assert journal.pair_questions(number) == pairs
        assert journal.metrics()[number] == {"explore/tau": 0.5, "explore/pairs": 99.0}
        assert next(e.payload for e in journal.phases(number) if e.phase == "explore") == 3
        plain.update(pairs)
    assert chooser.updates == source.updates == [journal.pair_questions(1), journal.pair_questions(2)]
    assert chooser.selected == []


def test_baseline_answers_of_finished_rounds_and_of_the_one_begun_are_met(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.sqlite", "run", create={}) as journal:
        journal.add_samples("candidate", ANSWERS)
        baseline = [WORLD.response(x, y, f"b{x}{y}") for x, y in ((0, 1), (2, 3), (0, 5))]
        journal.add_samples("baseline", baseline)
        chooser, source = Chooser(), Chooser()
        known = {"p0": ["b01", "b05"], "p2": ["b23"]}
        for _ in journal.rounds(1):
            control = LossBonuses(chooser, journal, source)
            control.read_back()
            assert chooser.met == source.met == [known]
            journal.add_samples("baseline", [WORLD.response(1, 4, "b14")])
            control.choose(sets())
            assert chooser.met == source.met == [known, {"p1": ["b14"]}]
        again = Chooser()
        ExplorationController(again, journal).read_back()
        assert again.met == [known, {"p1": ["b14"]}]


def test_of_the_chosen_pairs_so_many_are_kept_as_asked(journal: Journal) -> None:
    chooser = Chooser()
    kept = ExplorationController(chooser, journal, keep=2, keep_random=0.25)
    for _ in journal.rounds(1):
        assert kept.choose(sets()) == [replace(p, id=f"1-pair-{i}") for i, p in enumerate(PAIRS[1:3])]
    assert chooser.selected == [(3, 2, 0.25)]
    assert journal.metrics()[1] == {"explore/tau": 0.5, "explore/found": 3.0, "explore/pairs": 2.0}
    whole = ExplorationController(Chooser(), journal, keep=0)
    for _ in journal.rounds(2):
        assert whole.choose(sets()) == []


def test_a_restarted_explorer_is_shown_each_finished_rounds_pairs_once_in_order(tmp_path: Path) -> None:
    """Those from before the first round too, and not those of a round that was not finished."""
    with Journal.open(tmp_path / "j.sqlite", "run", create={}) as journal:
        journal.add_samples("candidate", ANSWERS)
        journal.add_pair_questions(PAIRS[:1])
        for number in journal.rounds(2):
            journal.once("explore", partial(journal.add_pair_questions, PAIRS[number : number + 1]))
            chooser = Chooser()
            ExplorationController(chooser, journal).read_back()
            assert chooser.updates == [[pair] for pair in PAIRS[:number]]
        chooser, source = Chooser(), Chooser()
        LossBonuses(chooser, journal, source).read_back()
        assert chooser.updates == source.updates == [[pair] for pair in PAIRS[:3]]


@pytest.mark.parametrize(("stage", "scale"), [("reward", 1.0), ("cost", 0.25)])
def test_a_bonus_in_the_loss_belongs_to_the_answer_whatever_its_side(
    journal: Journal, stage: str, scale: float
) -> None:
    """Answer y of prompt x has a bonus of 10 x + y; the rejected one's less the chosen one's is the margin."""
    control = LossBonuses(Chooser(), journal, Chooser(), answers=ANSWERS[:3])
    labelled = [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND}) for pair in PAIRS]
    sides = [(PAIRS[0].first, PAIRS[0].second), (PAIRS[5].second, PAIRS[5].first)]
    rows = [
        PairRow(pair.id, pair.prompt.token_ids, chosen.token_ids, rejected.token_ids)
        for pair, (chosen, rejected) in zip((PAIRS[0], PAIRS[5]), sides, strict=True)
    ]
    found = control.loss_bonus(stage, rows, labelled)  # type: ignore[arg-type]
    assert found == LossBonus((1.0 * scale, -1.0 * scale), (0.0, 1.0 * scale, 2.0 * scale))
    assert control.loss_bonus(stage, [], labelled) == LossBonus()  # type: ignore[arg-type]
    without = LossBonuses(Chooser(), journal, Chooser())
    assert without.loss_bonus(stage, rows, labelled).answers == ()  # type: ignore[arg-type]
