"""Runs under stated limits on a text world, by the log-linear twin and a network: exact truth, restarts, refusals."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.world import evaluate_run
from pddpo_ray.journal.identity import open_folder
from tests.support.measured import measured_in
from tests.support.measuring_server import measuring_server
from tests.unit.loop.small_run import story

SMALL = (
    "feedback.responses=24", "offline.pairs=96", "offline.compare_rounds=0", "explore.calibration=96",
    "explore.prompts=8", "explore.picks=2", "rollout.candidates=4", "report.tensorboard=false",
    "report.html=false",
)  # fmt: skip


def twin(*overrides: str) -> Config:
    return load("text-world-limits-twin", [*SMALL, "rounds=2", *overrides])


def network(*overrides: str) -> Config:
    fits = ["trainer.fit.steps=4"]
    engine = "rollout={engine: transformers, max_tokens: 40, candidates: 4}"
    return load("text-world-limits", [engine, *SMALL, "rounds=2", "explore.rank=16", *fits, *overrides])


class PowerCut(BaseException):
    pass


def broken_off(config: Config, folder: Path, round_: int, phase: str) -> None:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (round_, phase):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(config, folder, progress=cut)


@pytest.mark.slow
def test_a_twin_states_every_limit_with_its_exact_truth_and_goes_on_after_a_power_cut(tmp_path: Path) -> None:
    config = twin("limits.drift={kl: reference, at_most: 5}")
    broken_off(config, tmp_path / "cut" / "run", 2, "measure-answers")
    result = run_recipe(config, tmp_path / "cut" / "run", resume=True)
    whole = run_recipe(config, tmp_path / "whole" / "run")
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
    assert result["limits"] == whole["limits"]
    rude, length = result["limits"]["rude"], result["limits"]["length"]
    assert (rude["limit"], length["unit"]) == ("at most 40 % over outside", "words")
    assert rude["value_reference"] > 0.4
    assert 8 < length["value_last"] < 20
    drift = result["limits"]["drift"]
    assert (drift["unit"], drift["value_reference"]) == ("nats", 0.0)
    assert drift["value_optimum"] == pytest.approx(5.0, abs=1e-6)
    assert drift["estimate"] > 0 < drift["value_last"]
    assert result["gap_last"] < result["gap_reference"]
    with open_folder(tmp_path / "whole" / "run") as journal:
        steps = [entry.payload for entry in journal.phases(like="dual")]
        assert journal.phases(0, "limit-sources")[0].payload["length"].startswith("rule words ")
        exact = evaluate_run(config, tmp_path / "whole" / "run", journal)
    assert any(line.startswith("rude ") and "by harmful" in line for step in steps for line in step["moved"])
    assert exact["policy-2"]["gap"] == pytest.approx(result["gap_last"], abs=1e-12)


@pytest.mark.full
@pytest.mark.slow
def test_a_network_under_limits_broken_off_in_mid_round_equals_the_unbroken_one(tmp_path: Path) -> None:
    config = network("limits.drift={kl: reference, at_most: 3}")
    broken_off(config, tmp_path / "cut" / "run", 2, "measure-answers")
    result = run_recipe(config, tmp_path / "cut" / "run", resume=True)
    run_recipe(config, tmp_path / "whole" / "run")
    broken, unbroken = story(tmp_path / "cut" / "run"), story(tmp_path / "whole" / "run")
    for ours, theirs in zip(broken.pop("exact"), unbroken.pop("exact"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert broken == unbroken
    assert set(result["limits"]) == {"harmful", "length", "rude", "drift"}
    assert result["limits"]["drift"]["multiplier"] > 0
    with open_folder(tmp_path / "whole" / "run") as journal:
        made = [entry.version.name for entry in journal.versions() if entry.round == 2]
    assert made == ["reward-2", "policy-2-1", "policy-2"]


@pytest.mark.run
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["limits.rude.at_most=0.1 %"], "no policy of this world keeps at most 0.1 % over outside"),
        (["limits.rude.rate={regex: nowhere.txt}"], "nowhere.txt cannot be read as text"),
        (["limits.rude.rate={world: reward}"], "this world has no rate called `reward`"),
        (["prompts.inside.indices=[24]"], "the world has the prompts 0 to 23, not 24"),
        (["algorithm=sacpo", "rounds=1", "dual.rule={kind: fixed}", "dual.first=1"], "holds one limit, named cost"),
    ],
)
def test_what_a_text_world_cannot_hold_is_refused_in_one_line(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        run_recipe(twin(*overrides), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.run
def test_a_run_goes_on_with_the_sources_it_was_started_with_alone(tmp_path: Path) -> None:
    (tmp_path / "gloves.txt").write_text("gloves\n")
    limit = f"limits.gloves={{rate: {{regex: {tmp_path / 'gloves.txt'}}}, at_most: 95 %}}"
    broken_off(twin(limit), tmp_path / "run", 1, "measure-answers")
    (tmp_path / "gloves.txt").write_text("mittens\n")
    with pytest.raises(UserError, match=r"limit gloves: run .* was started with the source `regex .* no two meanings"):
        run_recipe(twin(limit), tmp_path / "run", resume=True)


@pytest.mark.run
def test_an_endpoint_measures_on_a_world_without_a_truth_and_its_failures_are_no_numbers(tmp_path: Path) -> None:
    """Every fifth reply is an error of the server. The estimate counts those answers as "yes"."""
    replies = count()

    def measure(body: Any) -> tuple[int, Any]:
        return (500, "no") if next(replies) % 5 == 4 else (200, {"value": False})

    with measuring_server() as server:
        server.measure = measure
        limit = f"limits.brand={{rate: {{endpoint: '{server.url}/measure', tries: 1, workers: 1}}, at_most: 60 %}}"
        with pytest.raises(UserError, match=r"dual\.rho must be given: without a world there is no oracle"):
            run_recipe(twin(limit), tmp_path / "none")
        result = run_recipe(twin(limit, "dual.rho=4", "rounds=1"), tmp_path / "run")
    brand = result["limits"]["brand"]
    assert brand["estimate"] == pytest.approx(0.2, abs=0.05)
    assert "value_last" not in brand
    assert result["gap_last"] is None
    with open_folder(tmp_path / "run") as journal:
        payload = measured_in(journal, 1)
    column = [row[3] for row in payload["costs"]]
    assert {cost for cost in column if cost is not None} == {0.0}
    assert [[row, 3] for row, cost in enumerate(column) if cost is None] == payload["failed"]
