"""`pddpo verify`: the fast twin agrees with the parts, E2's claims hold, the command says what it found."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.verify import command
from pddpo_lab.verify.checks import FORMULAS, Check, exact_dual_run
from pddpo_lab.verify.command import VerifyOptions, main, run_single
from pddpo_lab.verify.experiments import (
    bias_table,
    curve,
    e2_table,
    interval_claims,
    random_worlds_table,
    theory_table,
)
from pddpo_lab.verify.methods import (
    COMPARED,
    EXACT,
    NO_BONUS,
    OFFLINE,
    PROPOSALS,
    PUBLIC,
    SHIPPED,
    TABLE,
    TheoryBonus,
    paper,
    split,
)
from pddpo_lab.verify.page import WORDS, gap_chart, render
from pddpo_lab.verify.pieces import Pieces
from pddpo_lab.verify.simulate import _bonuses, _collect, _initial, _policies, simulate
from pddpo_lab.verify.split_roles import split_role_claims
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import TabularWorld, random_world, trap_world
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.errors import UserError
from pddpo_ray.records import Objective, PairRow
from pddpo_ray.storage.artifacts import ArtifactStore


def quiet(line: str) -> None:
    return None


@pytest.fixture
def world() -> TabularWorld:
    return trap_world()


def rows_of_wins(wins: np.ndarray, *, costs: bool) -> tuple[PairRow, ...]:
    rows = []
    for x, winner, loser in zip(*np.nonzero(wins), strict=True):
        sides = (loser, winner) if costs else (winner, loser)
        weight = float(wins[x, winner, loser])
        rows.append(PairRow(f"{x}-{winner}-{loser}", (int(x),), (int(sides[0]),), (int(sides[1]),), 0, weight))
    return tuple(rows)


@pytest.mark.parametrize("margins", [False, True])
def test_the_vectorised_twin_fits_what_the_trainer_backend_fits(
    world: TabularWorld, tmp_path: Path, margins: Any
) -> None:
    """Same pairs, both stages, with and without the optimistic class: the tables agree to 1e-7."""
    method = paper(3)
    state = _initial(world, method, 10, [4])
    multiplier = np.array([0.3])
    plain, optimistic = _policies(world, method, state, multiplier, 10)
    trainer = TabularTrainer(world, ArtifactStore(tmp_path))
    bonus = _bonuses(world, method, state, 10)
    base = trainer.reference
    stage: Any
    for number, (stage, temperature, wins, table) in enumerate(
        [
            ("reward", 0.1, state.wins_reward[0], bonus[0][0]),
            ("cost", 0.1 / 0.3, state.wins_cost[0], bonus[1][0]),
        ],
        start=1,
    ):
        rows = rows_of_wins(wins, costs=stage == "cost")
        objective = Objective(stage, base, temperature, 0.3 if stage == "cost" else None)
        if margins:
            given = tuple(
                float(table[row.prompt[0], row.rejected[0]] - table[row.prompt[0], row.chosen[0]]) for row in rows
            )
            objective = dataclasses.replace(objective, margins=given, answer_bonus=tuple(table.ravel().tolist()))
        done = trainer.execute(FitCommand(number, Start(base), objective, rows, FitSettings(), 0, f"{stage}-{number}"))
        base = done.version
    expected = optimistic[0] if margins else plain[0]
    np.testing.assert_allclose(np.exp(trainer.table(base)), expected, atol=1e-7)


def test_runs_repeat_and_seeds_do_not_touch_each_other(world: TabularWorld) -> None:
    both = simulate(world, EXACT, rounds=6, seeds=[3, 8])
    alone = simulate(world, EXACT, rounds=6, seeds=[8])
    for field in dataclasses.fields(both):
        np.testing.assert_allclose(getattr(both, field.name)[1:], getattr(alone, field.name), rtol=1e-7, atol=1e-9)


def test_split_roles_use_the_policy_without_bonus_and_paper_mode_the_optimistic_one(world: TabularWorld) -> None:
    divided = simulate(world, split(4), rounds=4, seeds=[0])
    np.testing.assert_array_equal(divided.f_policy, divided.f_last)
    united = simulate(world, paper(4), rounds=4, seeds=[0])
    assert (united.f_policy != united.f_last).all()


def test_the_mixture_is_the_running_mean_of_the_policies(world: TabularWorld) -> None:
    trace = simulate(world, OFFLINE, rounds=5, seeds=[1])
    np.testing.assert_allclose(trace.g_mixture[0], np.cumsum(trace.g_policy[0]) / np.arange(1, 6), rtol=1e-12)
    assert (trace.f_mixture >= np.cumsum(trace.f_policy, axis=1) / np.arange(1, 6) - 1e-12).all()


def test_reward_only_and_loss_only_bonuses_leave_out_what_they_say(world: TabularWorld) -> None:
    state = _initial(world, paper(2), 10, [0])
    reward, cost = _bonuses(world, paper(2, cost_bonus=False), state, 10)
    assert reward.min() > 0
    assert cost.max() == 0
    free, _ = _bonuses(world, paper(2, loss_only=True), state, 10)
    assert (free[..., 4:] == 0).all()


def test_theory_bonus_is_constant_once_clipped(world: TabularWorld) -> None:
    method = paper(2, theory=TheoryBonus(clip=2.0), centred=False)
    reward, _ = _bonuses(world, method, _initial(world, method, 300, [0]), 300)
    np.testing.assert_array_equal(reward, 4.0)


@pytest.mark.slow
def test_exploration_closes_the_gap_that_offline_data_and_no_bonus_leave(world: TabularWorld) -> None:
    """E2 in small: 4 paired seeds, 60 rounds."""
    seeds = range(4)
    covered = world.oracle.covered_only(world.covered)
    gap = world.oracle.gap_of(covered.f, covered.g)
    offline, stuck, found = (curve(world, m, rounds=60, seeds=seeds).final for m in (OFFLINE, NO_BONUS, EXACT))
    assert offline == pytest.approx(gap, rel=0.1)
    assert stuck == pytest.approx(gap, rel=0.05)
    assert found < 0.5 * stuck


@pytest.mark.parametrize(
    ("cost_max", "labels", "bias", "rmse"),
    [(2, 1, 1.01, 1.13), (2, 5, 0.41, 0.79), (2, 20, 0.17, 0.46), (2, 50, 0.09, 0.30), (5, 1, 3.43, 1.93),
     (5, 20, 1.03, 0.73)],
)  # fmt: skip
def test_smoothing_has_the_bias_of_the_specification_and_the_clip_has_less(
    cost_max: int, labels: int, bias: float, rmse: float
) -> None:
    (row,) = [r for r in bias_table() if (r["cost_max"], r["labels_each"]) == (cost_max, labels)]
    assert row["largest_bias_anscombe"] == pytest.approx(bias, abs=0.012)
    assert row["mean_rmse_anscombe"] == pytest.approx(rmse, rel=0.08)
    assert row["largest_bias"] < row["largest_bias_anscombe"]


def test_proposals_only_is_half_the_policy_and_half_the_reference(world: TabularWorld) -> None:
    """First answers of a round's pairs against enumeration; nothing is optimistic about the policy."""
    method = dataclasses.replace(PROPOSALS, pairs_per_round=40_000)
    state = _initial(world, method, 10, [0])
    before = state.wins_reward[0].sum(axis=(1, 2))
    multiplier = np.array([0.5])
    plain, optimistic = _policies(world, method, state, multiplier, 10)
    assert optimistic is plain
    pairs = state.wins_reward[0].copy()
    _collect(world, method, state, plain, optimistic, multiplier, [0], 1)
    assert (state.wins_reward[0].sum(axis=(1, 2)) - before).sum() == 40_000
    # the baseline never writes answers 4 to 7, so a pair that holds one has it from the behaviour policy
    added = state.wins_reward[0] - pairs
    rare = added[:, 4:, :].sum() + added[:, :4, 4:].sum()
    wanted = float(world.oracle.prior @ ((plain[0] + world.oracle.reference)[:, 4:].sum(axis=1) / 2.0))
    assert rare / 40_000 == pytest.approx(wanted, abs=4.0 * np.sqrt(wanted / 40_000))


def test_exact_dual_run_moves_to_the_optimum(world: TabularWorld) -> None:
    multipliers = exact_dual_run(world.oracle, first=world.oracle.rho, rounds=400)
    assert multipliers[0] == world.oracle.rho
    assert multipliers[-1] == pytest.approx(world.oracle.optimum.multiplier, rel=0.02)


@pytest.mark.parametrize("method", TABLE, ids=lambda method: method.name)
def test_every_row_of_the_tables_runs(world: TabularWorld, method: Any) -> None:
    trace = simulate(world, method, rounds=2, seeds=[0])
    assert np.isfinite([getattr(trace, field.name) for field in dataclasses.fields(trace)]).all()


def test_full_tables_have_a_row_per_method(world: TabularWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    few = dataclasses.replace(EXACT, responses=8)
    monkeypatch.setattr("pddpo_lab.verify.experiments.TABLE", (few,))
    monkeypatch.setattr("pddpo_lab.verify.experiments.RANDOM_WORLD_ROWS", (few.name,))
    (row,) = e2_table(world, seeds=[0, 1], progress=quiet, horizons=(2, 5))
    assert {"gap_2", "gap_5", "se_5", "last", "se_last"} < set(row)
    assert float(str(row["gap_5"])) >= float(str(row["marginal"]))
    (row,) = random_worlds_table(worlds=2, progress=quiet, rounds=3)
    assert float(str(row["gap"])) > 0
    assert len(theory_table(world, progress=quiet, rounds=3)) == 5


def test_long_tables_that_broke_off_go_on_with_the_rows_they_have(tmp_path: Path) -> None:
    made: list[str] = []

    def row(name: str, fails: bool = False) -> dict[str, object]:
        if fails:
            raise KeyboardInterrupt
        made.append(name)
        return {"method": name, "gap": 0.5}

    first = Pieces(tmp_path / "out")
    assert first.row("one", lambda: row("one")) == {"method": "one", "gap": 0.5}
    with pytest.raises(KeyboardInterrupt):
        first.row("two", lambda: row("two", fails=True))
    again = Pieces(tmp_path / "out")
    assert [again.row(name, partial(row, name)) for name in ("one", "two")] == [row("one"), row("two")]
    assert made == ["one", "two", "one", "two"]  # the first two by the tables, the others by the line above
    assert again.cpu_minutes < 1


def test_rows_of_other_sources_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pieces(tmp_path).row("one", lambda: {"gap": 1.0})
    monkeypatch.setattr("pddpo_lab.verify.pieces.fingerprint", lambda: "another" * 8)
    assert Pieces(tmp_path).row("one", lambda: {"gap": 2.0}) == {"gap": 2.0}


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def world_file(world: TabularWorld, tmp_path: Path) -> str:
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_json(world)))
    return str(file)


@pytest.mark.parametrize("method", sorted(PUBLIC))
def test_one_world_prints_the_keys_that_scripts_rely_on(
    world_file: str, world: TabularWorld, capsys: pytest.CaptureFixture[str], method: Any
) -> None:
    options = VerifyOptions(world=world_file, method=method, rounds=3, seed=2, json=True)
    assert main(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["f_optimum"] == pytest.approx(world.oracle.optimum.f)
    assert found["multiplier_optimum"] == pytest.approx(world.oracle.optimum.multiplier)
    assert found["rho"] == pytest.approx(world.oracle.rho)
    assert len(found["rounds"]) == 3
    expected = {"multiplier", "cost_estimate", "f_policy", "g_policy", "f_mixture", "g_mixture"}
    assert all(expected <= set(row) for row in found["rounds"])
    assert found["rounds"][0]["multiplier"] == pytest.approx(world.oracle.rho)


def test_one_world_prints_a_table_for_people(world_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(VerifyOptions(world=world_file, rounds=2)) == 0
    assert "lambda*" in capsys.readouterr().out


def test_a_limit_that_does_not_bind_has_multiplier_zero(world: TabularWorld) -> None:
    loose = dataclasses.replace(world, oracle=dataclasses.replace(world.oracle, threshold=1.5))
    assert run_single(loose, EXACT, rounds=2, seed=0)["multiplier_optimum"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"method": "ppo"}, "unknown method 'ppo'"), ({"rounds": 0}, "--rounds"), ({"seed": -1}, "--seed")],
)
def test_impossible_requests_are_refused(world_file: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(dataclasses.replace(VerifyOptions(world=world_file), **changes))


def small_run(passed: bool, world: TabularWorld) -> Any:
    curves = {method.name: curve(world, method, rounds=3, seeds=[0, 1]) for method in (OFFLINE, EXACT)}
    checks = [
        Check("This claim holds.", "a share", 0.1, "<= 1", True),
        Check("That one is told of.", "another share", 2.0, "<= 1", passed),
    ]
    result = {"passed": passed, "checks": [dataclasses.asdict(check) for check in checks]}
    return lambda **_: (result, curves, world)


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_exit_code_says_whether_every_check_holds(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    world: TabularWorld,
    passed: bool,
    code: int,
) -> None:
    monkeypatch.setattr(command, "run_verify", small_run(passed, world))
    assert main(VerifyOptions(out=str(tmp_path / "out"))) == code
    printed = capsys.readouterr().out
    assert ("FAILS" in printed) is not passed
    assert "This claim holds." in printed
    assert f"{2 if passed else 1} of 2 claims hold." in printed
    assert ("That one is told of. Measured: another share." in printed) is not passed
    assert json.loads((tmp_path / "out" / "verify.json").read_text())["passed"] is passed
    assert ("fails" in (tmp_path / "out" / "verify.html").read_text()) is not passed


def test_a_folder_that_cannot_be_written_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: TabularWorld
) -> None:
    monkeypatch.setattr(command, "run_verify", small_run(True, world))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        main(VerifyOptions(out=str(tmp_path / "file" / "out")))


@pytest.mark.parametrize("check", FORMULAS, ids=lambda check: check.__name__)
def test_every_formula_is_claimed_in_one_short_sentence(world: TabularWorld, check: Any) -> None:
    """Plain words: no Greek but ρ and β, no equation, no code."""
    words = check(world).in_words
    assert re.fullmatch(r"[A-Z][^.=_<>|]{20,95}\.", words), words


@pytest.mark.full
def test_the_whole_command_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the ratios of E2 on the trap world: 300 rounds, each method on the same ten seeds."""
    assert main(VerifyOptions(out=str(tmp_path), json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(check["passed"] for check in found["checks"])
    assert len(found["checks"]) > 40
    assert all({"claim", "value", "reference", "passed", "in_words"} == set(check) for check in found["checks"])


def test_plot_of_a_single_seed_has_no_band(world: TabularWorld) -> None:
    """One mark per round and one per round of the bound; the band of two seeds is an interval more."""
    one, two = (
        gap_chart(world, {"one": curve(world, OFFLINE, rounds=7, seeds=seeds)}, "Gaps", "") for seeds in ([0], [0, 1])
    )
    assert one.count("<title>round ") == 7 + 3
    assert ("standard errors" in one, "standard errors" in two) == (False, True)


def drawn(world: TabularWorld, checks: list[Check]) -> str:
    """The page with every curve, three rounds long."""
    one = curve(world, OFFLINE, rounds=3, seeds=[0, 1])
    curves = {method.name: dataclasses.replace(one, method=method) for method in COMPARED}
    return render(world, curves, [dataclasses.asdict(check) for check in checks])


def test_every_method_is_in_a_picture_and_no_two_curves_of_one_look_alike(world: TabularWorld) -> None:
    figures = re.findall(r"<figure.*?</figure>", drawn(world, []), re.S)
    legends = [re.findall(r'<i class="key ([^"]+)"></i>([^<]+)', figure) for figure in figures]
    assert {name for legend in legends for _, name in legend} > {method.name for method in COMPARED}
    for legend in legends:
        assert len({look for look, _ in legend}) == len(legend), legend


@pytest.mark.slow
def test_every_symbol_of_the_page_is_explained_on_it(world: TabularWorld) -> None:
    """Greek letters and their names, single capitals, names with _ or *, abbreviations."""
    claims = [check(world) for check in FORMULAS] + interval_claims() + split_role_claims()
    body = re.sub(r"<svg.*?</svg>|<style>.*?</style>|<footer>.*", "", drawn(world, claims), flags=re.S)
    text = html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<dl.*?</dl>", "", body, flags=re.S)))
    symbol = r"[Α-ω]|\b\w+\*|\b\w+_\w+\b|\b[A-Z][A-Z-]*[A-Z]\b|\b(?:[A-Z]|lambda|rho|beta|Var)\b"
    words = " ".join([*WORDS, *WORDS.values()])
    methods = {"PD-DPO", "O-PD-DPO"}
    used = set(re.findall(symbol, text)) - methods - {"A"}
    assert used > {"ρ", "lambda*", "pi_r", "TV", "K"}
    assert {one for one in used if not re.search(rf"(?<!\w){re.escape(one)}(?!\w)", words)} == set()


def test_what_runs_do_leads_the_page_and_the_exact_draw_stands_beside_it() -> None:
    """Runs draw from candidates, as `explore.bonus: elliptical` does; the exact draw needs every answer."""
    assert (PUBLIC["o-pd-dpo"].behaviour, PUBLIC["o-pd-dpo-exact"].behaviour) == ("resampled", "optimistic")
    shipped, exact = (COMPARED.index(one) for one in (SHIPPED, EXACT))
    assert exact == shipped + 1
    assert COMPARED.index(PROPOSALS) < shipped
    assert dataclasses.replace(SHIPPED, name=EXACT.name, behaviour="optimistic") == EXACT


def test_random_worlds_run_the_default_method() -> None:
    found = run_single(random_world(0), EXACT, rounds=3, seed=0)
    assert all(row["gap_mixture"] >= 0 for row in found["rounds"])
