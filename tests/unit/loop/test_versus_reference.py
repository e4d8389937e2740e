"""Limits versus the reference in runs: its fresh answers, exact truth, restarts, certificates, failures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from pddpo_lab.worlds.tabular.backends import limits_on
from pddpo_lab.worlds.tabular.files import tabular_world
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import RunError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.parts.limits import REFERENCES
from pddpo_ray.records import Response
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.worlds.table_limits import TableLimits
from tests.support.measured import costs_of, measured_in
from tests.support.measuring_server import measuring_server
from tests.support.tiers import in_full
from tests.unit.loop.small_run import MEASURED, story
from tests.unit.loop.test_certify_worlds import last_table
from tests.unit.loop.test_limits_on_files import recipe
from tests.unit.loop.test_limits_run import QUICK, recipe_of

LESS = {"rate": {"world": "unsafe"}, "versus": "reference", "at_most": "-15 %", "labels_each": 10}
WINS = {"rate": {"world": "reward"}, "versus": "reference", "at_least": "64 %", "labels_each": 5}
BOTH = [
    "limits.leaks={rate: {world: privacy}, over: private, versus: reference, at_most: -5 %}",
    "limits.helpful={rate: {world: reward}, versus: reference, at_least: 60 %}",
]


class PowerCut(BaseException):
    pass


def cut_at(round_: int, phase: str) -> Any:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (round_, phase):
            raise PowerCut

    return cut


def on_table(folder: Path, *overrides: str) -> Config:
    limits = {
        "cost": None,
        "less": LESS,
        "wins": WINS,
        "longer": {
            "mean": {"world": "other"}, "versus": "reference", "at_least": -3, "bounds": [0, 60], "confidence": "90 %"
        },
    }  # fmt: skip
    path = recipe_of(0, folder, limits=limits)
    world = json.loads((folder / "world.json").read_text())
    world["measures"]["other"] = (60 * np.random.default_rng(4).random(np.shape(world["reward"]))).tolist()
    (folder / "world.json").write_text(json.dumps(world))
    return load(str(path), [*QUICK, "offline.pairs=1500", "rounds=12", *overrides])


def opened(config: Config) -> tuple[TabularWorld, TableLimits]:
    world = tabular_world(config.world)  # type: ignore[arg-type]
    limits = limits_on(world, config)
    return world, limits


# --- what is measured -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_measured_costs_less_the_references_have_the_enumerated_expectation(tmp_path: Path) -> None:
    """By hand: E_pi[m] - E_ref[m], its negation for at_least, and 1 - E_{pi, ref}[sigmoid(r(y) - r(y'))]."""
    world, limits = opened(on_table(tmp_path))
    rng = np.random.default_rng(5)
    prompts, width = world.shape
    policy = rng.dirichlet(np.ones(width), size=prompts)
    reference = world.oracle.reference
    xs = rng.choice(prompts, p=limits.weights, size=6000)
    drawn = [rng.choice(width, p=policy[x]) for x in xs]
    others = [rng.choice(width, p=reference[x]) for x in xs]

    def written(answers: list[int], name: str) -> list[Response]:
        return [world.response(x, y, f"{name}-{row}") for row, (x, y) in enumerate(zip(xs, answers, strict=True))]

    measured = limits.measure(written(drawn, "a"), 3, written(others, "b"))
    rate, reward, mean = limits.single
    chances = expit(reward[:, :, None] - reward[:, None, :])
    wins = np.einsum("x,xy,xz,xyz->", limits.weights, policy, reference, chances)
    wanted = [
        float(limits.weights @ ((policy - reference) * rate).sum(axis=1)),
        1.0 - wins,
        -float(limits.weights @ ((policy - reference) * mean).sum(axis=1)),
    ]
    costs, _ = costs_of(limits.stated, measured)
    against, _ = costs_of(limits.stated, replace(measured, values=measured.against))
    relative = costs - np.where([one.limit.quantity.versus == "reference" for one in limits.stated], against, 0.0)
    errors = relative.std(axis=0) / np.sqrt(len(xs))
    assert np.all(np.abs(relative.mean(axis=0) - wanted) <= 4 * errors)
    assert np.all(errors > 0)
    exact = np.einsum("x,xy,ixy->i", limits.weights, policy, limits.costs)
    np.testing.assert_allclose(exact, wanted, atol=1e-12)
    assert np.isnan(measured.against[:, 1]).all()


def test_without_a_reference_there_is_no_share_of_wins_and_a_difference_teaches_alone(tmp_path: Path) -> None:
    world, limits = opened(on_table(tmp_path))
    found = limits.measure([world.response(0, 1, "a"), world.response(1, 1, "b")], 0, [None, world.response(1, 0, "c")])
    np.testing.assert_array_equal(np.isnan(found.values), [[False, True, False], [False, False, False]])
    np.testing.assert_array_equal(np.isnan(found.against), [[True, True, True], [False, True, False]])


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.slow
def test_a_run_keeps_a_difference_and_a_floor_on_wins_and_finds_the_multiplier_that_binds(tmp_path: Path) -> None:
    """Last values within 2 % of the ranges; late multipliers within 35 % and .3 per range. The floor is slack."""
    more = ["limits.longer.at_least=-40", "limits.less.at_most=-12 %", "feedback.responses=480"]
    config = on_table(tmp_path, *more)
    result = run_recipe(config, tmp_path / "run")
    best = opened(config)[1].oracle(config.beta).optimum
    wanted = dict(zip(("less", "wins", "longer"), (best.multiplier, *best.further_multipliers), strict=True))
    assert (wanted["less"] > 1, wanted["wins"], wanted["longer"]) == (True, 0.0, 0.0)
    with open_folder(tmp_path / "run") as journal:
        steps = journal.dual_steps()
    spans = {"less": 2.0, "wins": 1.0, "longer": 120.0}
    for name, said in result["limits"].items():
        late = np.mean([step.multiplier_after for step in steps if step.constraint == name][6:]) * spans[name]
        broken = said["value_last"] - said["bound"]
        assert (-broken if said["at_least"] else broken) <= 0.02 * spans[name]
        assert abs(late - wanted[name]) <= 0.35 * wanted[name] + 0.3
        assert said["low"] <= said["estimate"] <= said["high"]
    less, wins = result["limits"]["less"], result["limits"]["wins"]
    assert (less["limit"], wins["limit"]) == (
        "at most -12 % versus the reference",
        "at least 64 % versus the reference",
    )
    assert less["value_reference"] == pytest.approx(0.0, abs=1e-12)
    assert wins["value_reference"] == pytest.approx(0.5, abs=1e-12)
    assert less["value_optimum"] == pytest.approx(-0.12, abs=1e-8)


@pytest.mark.run
def test_every_round_asks_the_reference_anew_and_a_limit_on_a_set_at_its_prompts_alone(tmp_path: Path) -> None:
    config = load("tabular-limits", [*MEASURED, *QUICK[:2], "rounds=2", "feedback.responses=40", BOTH[0]])
    run_recipe(config, tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        drawn = [journal.samples(number, "reference-measure-answers") for number in (1, 2)]
        asked = [journal.samples(number, "cost") for number in (1, 2)]
        assert not journal.samples(1, "reference-measure-pairs")
        before = journal.samples(0, "reference-measure-offline")
        leaks = [step.estimate for step in journal.dual_steps() if step.constraint == "leaks"]
    for one in leaks:
        assert one.low is not None
        assert one.high is not None
        assert one.low < one.value < one.high, "by what each draw measured, and kept with the step"
        assert interval(one) == (one.low, one.high) != interval(replace(one, low=None))
    for others, answers in zip(drawn, asked, strict=True):
        private = [one.prompt.id for one in answers if one.prompt.token_ids[0] in (2, 3)]
        assert [one.prompt.id for one in others] == private
        assert {one.policy_version for one in others} == {0}
    assert [one.token_ids for one in drawn[0]] != [one.token_ids for one in drawn[1]]
    assert len({one.prompt.id for one in before}) == 2
    assert len(before) == 2 * REFERENCES


@pytest.mark.slow
@pytest.mark.parametrize("phase", [*in_full("pool-reference-measure-answers"), "measure-pairs"])
def test_a_run_that_breaks_off_goes_on_with_the_same_answers_of_the_reference(phase: str, tmp_path: Path) -> None:
    config = load("tabular-limits", [*MEASURED, *QUICK[:2], "rounds=2", "feedback.responses=20", *BOTH])
    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "cut" / "run", progress=cut_at(2, phase))
    result = run_recipe(config, tmp_path / "cut" / "run", resume=True)
    whole = run_recipe(config, tmp_path / "whole" / "run")
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
    assert result["limits"] == whole["limits"]


# --- certificates ---------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_a_certificate_compares_every_draw_with_a_fresh_answer_of_the_reference(tmp_path: Path) -> None:
    """Means of the draws and bounds against the enumerated value of the policy that was tested."""
    config = load("tabular-limits", [*MEASURED, "rounds=2", "feedback.responses=20", *BOTH])
    run_recipe(config, tmp_path / "run")
    table, (_, limits) = last_table(config, tmp_path / "run"), opened(config)
    values = np.einsum("ix,x,xy,ixy->i", limits.factors, limits.weights, table, limits.costs)
    exact = dict(zip([one.limit.name for one in limits.stated], values.tolist(), strict=True))
    leaks, losses = exact["leaks"], exact["helpful"]
    loose = {"harm": 1.6, "leaks": leaks + 0.2, "helpful": 1.0 - losses - 0.1}
    entry = certify(config, tmp_path / "run", "last", loose, 4000)
    assert entry.state == "certified"
    for name, value in (("leaks", leaks), ("helpful", losses)):
        numbers = np.array(entry.numbers[name], dtype=float)
        assert abs(numbers.mean() - value) <= 4 * numbers.std() / np.sqrt(len(numbers))
        assert entry.findings[name].lower < value < entry.findings[name].upper
    said = {one.name: str(one.stated) for one in entry.candidate.limits}
    assert said["helpful"].startswith("at least ")
    assert said["helpful"].endswith("versus the reference")
    with open_folder(tmp_path / "run") as journal:
        drawn = journal.samples(-1)
    asked = {name for names in entry.draws.values() for name in names}
    others = [one for one in drawn if one.id not in asked]
    versus = {name for limit in ("leaks", "helpful") for name in entry.draws[limit]}
    assert len(others) == len(versus)
    assert {one.policy_version for one in others} == {0}


# --- sources on texts -----------------------------------------------------------------------------------------------

LENGTH = {"mean": {"rule": "words"}, "versus": "reference", "at_most": 2, "bounds": [0, 200]}


def judged(url: str, **more: Any) -> dict[str, Any]:
    judge = {"question": "Which is the better of the two ?", "model": "m", "endpoint": f"{url}/v1", "tries": 1}
    return {"rate": {"judge": judge | {"workers": 1}}, "versus": "reference", "at_least": "50 %", **more}


@pytest.mark.full
def test_a_judge_is_shown_both_answers_once_and_not_again_after_a_power_cut(tmp_path: Path) -> None:
    """It prefers the first answer always, so that asking in both orders makes every comparison a tie."""
    with measuring_server() as server:
        server.chat = lambda body: (200, "[[A]]")
        limits = {"length": LENGTH, "helpful": judged(server.url, over="everyday")}
        config = recipe(tmp_path, limits, "dual.rho=4")
        with pytest.raises(PowerCut):
            run_recipe(config, tmp_path / "run", progress=cut_at(2, "pool-reference-measure-answers"))
        before = len(server.bodies)
        result = run_recipe(config, tmp_path / "run", resume=True)
        asked = [body["messages"][-1]["content"] for body in server.bodies]
    with open_folder(tmp_path / "run") as journal:
        names = [entry.payload["ids"] for entry in journal.phases(like="measure-%")]
        wins = [one.value for one in journal.measurements(phase="measure-%", limit="helpful")]
        last = measured_in(journal, 2)
    assert set(wins) == {0.5}
    assert 0 < before < len(asked) == 2 * len(wins)
    assert sum(map(len, names)) > len(wins)
    assert (result["limits"]["helpful"]["estimate"], result["limits"]["helpful"]["unit"]) == (0.5, "share")
    length = result["limits"]["length"]
    own, less = (np.array(last[key], dtype=float)[:, 0] for key in ("costs", "against"))
    assert length["estimate"] == pytest.approx((own - less).mean())


@pytest.mark.full
def test_a_failure_on_either_answer_is_no_number_and_too_many_are_named(tmp_path: Path) -> None:
    """Every seventh reply is an error of the server: about two in seven comparisons lose one of their two orders."""
    replies = count()
    with measuring_server() as server:
        server.chat = lambda body: (500, "no") if next(replies) % 7 == 6 else (200, "[[A]]")
        config = recipe(tmp_path, {"helpful": judged(server.url)}, "dual.rho=4", "rounds=1")
        result = run_recipe(config, tmp_path / "run")
        with open_folder(tmp_path / "run") as journal:
            comparisons = list(journal.measurements(phase="measure-answers", limit="helpful"))
        failed = [comparison for comparison in comparisons if comparison.value is None]
        assert 0 < len(failed) < len(comparisons)
        assert all(comparison.missing for comparison in failed)
        # a comparison without a number counts as lost
        assert result["limits"]["helpful"]["estimate"] == pytest.approx(0.5 * (1 - len(failed) / len(comparisons)))
        config = recipe(tmp_path, {"helpful": judged(server.url, failed="5 %")}, "dual.rho=4", "rounds=1")
        with pytest.raises(RunError, match=r"limit helpful: judge m gave no number for .* more than the 5 %"):
            run_recipe(config, tmp_path / "strict")
