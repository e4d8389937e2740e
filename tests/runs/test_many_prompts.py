"""With many prompts a round asks the reference for what its own prompts need; nothing of the others comes before it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.journal import read_journal
from pddpo_ray.plan.cost_model import work
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.small_real_text import SMALL_REAL_TEXT
from tests.unit.loop.small_run import story


def many(cache: Path) -> Config:
    """24 prompts, of which a round asks three."""
    sizes = ["rounds=2", "data.prompt_count=24", "explore.prompts=3", "explore.calibration=20", "explore.rank=4"]
    return load("real-text", [f"data.cache={cache}", *SMALL_REAL_TEXT, *sizes])


def purpose_of(sample: str) -> str:
    """What an answer was drawn for, by its identity: round, purpose, position and number."""
    return sample.partition("-")[2].rsplit("-", 2)[0]


@pytest.mark.full
@pytest.mark.slow
def test_a_round_draws_what_its_own_prompts_need_and_a_broken_run_equals_the_unbroken(tmp_path: Path) -> None:
    class PowerCut(BaseException):
        pass

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (2, "explore"):
            raise PowerCut

    config = many(tmp_path / "cache")
    run_recipe(config, tmp_path / "whole" / "run")
    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "cut" / "run", progress=cut)
    run_recipe(config, tmp_path / "cut" / "run", resume=True)
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")

    with read_journal(tmp_path / "whole" / "run" / JOURNAL, "run") as journal:
        before = {purpose_of(sample.id) for sample in journal.samples(0)}
        assert before <= {"calibration", "offline", "helpful", "harmless", "scorers", "scorecard", "scorecard-benign"}
        assert len(journal.samples(0, "calibration")) == 20
        met: set[str] = set()
        for number in (1, 2):
            asked = {pair.first.prompt.id for pair in journal.pair_questions(number)}
            baseline = journal.samples(number, "baseline")
            new = {answer.prompt.id for answer in baseline}
            assert len(baseline) == config.explore.baseline_answers * len(new)
            assert asked <= met | new
            assert not met & new
            met |= new
            proposals = journal.samples(number, "proposal")
            assert len(proposals) == 3 * config.rollout.candidates // 2
            assert {answer.policy_version for answer in (*baseline, *proposals)} == {0}
        assert len(met) <= 6
        drawn = {number: Counter(purpose_of(sample.id) for sample in journal.samples(number)) for number in (0, 1)}
    planned = work(config)
    assert drawn[0]["calibration"] == planned["before"]["answers"]["calibration"]
    assert drawn[1] == planned["first_round"]["answers"], "no prompt comes twice in the first round"
    assert planned["before"]["features"] == 20


@pytest.mark.full
@pytest.mark.slow
def test_the_xpo_term_has_baseline_answers_from_its_first_fit_on(tmp_path: Path) -> None:
    config = load(
        "real-text",
        [
            f"data.cache={tmp_path / 'cache'}",
            *SMALL_REAL_TEXT,
            *["rounds=1", "data.prompt_count=24", "explore.prompts=3", "explore.calibration=20", "explore.rank=4"],
            *["explore.loss=xpo", "explore.bonus=off"],
        ],
    )
    run_recipe(config, tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL) as journal:
        drawn = Counter(purpose_of(sample.id) for sample in journal.samples(0))
        later = {answer.prompt.id for answer in journal.samples(1, "baseline")}
        first = {answer.prompt.id for answer in journal.samples(0, "baseline")}
    planned = work(config)["before"]["answers"]
    assert {name: drawn[name] for name in planned} == planned
    assert drawn["baseline"] == 5 * 4
    assert not first & later
