"""Runs whose models are no better than a coin, or whose costs do not fit in the box: what becomes of the multiplier."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, RoundFinished, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.dual_step import DualController, LocalDual
from pddpo_ray.plan.scale import cost_scale
from pddpo_ray.records import HARM, Array, CostEstimate, LabelledPair, Pair, Prompt, Response, Verdict
from pddpo_ray.report.build import build_report
from pddpo_ray.scorers.gate import check_scorers, held_limits, held_multiplier, known_trials, scorers_result
from pddpo_ray.scoring.held_out import Trials
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state
from tests.unit.scoring.test_feedback_run import PowerCut, journal, tiny

UNTRAINED = "scorers={pairs: 80, held_out: 0.5, fit: {steps: 1, learning_rate: 1.0e-7}}"


@pytest.mark.full
@pytest.mark.slow
def test_the_multiplier_stands_still_on_a_cost_model_at_chance_also_after_a_restart(tmp_path: Path) -> None:
    """A fit of one tiny step teaches nothing: all scores are near 0, and 40 held-out pairs say so."""
    said: list[str | None] = []

    def cut_in_round_2(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (2, "compare"):
            raise PowerCut

    def listen(event: Any) -> None:
        if isinstance(event, RoundFinished):
            said.append(event.message)

    folder = tmp_path / "run"
    with pytest.raises(PowerCut):
        run_recipe(tiny(UNTRAINED), folder, progress=cut_in_round_2)
    result = run_recipe(tiny(UNTRAINED), folder, resume=True, progress=listen)
    with journal(folder) as log:
        steps = log.dual_steps()
        first = log.metrics()[0]
    assert len(steps) == 2
    assert len({step.multiplier_before for step in steps} | {step.multiplier_after for step in steps}) == 1
    assert result["multiplier_next"] == steps[0].multiplier_before
    message = said[-1] or ""
    assert "the cost model is not better than chance: it is right in" in message
    assert "pddpo scorer train" in message
    assert first["scorer/cost_held_out_low"] < 0.5
    assert set(result["scorers"]["at_chance"]) >= {"cost"}
    page = (build_report(folder)).read_text()
    assert "Can the reward and cost models be trusted?" in page
    assert "not better than chance" in page
    with pytest.raises(UserError, match=r"not better than chance: it is right in .* train it on more pairs"):
        run_recipe(tiny(UNTRAINED, "scorers.at_chance=stop"), tmp_path / "stopped")


class WordScorer:
    """Scores an answer by its first token: a scorer whose numbers are known."""

    def __init__(self, name: str, scale: float, shift: float = 0.0) -> None:
        self.name, self._scale, self._shift = name, scale, shift

    def score_texts(self, texts: Sequence[tuple[str, str]]) -> Array:
        raise NotImplementedError("only answers of a run are scored here")

    def score(self, responses: Sequence[Response]) -> Array:
        return np.array([self._scale * response.token_ids[0] + self._shift for response in responses])


def labelled_pairs(count: int, right: int) -> list[LabelledPair]:
    """One pair to a prompt, first tokens 1 and -1: in `right` of them the answer with 1 is the better and costlier."""
    pairs = []
    for index in range(count):
        prompt = Prompt(f"p{index}", (index,), f"question {index}")
        first, second = (Response(f"{index}-{side}", prompt, (side,), "text", 0, 0) for side in (1, -1))
        said = Verdict.FIRST if index < right else Verdict.SECOND
        pairs.append(LabelledPair(Pair(f"q{index}", first, second), said, {HARM: said}))
    return pairs


@contextmanager
def before_round_1(path: Path, pairs: Sequence[LabelledPair]) -> Iterator[Journal]:
    """A journal that holds the pairs of a run whose first round is about to begin."""
    with Journal.open(path, "run", create={}) as opened:
        if opened.next_round == 1 and not opened.pairs(0):
            answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
            opened.add_samples("offline", answers)
            opened.add_pairs(pairs, "files")
        yield opened


def given(*overrides: str) -> Config:
    return load(
        "text-world-scorers",
        ["feedback.reward={path: /models/reward}", "feedback.cost={path: /models/cost}", *overrides],
        check_files=False,
    )


def test_costs_far_outside_the_box_end_the_run_with_the_box_to_set(tmp_path: Path) -> None:
    """Beaver's kind: scores near -10 and 10, in a box of 2. In a box of 10.5 the same scores are let through."""
    models = ScoredLabeller(WordScorer("reward", 1.0), WordScorer("cost", 10.0))
    wanted = r"do not fit in \[-2, 2\].*100 % at or beyond ±2.*dual\.cost_max=10\.5"
    with before_round_1(tmp_path / "box", labelled_pairs(40, 40)) as log:
        with pytest.raises(UserError, match=wanted):
            check_scorers(given("dual.cost_max=2.0", "limits.cost.at_most=0.0"), log, models, {}, by_prompt=True)
        assert log.metrics()[0]["scorer/cost_at_clip"] == 1.0
    with before_round_1(tmp_path / "fits", labelled_pairs(40, 40)) as log:
        check_scorers(given("dual.cost_max=10.5"), log, models, {}, by_prompt=True)
        assert log.metrics()[0]["scorer/cost_at_clip"] == 0.0
        assert log.metrics()[0]["scorer/cost_q05"] == -10.0
    with before_round_1(tmp_path / "raw", labelled_pairs(40, 40)) as log:
        raw = given(
            "dual.cost_max=2.0",
            "limits.cost.at_most=0.0",
            "limits.cost={mean: {model: cost}, learned_from: comparisons}",
        )
        check_scorers(raw, log, models, {}, by_prompt=True)


@pytest.mark.parametrize(("right", "held"), [(20, True), (26, True), (28, False), (12, True)])
def test_a_multiplier_moves_only_on_a_cost_model_better_than_chance(tmp_path: Path, right: int, held: bool) -> None:
    """40 comparisons: 27 right have a lower end of .509, 26 one of .483 (scipy's exact interval). A restart agrees."""
    assert (binomtest(right, 40).proportion_ci(0.95, "exact").low <= 0.5) == held
    models = ScoredLabeller(WordScorer("reward", 1.0), WordScorer("cost", 1.0))
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0, step=0.5)
    state = DualState((limit_state("cost", rho=1.0, rule=rule, upper=4.0, limit=-1.0),))
    estimate = CostEstimate(1.0, 0.1, 12, 5, "logit_labels", "cost")
    values, messages = [], []
    for number in (1, 2):
        with before_round_1(tmp_path / "run", labelled_pairs(40, right)) as log:
            if number == 1:
                check_scorers(given(), log, models, {}, by_prompt=True)
            for _ in log.rounds(number):
                dual = DualController(LocalDual(state), log, partial(held_limits, given(), log))
                values.append(dual.step([estimate])["cost"])
                messages.append(dual.message)
            said = scorers_result(log)
    assert said is not None
    assert ("cost" in said["at_chance"]) == held
    assert values == ([1.0, 1.0] if held else [2.0, 3.0])
    assert all(
        (message is not None and "its multiplier stays where it is: train it on more pairs" in message) == held
        for message in messages
    )
    with before_round_1(tmp_path / "stop", labelled_pairs(40, right)) as log:
        if held:
            with pytest.raises(UserError, match="not better than chance: it is right in"):
                check_scorers(given("scorers.at_chance=stop"), log, models, {}, by_prompt=True)
        else:
            check_scorers(given("scorers.at_chance=stop"), log, models, {}, by_prompt=True)


def test_a_model_of_our_own_training_is_judged_by_what_it_held_out(tmp_path: Path) -> None:
    """It may have learned from the run's pairs: they say nothing about it."""
    folder = tmp_path / "cost"
    folder.mkdir()
    (folder / "scorer.json").write_text(json.dumps({"held_out": Trials(11, 20).as_metrics()}))
    config = load(
        "text-world-scorers", ["feedback.reward={path: /r}", f"feedback.cost={{path: '{folder}'}}"], check_files=False
    )
    models = ScoredLabeller(WordScorer("reward", 1.0), WordScorer("cost", 1.0))
    with before_round_1(tmp_path / "run", labelled_pairs(40, 40)) as log:
        check_scorers(config, log, models, {}, by_prompt=True)
        assert known_trials(log) == {"reward": Trials(40, 40), "cost": Trials(11, 20)}
        assert "11 of 20" in (held_multiplier(log) or "")


def test_the_models_of_a_method_are_held_to_the_same(tmp_path: Path) -> None:
    """Safe RLHF trains models of its own, whose costs move its multiplier, whoever labels."""
    with before_round_1(tmp_path / "run", []) as log:
        assert held_multiplier(log) is None
        log.once("method-models", lambda: {"cost": {"held_out": Trials(6, 10).as_metrics()}})
        assert "6 of 10 comparisons" in (held_multiplier(log) or "")
    with before_round_1(tmp_path / "other", []) as log:
        log.once("method-models", lambda: {"cost": {"held_out": Trials(10, 10).as_metrics()}})
        assert held_multiplier(log) is None


def test_the_plan_says_that_scores_are_held_against_the_box() -> None:
    lines = cost_scale(load("text-world-scorers")).lines()
    assert any("the run stops if more than 10 % of the answers score at or beyond ±4" in line for line in lines)
    assert not any("score at or beyond" in line for line in cost_scale(load("text-world")).lines())
