"""Whole runs in one process on the trap world: results, methods, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pddpo_lab.worlds.tabular.parts import TabularEngine
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.algorithms.stages import Parts, Sizes
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import RoundFinished, RunFinished, RunStarted, run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import read_journal
from pddpo_ray.parts.dual_step import DualController
from pddpo_ray.records import CandidateSet, CostEstimate, Pair, PolicyVersion, Prompt, Response, UniformMixture
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from tests.support.method_modules import METHODS
from tests.unit.loop.small_run import finish, small, story

pytestmark = pytest.mark.run

RESULT_KEYS = {
    "f_reference", "g_reference", "f_offline", "g_offline", "f_mixture", "g_mixture", "f_last", "g_last", "f_optimum",
    "g_optimum", "multiplier", "multiplier_optimum", "gap_offline", "gap_covered_only", "gap_last",
    "off_support_last", "slope_reward", "slope_cost", "rounds", "labels_used", "seconds", "seconds_by_phase",
    "tokens_per_second", "sync_seconds", "weights_verified",
}  # fmt: skip


def test_a_result_has_every_promised_key_and_agrees_with_the_oracle(tmp_path: Path) -> None:
    heard: list[Any] = []
    result = run_recipe(small("offline.compare_rounds=2"), tmp_path / "run", progress=heard.append)
    assert set(result) >= RESULT_KEYS
    assert json.loads((tmp_path / "run" / RESULT).read_text()) == result
    oracle = trap_world().oracle
    assert result["f_optimum"] == oracle.optimum.f
    assert result["multiplier_optimum"] == oracle.optimum.multiplier
    assert result["f_reference"] == pytest.approx(oracle.f(oracle.reference), abs=1e-15)
    assert result["gap_covered_only"] == pytest.approx(0.464, abs=1e-3)
    assert result["gap_last"] == pytest.approx(oracle.gap_of(result["f_last"], result["g_last"]), abs=1e-12)
    # 2 rounds x 10 answers x 4 labels, and two labels for each of 40 + 2 x 6 pairs
    assert result["labels_safety"] == 80
    assert result["labels_used"] == 80 + 2 * result["labels_pairs"]
    assert result["labels_pairs"] <= 52
    assert result["rounds"] == 2
    assert result["weights_verified"] is True
    assert isinstance(heard[0], RunStarted)
    assert [event.round for event in heard if isinstance(event, RoundFinished) and event.run == "run"] == [1, 2]
    assert heard[-1] == RunFinished("run", result)


@pytest.mark.parametrize("algorithm", ["o-pd-dpo", "o-pd-dpo-paper"])
def test_choosing_pairs_before_or_after_the_dual_step_changes_no_number(
    tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explorer's weight in round k is lambda_k, whether the round's step was taken already or not."""
    config = small(f"algorithm={algorithm}", rounds=3)
    weights: list[tuple[float, float]] = []
    step = DualController.step

    def seen(dual: DualController, estimates: Sequence[CostEstimate], covariance: Any) -> dict[str, float]:
        before, following, after = dual.multiplier, step(dual, estimates, covariance), dual.multiplier
        weights.append((before, after))
        return following

    monkeypatch.setattr(DualController, "step", seen)
    shipped = finish(config, tmp_path / "shipped" / "run")
    monkeypatch.setattr(DualController, "step", step)
    page = METHODS[algorithm]
    step_first, read = with_the_step_first(page)
    monkeypatch.setattr(page, "run", step_first)
    other = finish(config, tmp_path / "other" / "run")
    assert other == shipped
    before = [step.multiplier_before for step in shipped["dual"]]
    assert len(set(before)) == 3, "a multiplier that stands still would show nothing"
    assert weights == [(value, value) for value in before]
    assert read == before


def with_the_step_first(page: ModuleType) -> tuple[Callable[..., Any], list[float]]:
    """The page, but the dual step is taken as soon as there are answers; and the weights of its choices."""
    shipped, read = page.run, []

    def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
        choose, draw, step = parts.exploration.choose, parts.rollout.sample, parts.limits.step

        def draw_and_step(
            asked: Sequence[Prompt], policy: PolicyVersion, paired: Sequence[Prompt], each: int
        ) -> list[Response]:
            answers = draw(asked, policy, paired, each)
            step(answers)
            return answers

        def choose_and_note(candidates: Sequence[CandidateSet]) -> list[Pair]:
            read.append(parts.exploration._explorer._multiplier())  # type: ignore[attr-defined]
            return choose(candidates)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts.rollout, "sample", draw_and_step)
            patch.setattr(parts.limits, "step", lambda answers: None)
            patch.setattr(parts.exploration, "choose", choose_and_note)
            return shipped(parts, sizes, reference)

    return run, read


@pytest.mark.full
def test_exploring_online_halves_the_gap_of_offline_training_in_the_trap(tmp_path: Path) -> None:
    config = load(
        "tabular", ["rounds=12", "offline.compare_rounds=12", "feedback.responses=128", "limits.cost.labels_each=16"]
    )
    result = run_recipe(config, tmp_path / "run")
    assert result["gap_offline"] == pytest.approx(result["gap_covered_only"], rel=0.25)
    assert result["gap_last"] < 0.5 * result["gap_offline"]
    with (
        read_journal(tmp_path / "run" / JOURNAL, "run") as online,
        read_journal(tmp_path / "run" / JOURNAL, "run-offline") as offline,
    ):
        assert [entry.labelled for entry in online.pairs(0)] == [entry.labelled for entry in offline.pairs(0)]


def test_the_mixtures_cost_is_the_mean_of_the_rounds_and_f_is_at_least_theirs(tmp_path: Path) -> None:
    result = run_recipe(small(rounds=3), tmp_path / "run")
    with read_journal(tmp_path / "run" / JOURNAL, "run") as journal:
        rounds = [values for number, values in journal.metrics().items() if number > 0]
    costs = [values["exact/g_policy"] for values in rounds]
    assert result["g_mixture"] == pytest.approx(sum(costs) / 3, abs=1e-12)
    assert result["f_mixture"] >= sum(values["exact/f_policy"] for values in rounds) / 3 - 1e-12


def test_every_step_of_the_multiplier_is_the_projected_one(tmp_path: Path) -> None:
    """eta = first / ((C + |d|) sqrt(K)) with first = rho, C = 2, d = 0, K = 3, no cap."""
    config = small("dual.rule={kind: projected, curvature_cap: false}", rounds=3)
    steps = finish(config, tmp_path / "run")["dual"]
    rho = trap_world().oracle.rho
    expected = rho
    for step in steps:
        assert step.multiplier_before == expected
        expected = min(max(expected + rho / (2 * math.sqrt(3)) * step.estimate.value, 0.0), 2 * rho)
        assert step.multiplier_after == pytest.approx(expected, abs=1e-15)
        expected = step.multiplier_after
    assert len(steps) == 3


def test_the_number_of_engines_changes_nothing(tmp_path: Path) -> None:
    def three_engines(config: Config, run_dir: Path) -> Backends:
        backends = make_backends(config, run_dir)
        engines = [TabularEngine(trap_world(), backends.store, f"tabular-{place}") for place in range(3)]
        return replace(backends, engines=engines)

    config = small("feedback.responses=100")
    one = finish(config, tmp_path / "one" / "run")
    three = finish(config, tmp_path / "three" / "run", make_backends=three_engines)
    assert one == three
    with read_journal(tmp_path / "three" / "run" / JOURNAL, "run") as journal:
        assert {entry.delivery.engine for entry in journal.deliveries()} == {f"tabular-{place}" for place in range(3)}


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    assert finish(small(), tmp_path / "a" / "run") != finish(small("seed=1"), tmp_path / "b" / "run")


def test_a_policy_is_the_reward_policy_itself_below_the_skipping_multiplier(tmp_path: Path) -> None:
    config = small("dual.first=0.005", "dual.rule={kind: fixed}", "dual.skip_below=0.01")
    versions = finish(config, tmp_path / "run")["versions"]
    by_name = {version.name: version for version, *_ in versions}
    assert by_name["policy-1"].sha256 == by_name["reward-1"].sha256
    assert [version.number for version, *_ in versions] == [0, 1, 2, 3, 4]


def test_a_fixed_multiplier_never_moves_and_its_cost_is_still_estimated(tmp_path: Path) -> None:
    config = small("algorithm=pd-dpo-fixed", "dual.first=0.2", "dual.rule={kind: fixed}")
    steps = finish(config, tmp_path / "run")["dual"]
    assert [(step.multiplier_before, step.multiplier_after) for step in steps] == [(0.2, 0.2)] * 2
    assert all(step.estimate.responses == 10 for step in steps)


def test_offline_pd_dpo_fits_the_reward_once_and_adds_no_pairs(tmp_path: Path) -> None:
    told = finish(small("algorithm=pd-dpo"), tmp_path / "run")
    assert [version.name for version, *_ in told["versions"]] == ["reference", "reward-0", "policy-1", "policy-2"]
    assert {entry.round for entry in told["pairs"]} == {0}


def test_the_bonus_in_the_loss_makes_another_policy_than_split_roles(tmp_path: Path) -> None:
    """On the first round's identical pairs: the bonus alone is the difference."""
    split = finish(small(rounds=1), tmp_path / "a" / "run")
    paper = finish(small("algorithm=o-pd-dpo-paper", rounds=1), tmp_path / "b" / "run")
    assert [entry.labelled for entry in split["pairs"] if entry.round == 0] == [
        entry.labelled for entry in paper["pairs"] if entry.round == 0
    ]
    assert split["versions"][1][0].sha256 != paper["versions"][1][0].sha256


def test_a_used_folder_a_missing_run_and_another_recipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run in .* to resume"):
        run_recipe(small(), tmp_path / "run", resume=True)
    before = finish(small(), tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already"):
        run_recipe(small(), tmp_path / "run")
    with pytest.raises(UserError, match=r"beta is 0\.1 there and 0\.2 here"):
        run_recipe(small("beta=0.2"), tmp_path / "run", resume=True)
    assert finish(small(), tmp_path / "run", resume=True) == before == story(tmp_path / "run")


def test_a_run_that_died_before_its_first_phase_can_be_resumed(tmp_path: Path) -> None:
    def no_backends(config: Config, run_dir: Path) -> Backends:
        raise RunError("the engine did not come up")

    with pytest.raises(RunError, match="did not come up"):
        run_recipe(small(), tmp_path / "run", make_backends=no_backends)
    assert run_recipe(small(), tmp_path / "run", resume=True)["rounds"] == 2


def test_without_a_known_world_a_run_works_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    def blind(config: Config, run_dir: Path) -> Backends:
        return replace(make_backends(config, run_dir), world=None)

    with pytest.raises(UserError, match=r"dual\.rho must be given"):
        run_recipe(small(), tmp_path / "without", make_backends=blind)
    result = run_recipe(small("dual.rho=0.5"), tmp_path / "run", make_backends=blind)
    assert set(result) >= RESULT_KEYS
    assert {result[name] for name in ("f_last", "multiplier_optimum", "gap_covered_only", "slope_cost")} == {None}
    assert result["multiplier"] > 0


def test_a_method_that_never_prepares_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
        return UniformMixture(())

    monkeypatch.setattr("pddpo_ray.driver.run.code_of", lambda kind, name: idle)
    with pytest.raises(RunError, match=r"never called parts.prepare\(\)"):
        run_recipe(small(), tmp_path / "run")
