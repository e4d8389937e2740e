"""Runs under stated limits on tables: every kind of limit and prompt set, what is said, restarts, refusals."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.backends import limits_on, tabular_view
from pddpo_lab.worlds.tabular.files import load_world, tabular_world
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.config import Config, TabularWorldConfig, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.evaluate.world import exact_values
from pddpo_ray.journal import Journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.limits.reading import stated_limit
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.reachable import note_reachable, reached
from pddpo_ray.plan.printed import make_plan
from pddpo_ray.report.build import build_report
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import MeasuredAnswer
from tests.support.tiers import in_full
from tests.unit.report.page import Page

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "limits.json").read_text())
QUICK = ("report.tensorboard=false", "report.html=false", "offline.pairs=300")


def test_the_unsafe_rate_of_a_run_under_limits_is_that_of_the_worlds_own_costs(tmp_path: Path) -> None:
    config = load("tabular-limits")
    assert isinstance(config.world, TabularWorldConfig)
    world = tabular_world(config.world)
    view = tabular_view(world, ArtifactStore(tmp_path), config)
    policy = view.oracle.optimum.policy
    rate = float(view.oracle.prior @ (policy / (1.0 + np.exp(-world.oracle.cost))).sum(axis=1))
    assert exact_values(view, policy)["unsafe_rate"] == pytest.approx(rate, abs=1e-12)


def recipe_of(number: int, folder: Path, **settings: Any) -> Path:
    """One of the worlds with known optima, as a world file and a recipe."""
    world = ORACLE[number]
    shape = np.array(world["reward"]).shape
    content: dict[str, Any] = {
        "prior": [1 / shape[0]] * shape[0],
        "reference": world["reference"],
        "reward": world["reward"],
        "cost": np.zeros(shape).tolist(),
        "baseline": world["reference"],
        "beta": world["beta"],
        "reward_max": 2.0,
        "cost_max": 6.0,
        "threshold": 5.0,
        "offline": {"covered": np.ones(shape, dtype=bool).tolist(), "pairs": 300},
        "measures": {},
    }
    limits = {}
    for limit in world["limits"]:
        kind, table = limit["quantity"], limit["measure"]
        entry = {kind: {"world": "cost" if kind == "logit" else limit["name"]}}
        entry |= {key: limit[key] for key in ("at_most", "at_least", "over") if limit.get(key) is not None}
        if kind == "logit":
            content["cost"] = table
        else:
            content["measures"][limit["name"]] = table
        limits[limit["name"]] = entry | ({"bounds": [0, 60]} if kind == "mean" else {"labels_each": 50})
    (folder / "world.json").write_text(json.dumps(content))
    sets = {
        name: {"share": f"{100 * one['share']:g} %", "indices": one["prompts"]}
        for name, one in world["prompt_sets"].items()
    }
    tree = {
        "extends": "tabular", "algorithm": "pd-dpo", "rounds": 10, "prompts": sets,
        "limits": {"cost": None, **limits},
        "world": {"kind": "tabular", "path": "world.json"}, "dual": {"rule": {"kind": "newton", "damping": 0.5}},
        "feedback": {"responses": 240}, **settings,
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(tree))
    return path


def three_limits(*overrides: str, rounds: int = 3) -> Config:
    return load("tabular-limits", [*QUICK, "feedback.responses=60", f"rounds={rounds}", *overrides])


# --- the optimum ----------------------------------------------------------------------------------------------------


@pytest.mark.run
@pytest.mark.parametrize("number", [5, *in_full(7, 10)], ids=lambda number: ORACLE[number]["kind"])
def test_a_run_keeps_limits_of_every_kind_and_finds_their_multipliers(number: int, tmp_path: Path) -> None:
    """Within 3 % of the measures' ranges; multipliers (mean of the late rounds) within 35 % and .2 per range."""
    path = recipe_of(number, tmp_path)
    result = run_recipe(load(str(path), [*QUICK, "offline.pairs=1500"]), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        steps = journal.dual_steps()
    for limit, wanted in zip(ORACLE[number]["limits"], ORACLE[number]["optimum"]["multipliers"], strict=True):
        said = result["limits"][limit["name"]]
        assert said["multiplier_optimum"] == pytest.approx(wanted, rel=1e-6, abs=1e-9)
        assert said["value_optimum"] == pytest.approx(limit.get("at_most", limit.get("at_least")), abs=1e-8)
        span = {"mean": 60.0, "logit": 12.0, "rate": 1.0}[limit["quantity"]]
        broken = said["value_mixture"] - said["bound"]
        assert (-broken if said["at_least"] else broken) <= 0.03 * span
        late = np.mean([step.multiplier_after for step in steps if step.constraint == limit["name"]][5:])
        assert abs(late - wanted) <= 0.35 * wanted + 0.2 / span
    assert result["f_optimum"] == pytest.approx(ORACLE[number]["optimum"]["f"], abs=1e-8)


@pytest.mark.run
def test_each_limit_may_begin_with_a_multiplier_of_its_own(tmp_path: Path) -> None:
    """Per range of its measure: harm's costs lie in [-2, 2], leaks is a rate."""
    firsts = ["limits.harm.dual={first: 2.0}", "limits.leaks.dual={first: 0.3}"]
    fixed = [*firsts, "dual.rule={kind: fixed}", "rounds=2"]
    run_recipe(load("tabular-limits", [*QUICK, *fixed]), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        said = {(step.round, step.constraint): step.multiplier_before for step in journal.dual_steps()}
    assert said == {(1, "harm"): 0.5, (1, "leaks"): 0.3, (2, "harm"): 0.5, (2, "leaks"): 0.3}


@pytest.mark.run
def test_limits_have_rules_and_bounds_of_their_own(tmp_path: Path) -> None:
    """harm stays, leaks moves by adaLag's rule between its floor and its own end; both per range of their measure."""
    harm, leaks = "{rule: {kind: fixed}, first: 2.0}", "{rule: {kind: log, rate: 4.0}, first: 1.0, upper: 1.25}"
    config = load("tabular-limits", [*QUICK, f"limits.harm.dual={harm}", f"limits.leaks.dual={leaks}", "rounds=4"])
    run_recipe(config, tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        steps = journal.dual_steps()
    assert {step.multiplier_after for step in steps if step.constraint == "harm"} == {0.5}
    prices = [1.0]
    for step in steps:
        if step.constraint == "leaks":
            grown = prices[-1] * np.exp(4.0 * prices[-1] * (step.estimate.value - 0.5))
            prices.append(min(max(grown, 0.05), 1.25))
            assert step.multiplier_after == pytest.approx(prices[-1])
    assert len(set(prices)) > 2


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("limits.leaks.dual={first: 9.0, upper: 4}", "limits.leaks.dual: first 9.0 lies outside"),
        ("limits.leaks.dual={first: -1.0}", "limits.leaks.dual.first: Input should be greater than or equal to 0"),
        ("limits.leaks.dual={furst: 1.0}", "limits.leaks.dual: unknown key `furst`; did you mean `first`?"),
        ("limits.leaks.dual={threshold: 1.0}", "limits.leaks.dual: unknown key `threshold`"),
        ("limits.leaks.dual=3", "limits.leaks.dual says how its multiplier moves"),
        ("limits.leaks.dual={rule: {kind: fixed}}", "needs dual.first, the multiplier to keep"),
        ("dual.first=-1.0", "`dual.first` is -1.0, but must be greater than or equal to 0"),
    ],
)
def test_settings_of_one_limits_multiplier_are_checked_with_their_place(own: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        load("tabular-limits", [own])


@pytest.mark.run
def test_a_limit_that_is_slack_ends_at_0_and_is_said_so(tmp_path: Path) -> None:
    result = run_recipe(load(str(recipe_of(8, tmp_path)), QUICK), tmp_path / "run")
    assert result["limits"]["also"]["multiplier_next"] == 0.0
    assert "does not bind" in result["limits"]["also"]["price"]["text"]
    assert "in place of 25.7 % would gain about" in result["limits"]["unsafe"]["price"]["text"]
    assert result["limits"]["unsafe"]["multiplier_next"] > 0.5


# --- one run --------------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_a_run_says_every_limit_in_its_own_unit_and_which_limit_moved_which_multiplier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pddpo_ray.parts.dual_step"):
        result = run_recipe(three_limits(), tmp_path / "run")
    leaks = result["limits"]["leaks"]
    assert (leaks["limit"], leaks["unit"], leaks["bound"]) == ("at most 50 % over private", "share", 0.5)
    assert 0.0 <= leaks["low"] <= leaks["estimate"] <= leaks["high"] <= 1.0
    assert any("multiplier of leaks" in line and "by leaks" in line for line in caplog.messages)
    with open_folder(tmp_path / "run") as journal:
        cells = {(answer.prompt.token_ids, answer.token_ids) for answer in journal.samples(1, "cost")}
        versions = [entry for entry in journal.versions() if entry.stage == "cost" and entry.round == 3]
    assert len(cells) > 1
    assert [entry.version.name for entry in versions] == ["policy-3-1", "policy-3"]


@pytest.mark.run
@pytest.mark.parametrize(
    "more", [[], *in_full(["limits.drift={kl: reference, at_most: 0.3}"])], ids=["two", "and drift"]
)
@pytest.mark.parametrize("algorithm", ["o-pd-dpo", *in_full("pd-dpo-adalag")])
def test_a_run_under_limits_that_breaks_off_goes_on_as_if_it_had_not(
    algorithm: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "dual.rule={kind: log}" if algorithm == "pd-dpo-adalag" else "dual.rule.kind=newton"
    config = three_limits(f"algorithm={algorithm}", rule, *more)
    whole = run_recipe(config, tmp_path / "whole")
    once = Journal.once

    def broken(journal: Journal, phase: str, compute: Any) -> Any:
        if journal.round == 3 and phase == "dual":
            raise RunError("the machine went away")
        return once(journal, phase, compute)

    monkeypatch.setattr(Journal, "once", broken)
    with pytest.raises(RunError, match="went away"):
        run_recipe(config, tmp_path / "broken")
    monkeypatch.setattr(Journal, "once", once)
    resumed = run_recipe(config, tmp_path / "broken", resume=True)
    assert resumed["limits"] == whole["limits"]
    assert resumed["gap_mixture"] == whole["gap_mixture"]


@pytest.mark.run
def test_fixed_multipliers_stay_and_have_no_price(tmp_path: Path) -> None:
    config = three_limits("algorithm=pd-dpo-fixed", "dual.rule={kind: fixed}", "dual.first=0.8")
    result = run_recipe(config, tmp_path / "run")
    # per range of the measure: 4 logits, and 1
    assert result["limits"]["harm"]["multiplier_next"] == pytest.approx(0.2)
    assert result["limits"]["leaks"]["multiplier_next"] == pytest.approx(0.8)
    assert result["limits"]["leaks"]["price"] is None


@pytest.mark.run
def test_without_limits_a_multiplier_of_0_takes_the_reward_policy_itself(tmp_path: Path) -> None:
    limit = "limits={cost: null, privacy: null, leaks: {rate: {world: privacy}, at_most: 99 %}}"
    config = load("tabular-two-limits", [*QUICK, limit, "dual.rule.kind=newton",
                                         "dual.rho=0.001", "rounds=2", "feedback.responses=40"])  # fmt: skip
    run_recipe(config, tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        reward, policy = (e.version for e in journal.versions() if e.round == 2)
        assert policy.sha256 == reward.sha256
        assert journal.metrics()[2]["fit/cost_skipped"] == 1.0


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.run
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["limits.leaks.at_mots=5 %"], "unknown key `at_mots`; did you mean `at_most`?"),
        (["limits.leaks.over=privat"], "there is no prompt set `privat`; did you mean `private`?"),
        (["limits.leaks.at_most=130 %"], "between 0 and 100 %"),
        (["limits.leaks.rate={world: privacy, labl: x}"], "unknown key `labl`"),
        (["prompts.private.share=30 %"], "sum to 90 %"),
        (["prompts.private.share=30 tokens"], "prompts"),
        (["prompts.private.indices=[]"], "prompts"),
        (["prompts.private.indices=[2, 9]"], "the world has the prompts 0 to 3, not 9"),
        (["limits.leaks.rate={world: privaci}"], "no rate called `privaci`; it has cost, privacy"),
        (["limits.leaks.rate={rule: refusal}"], "a table has none"),
        (["algorithm=c-dpo", "dual.rule={kind: anytime}"], "holds one limit, named cost"),
        (["limits.cost.at_most=0.1"], "needs exactly one of rate, mean, logit, kl"),
        (["limits.leaks.at_most=1 %"], "no policy of this world keeps at most 1 % over private"),
        (["limits.drift={kl: reference, at_most: 0}"], "a kl limit is above 0"),
        (["limits.drift={kl: reference, at_most: 8}", "limits.far={kl: reference, at_most: 9}"], "one reference"),
        (["limits.on={rate: {world: cost}, at_most: 5}"], "between 0 and 100 %"),
    ],
)
def test_what_cannot_be_held_is_refused_in_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        run_recipe(three_limits(*overrides), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.run
def test_limits_that_can_be_kept_alone_but_not_together_are_refused_with_what_is_reachable(tmp_path: Path) -> None:
    """Two measures of which one is the other's complement: 40 % and 40 % cannot both hold."""
    path = recipe_of(0, tmp_path)
    world = world_json(load_world(tmp_path / "world.json"))
    world["measures"]["rest"] = (1 - np.array(world["measures"]["unsafe"])).tolist()
    (tmp_path / "world.json").write_text(json.dumps(world))
    both = ["limits.unsafe.at_most=40 %", "limits.rest={rate: {world: rest}, at_most: 40 %}"]
    with pytest.raises(UserError, match="not all together; the least broken choice has unsafe 50 %, rest 50 %"):
        run_recipe(load(str(path), [*QUICK, *both]), tmp_path / "run")


def test_prompt_sets_without_limits_are_refused() -> None:
    with pytest.raises(UserError, match="no limit names these sets"):
        load("tabular", ["prompts={a: {share: 100 %, indices: [0]}}"])


def test_sections_that_a_recipe_leaves_out_are_not_in_its_digest() -> None:
    settings = load("tabular").fixed_settings()
    assert "reward" not in settings
    assert "prompts" not in settings
    assert set(load("tabular-limits").fixed_settings()) >= {"limits", "prompts"}


@pytest.mark.run
@pytest.mark.parametrize(
    ("rule", "step"),
    [
        # first / (C' sqrt K): 0.3 / ((0.5 + 0) sqrt 4)
        ("{kind: projected, curvature_cap: false}", lambda number, price: 0.3),
        *in_full(
            ("{kind: anytime, first_step: 0.2, curvature_cap: false}", lambda number, price: 0.2 / np.sqrt(number)),
            ("{kind: log, rate: 0.5}", None),
        ),
    ],
)
def test_every_rule_moves_measured_limits_each_by_its_own_estimate(rule: str, step: Any, tmp_path: Path) -> None:
    """Prices and excesses per range: harm's costs lie in [-2, 2], leaks is a rate; both limits are in the middle."""
    config = load("tabular-limits", [*QUICK, "dual.first=0.3", f"dual.rule={rule}", "rounds=4"])
    run_recipe(config, tmp_path / "run")
    assert isinstance(config.world, TabularWorldConfig)
    rho = tabular_view(tabular_world(config.world), ArtifactStore(tmp_path / "store"), config).oracle.rho
    scales, limits, moved = {"harm": 4.0, "leaks": 1.0}, {"harm": 0.0, "leaks": 0.5}, 0
    with open_folder(tmp_path / "run") as journal:
        for one in journal.dual_steps():
            scale = scales[one.constraint]
            price, excess = one.multiplier_before * scale, (one.estimate.value - limits[one.constraint]) / scale
            following = (
                price * np.exp(0.5 * price * excess) if step is None else price + step(one.round, price) * excess
            )
            low, high = (0.05 if step is None else 0.0), 2.0 * rho
            assert one.multiplier_after * scale == pytest.approx(min(max(following, low), high))
            moved += one.multiplier_after != one.multiplier_before
    assert moved >= 6


# --- version 0.1 ----------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_a_rate_of_version_0_1_is_held_against_the_true_rate(tmp_path: Path) -> None:
    """Its exact value is the chance of a label "unsafe" and not the logit: here summed by hand from the world."""
    rate = [
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.labels_each=1",
        "limits.cost.at_most=0.3",
        "dual.rho=4.0",
    ]
    config = load("tabular", [*QUICK, *rate, "rounds=2", "feedback.responses=64"])
    result = run_recipe(config, tmp_path / "run")
    assert isinstance(config.world, TabularWorldConfig)
    world = tabular_world(config.world)
    with open_folder(tmp_path / "run") as journal:
        entry = next(e for e in reversed(journal.versions()) if e.stage == "cost")
        store = ArtifactStore(tmp_path / "run" / "artifacts")
        table = np.exp(store.read_tensors(entry.version.path, entry.version.sha256)["log_probs"])
    true = float(np.sum(world.oracle.prior[:, None] * table / (1 + np.exp(-world.oracle.cost))))
    assert result["g_last"] + 0.3 == pytest.approx(true, abs=1e-9)
    assert result["outcome"]["limits"][0]["kind"] == "rate"
    text = Page.of(build_report(tmp_path / "run")).text
    assert "cost: at most 30 %" in text
    assert f"{100 * true:.3g} %" in text


# --- what people see ------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_a_limits_price_choices_and_pictures_are_said_in_its_unit(tmp_path: Path) -> None:
    """Prices by hand: the mean multiplier of the last half times the change, .8 logits and 10 % points."""
    config = three_limits(rounds=4)
    result = run_recipe(config, tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        late = {name: np.mean([step.multiplier_after for step in journal.dual_steps() if step.constraint == name][2:])
                for name in ("harm", "leaks")}  # fmt: skip
        unsafe = journal.metrics()[4]["cost/unsafe_rate"]
        (reached,) = (entry.payload for entry in journal.phases(like="reachable"))
    assert result["limits"]["harm"]["price"]["gain"] == pytest.approx(0.8 * late["harm"])
    assert result["limits"]["leaks"]["price"]["gain"] == pytest.approx(0.1 * late["leaks"])
    assert result["outcome"]["limits"][0]["kind"] == "logit"
    assert 0.2 < unsafe < 0.8
    assert reached["jointly"] is True
    page = Page.of(build_report(tmp_path / "run"))
    for said in ("Helpfulness and leaks", "Estimates of harm", "leaks: at most 50 % over private", "Can they be kept?",
                 "at most 50 % over private", "What the limits cost", "in place of 50 % would gain"):  # fmt: skip
        assert said in page.text
    shown = {item.key: item for item in page.numbers if item.key}
    assert shown["leaks/exact/value"].value == result["limits"]["leaks"]["value_last"]
    assert shown["leaks/exact/value"].shown == f"{100 * result['limits']['leaks']['value_last']:.3g} %"


def test_the_dry_run_counts_labels_and_says_what_a_table_reaches() -> None:
    """By hand: 40 pairs and 60 answers a round, 300 offline pairs; leaks are asked on 40 % of the prompts, twice."""
    config = three_limits(rounds=3)
    plan = make_plan(config, inspect_machine())
    pairs = config.pairs_asked
    assert plan["labels"]["limits"]["harm"]["in_all"] == 20 * (600 + 3 * (60 + 2 * pairs))
    assert plan["labels"]["limits"]["leaks"]["before"] == 2 * 240
    assert plan["labels"]["safety"] == 0
    harm, leaks = plan["limits"]["can_be_kept"]
    assert harm.startswith("harm, at most 0 logit: -1.5")
    assert leaks.startswith("leaks, at most 50 % over private: 36.9 % at best")
    with pytest.raises(UserError, match="no policy of this world keeps at most 1 % over private"):
        make_plan(three_limits("limits.leaks.at_most=1 %"), inspect_machine())


def test_before_round_1_a_limit_that_no_answer_keeps_is_a_warning(tmp_path: Path) -> None:
    """Two prompts, two texts each, measured twice; by hand: the best choice has (.2 + .6) / 2 and measures .45."""
    given = {"rate": {"world": "privacy"}, "at_most": "30 %", "labels_each": 2}
    stated = stated_limit("leaks", given, "recipe")
    held = HeldLimit(stated, 1.0, {(1,): 1.0, (2,): 1.0})
    values = {((1,), (5,)): (0.2, 0.3), ((1,), (6,)): (0.9, 0.9), ((2,), (5,)): (0.6, 0.6), ((2,), (6,)): (0.8, 0.1)}
    measured = [
        MeasuredAnswer(0, prompt, answer, "d", np.array([value]), np.zeros(1), np.zeros(1, dtype=bool))
        for (prompt, answer), both in values.items()
        for value in both
    ]
    found = reached([held], measured, {(1,): 0.5, (2,): 0.5})
    assert found is not None
    assert found.lowest[0] == pytest.approx(0.45 - 0.30)
    assert found.broken[0] == pytest.approx(0.5)
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as journal:
        note_reachable(journal, [held], measured, {(1,): 0.5, (2,): 0.5})
        (entry,) = journal.phases(like="reachable")
    assert "leaks: choosing among the answers that there are reaches about 45 %" in entry.payload["warnings"][0]
    once = [one for index, one in enumerate(measured) if index % 2 == 0]
    assert reached([held], once, {(1,): 0.5, (2,): 0.5}) is None
    assert reached([], measured, {(1,): 0.5, (2,): 0.5}) is None, "a limit on the drift alone is on no answer"


@pytest.mark.run
def test_a_mean_and_at_least_of_a_mean_have_the_enumerated_optimum_and_are_kept(tmp_path: Path) -> None:
    """World 2 mirrored: 60 minus its length, at least 60 - 18.8, has the multipliers that are known of world 2."""
    path = recipe_of(2, tmp_path)
    world = world_json(load_world(tmp_path / "world.json"))
    world["measures"]["length"] = (60.0 - np.array(world["measures"]["length"])).tolist()
    (tmp_path / "world.json").write_text(json.dumps(world))
    tree = json.loads(path.read_text())
    tree["limits"]["length"] = {
        "mean": {"world": "length"}, "at_least": 60.0 - tree["limits"]["length"]["at_most"], "bounds": [0, 60]
    }  # fmt: skip
    path.write_text(json.dumps(tree))
    result = run_recipe(load(str(path), [*QUICK, "offline.pairs=1500"]), tmp_path / "run")
    for limit, wanted in zip(ORACLE[2]["limits"], ORACLE[2]["optimum"]["multipliers"], strict=True):
        assert result["limits"][limit["name"]]["multiplier_optimum"] == pytest.approx(wanted, rel=1e-6)
    length = result["limits"]["length"]
    assert length["value_optimum"] == pytest.approx(length["bound"], abs=1e-6)
    assert length["value_mixture"] >= length["bound"] - 0.03 * 60
    assert length["limit"].startswith("at least 41.17")


@pytest.mark.run
def test_multipliers_end_at_the_optimum_of_what_was_learned(tmp_path: Path) -> None:
    """World 3: with 1,500 offline pairs the reward of rare answers is poorly known, so a multiplier ends far from the
    world's; with the learned reward in place of the true one the optimum's multipliers are those of the run."""
    path, oracle = recipe_of(3, tmp_path), ORACLE[3]
    config = load(str(path), [*QUICK, "offline.pairs=1500"])
    run_recipe(config, tmp_path / "run")
    assert isinstance(config.world, TabularWorldConfig)
    limits = limits_on(tabular_world(config.world), config)
    with open_folder(tmp_path / "run") as journal:
        reward = next(entry.version for entry in reversed(journal.versions()) if entry.stage == "reward")
        steps = journal.dual_steps()
    stored = ArtifactStore(tmp_path / "run" / "artifacts").read_tensors(reward.path, reward.sha256)
    learned = oracle["beta"] * (stored["log_probs"] - np.log(np.array(oracle["reference"])))
    best = replace(limits.oracle(oracle["beta"]), reward=learned).optimum
    for name, wanted, scale in zip(
        ("refuses", "length"), (best.multiplier, *best.further_multipliers), limits.scales, strict=True
    ):
        late = scale * np.mean([step.multiplier_after for step in steps if step.constraint == name][5:])
        assert late == pytest.approx(wanted, rel=0.25)


@pytest.mark.run
def test_a_run_s_fits_learn_from_the_newest_answers_where_the_recipe_says_so(tmp_path: Path) -> None:
    """Round 1 has the offline answers alone, later rounds its own beside them."""
    hashes = {}
    for measured in ("all", "newest"):
        config = load("tabular-limits", [*QUICK, "rounds=2", f"trainer.measured={measured}"])
        run_recipe(config, tmp_path / measured)
        with open_folder(tmp_path / measured) as journal:
            hashes[measured] = [one.sha256 for one in journal.policies]
    alike = [one == other for one, other in zip(hashes["all"], hashes["newest"], strict=True)]
    assert alike == [True, False]
