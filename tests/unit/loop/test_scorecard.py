"""A run's scorecard on real text: drawn alike, counted once, and without any effect on what the run learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, load
from pddpo_ray.data.real_text import prepare_real_text
from pddpo_ray.driver.run import Event, PhaseChanged, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.parts.sampling import BESIDES
from pddpo_ray.plan.cost_model import work
from pddpo_ray.records import Response
from pddpo_ray.report.build import build_report
from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.sections.answers import OF_THE_SCORECARD
from pddpo_ray.scorecard.cards import ASKED, BENIGN, PHASE, cards
from pddpo_ray.scoring.held_out import REPORT
from pddpo_ray.scoring.learned_prompts import LEARNED, hashes_of, opening_of
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.small_real_text import SMALL_REAL_TEXT

CARD = ["scorecard={prompts: 6, answers: 2, train: true}", "data.held_out=0.4"]


def small(cache: Path, *overrides: str) -> Config:
    return load("real-text", ["rounds=2", f"data.cache={cache}", *SMALL_REAL_TEXT, *CARD, *overrides])


class Stopped(Exception):
    """Stands for a kill."""


def stops_at(round_: int, phase: str) -> Callable[[Event], None]:
    def progress(event: Event) -> None:
        if isinstance(event, PhaseChanged):
            now = event.event
            if (now.what, now.round, now.phase) == ("phase-started", round_, phase):
                raise Stopped

    return progress


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scorecard")
    return folder, run_recipe(small(folder / "cache"), folder / "run")


def answers(run: Path, round_: int, purpose: str = ASKED) -> list[Response]:
    with read_journal(run / JOURNAL) as journal:
        return journal.samples(round_, purpose)


@pytest.mark.slow
def test_before_and_after_are_the_same_prompts_and_seeds_and_none_that_the_run_learned_from(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    run = whole[0] / "run"
    drawn = [answers(run, round_) for round_ in range(3)]
    asked = [[(one.prompt.id, one.seed) for one in row] for row in drawn]
    assert asked[0] == asked[1] == asked[2]
    assert len(asked[0]) == 12
    assert [{one.policy_version for one in row} for row in drawn] == [{0}, {2}, {4}]
    with read_journal(run / JOURNAL) as journal:
        learned = {entry.labelled.pair.prompt.id for entry in journal.pairs()}
        cost = {one.prompt.id for number in (1, 2) for one in journal.samples(number, "cost")}
    assert not {prompt for prompt, _ in asked[0]} & (learned | cost)
    data = read_run(run)
    assert data.how_drawn == OF_THE_SCORECARD
    assert [one.seed for one in data.before] == [one.seed for one in data.after]
    assert {one.id.split("-")[1] for one in (*data.before, *data.after)} == {"scorecard"}
    assert len(data.before) == 12
    assert data.whose_after == "after (last policy, round 2)"
    assert set(data.measured_answers) == {one.id for one in (*data.before, *data.after)}
    assert all([said.split()[0] for said in one] == ["help", "harm"] for one in data.measured_answers.values())


@pytest.mark.slow
def test_a_card_is_counted_from_the_rounds_own_answers_and_said_everywhere(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, result = whole
    run, card = folder / "run", result["scorecard"]
    assert (card["prompts"], card["held_out_prompts"], set(card["rounds"])) == (6, True, {"1", "2"})
    assert set(card["scorers"]) == {"reward", "cost"}
    assert all(one["scorer"] == "trained by the run" and one["trials"] > 0 for one in card["scorers"].values())
    last = card["rounds"]["2"]
    own = answers(run, 2)
    assert last["length"]["value"] == pytest.approx(np.mean([len(one.token_ids) for one in own]))
    assert last["truncated"]["count"] == 6  # prompts, not answers
    assert {"win_rate", "kl", "kl_token", "refusals", "distinct_1", "distinct_2", "repetition"} <= set(last)
    assert {"reward_held_out", "reward_own", "cost_held_out", "cost_own", "agrees_better"} <= set(last)
    assert last["refusals"]["count"] == len(answers(run, 2, BENIGN)) == 16
    assert "12: raise it" in card["notes"]["2"][0]  # a model that knows nothing runs into 12 tokens
    assert card["alarm"] == {"rang": False, "first": None, "compared": True}
    with read_journal(run / JOURNAL) as journal:
        metrics, phases = journal.metrics(), {(entry.round, entry.phase) for entry in journal.phases()}
    assert metrics[2]["scorecard/win_rate"] == last["win_rate"]["value"]
    assert metrics[2]["scorecard/reward_held_out_trials"] == card["scorers"]["reward"]["trials"]
    assert {(number, phase) for number in range(3) for phase in (BESIDES, PHASE)} <= phases
    page = build_report(run).read_text()
    assert "Is the last policy better than the reference?" in page
    assert "Held-out reward scorer: it is right in" in page
    assert 'data-key="scorecard/kl"' in page
    target = tmp_path / "exported"
    assert CliRunner().invoke(app, ["export", str(run), "--to", str(target), "--round", "2"]).exit_code == 0
    model_card = (target / "README.md").read_text()
    assert "## Scorecard" in model_card
    assert "| wins against the reference (scorer right in" in model_card
    assert "agrees with people on 660 of 701 answers" in model_card
    for empty in ("What the theorem says", "λ*", "exact, last", "How far from the best", "the newest round"):
        assert empty not in page


@pytest.mark.full
@pytest.mark.slow
def test_a_resumed_run_draws_and_reports_nothing_anew(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, result = whole
    config, run = small(folder / "cache"), tmp_path / "run"
    with pytest.raises(Stopped):
        run_recipe(config, run, progress=stops_at(2, PHASE))
    before = [answers(run, round_) for round_ in range(3)]
    resumed = run_recipe(config, run, resume=True)
    assert resumed["scorecard"] == result["scorecard"]
    assert [answers(run, round_) for round_ in range(3)] == before
    assert [one.token_ids for one in answers(run, 2)] == [one.token_ids for one in answers(folder / "run", 2)]


@pytest.mark.full
@pytest.mark.slow
def test_a_run_learns_the_same_with_a_scorecard_as_without(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = whole[0]
    without = run_recipe(small(folder / "cache", "scorecard={prompts: 0, train: false}"), tmp_path / "run")
    assert without["scorecard"] is None
    kept = []
    for run in (folder / "run", tmp_path / "run"):
        with read_journal(run / JOURNAL) as journal:
            estimates = [(step.estimate.value, step.multiplier_after) for step in journal.dual_steps()]
            drawn = [one.token_ids for number in (1, 2) for one in journal.samples(number, "cost")]
            kept.append(([entry.version.sha256 for entry in journal.versions()], estimates, drawn))
            assert bool(cards(journal)) == (run == folder / "run")
    assert kept[0] == kept[1]


def test_the_plan_counts_the_scorecard_and_a_world_has_none(tmp_path: Path) -> None:
    planned = work(small(tmp_path))
    assert planned["first_round"]["answers"]["scorecard"] == planned["before"]["answers"]["scorecard"] == 12
    assert planned["round"]["answers"]["scorecard-benign"] == 16
    without = work(small(tmp_path, "scorecard={prompts: 0, train: false}"))
    assert planned["before"]["scorers"] - without["before"]["scorers"] == 2
    assert planned["round"]["scored"] - without["round"]["scored"] == 4 * 12
    assert not any("scorecard" in stretch["answers"] for stretch in work(load("text-world", [])).values())


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("real-text", "scorecard.train=true", r"set data\.held_out"),
        ("real-text", "scorecard.answer=3", r"did you mean `scorecard\.answers`"),
        ("real-text", "scorecard.scorers.reward=./nowhere", r"scorecard\.scorers\.reward\.path: there is no folder"),
        ("tabular", "scorecard.prompts=4", "reads texts of a language model"),
    ],
)
def test_a_scorecard_that_cannot_be_is_refused_in_one_line(recipe: str, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(recipe, [override])


def test_the_runs_own_scorer_is_no_held_out_one() -> None:
    own = ["feedback.reward={path: models/reward}", "scorecard.scorers={reward: models/reward}"]
    with pytest.raises(UserError, match="is the run's own reward model"):
        load("real-text", own)


@pytest.mark.full
@pytest.mark.slow
def test_a_scorer_that_learned_from_the_runs_prompts_is_no_held_out_one(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = whole
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    config = small(folder / "cache", "scorecard.train=false", f"scorecard.scorers.reward={theirs}")
    prompts = prepare_real_text(config).prompts
    known = {"held_out": {"right": 90, "trials": 100}, LEARNED: hashes_of(opening_of(one) for one in prompts[:3])}
    (theirs / REPORT).write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"learned from 3 of the \d+ prompts of the run, .* train it on other prompts"):
        run_recipe(config, tmp_path / "run")
