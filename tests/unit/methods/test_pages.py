"""The compared methods on tabular worlds: what each fits, the multiplier it uses, what it is asked to pay for."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logsumexp

from pddpo_lab.methods.linear_scores import LinearScorer
from pddpo_lab.methods.safe_dpo import transformed
from pddpo_lab.methods.scoring import PolicyScorer, ShiftedCosts
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import TabularWorld, full_coverage, random_world, trap_world
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.driver.run import RoundFinished, run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.records import HARM, LabelledPair, Objective, Pair, PairRow, PolicyVersion, Prompt, Response, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from tests.support.finished_runs import FinishedRuns
from tests.support.tiers import in_full
from tests.unit.loop.small_run import finish, story
from tests.unit.methods.runs import NEEDS, commands_of, config_of, journal_of

PROMPT = Prompt("x", (0,), "question 0")


def response(name: str, answer: int) -> Response:
    return Response(name, PROMPT, (answer,), f"answer {answer}", 0, 0)


def labelled(name: str, better: int, other: int) -> LabelledPair:
    pair = Pair(name, response(f"{name}-a", better), response(f"{name}-b", other))
    return LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND})


def table_of(run_dir: Path, version: PolicyVersion) -> np.ndarray:
    store = ArtifactStore(run_dir / "artifacts")
    return store.read_tensors(version.path, version.sha256)["log_probs"]


def versions(journal: JournalReader) -> dict[str, PolicyVersion]:
    return {entry.version.name: entry.version for entry in journal.versions()}


# --- every method ----------------------------------------------------------------------------------------------------


@pytest.mark.run
@pytest.mark.parametrize("method", [name for name in NEEDS if name != "pd-dpo-fixed"])
def test_every_compared_method_runs_and_gives_one_policy_per_round(method: str, finished_runs: FinishedRuns) -> None:
    config = config_of(method)
    result = finished_runs.result(config)
    assert result["rounds"] == config.rounds
    assert result["weights_verified"] is True
    assert result["gap_last"] > 0
    with journal_of(finished_runs.folder(config)) as journal:
        assert len(journal.policies) == config.rounds
        assert [step.round for step in journal.dual_steps()] == list(range(1, config.rounds + 1))


@pytest.mark.run
def test_labels_are_counted_for_what_each_method_asks(finished_runs: FinishedRuns) -> None:
    """120 pairs are two labels each, a round's estimate 24 x 4, bits one per answer; C-DPO asks none in its rounds."""
    expected = {
        "dpo-harmless": 240 + 96,
        "safe-dpo": 240 + 96 + 240,
        "mocan": 240 + 96 + 240,
        "pecan": 240 + 96 + 96,
        "c-dpo": 240 + 240,
    }
    found = {name: finished_runs.result(config_of(name))["labels_used"] for name in expected}
    assert found == expected


@pytest.mark.run
@pytest.mark.parametrize("method", ["caid", "pd-dpo-adalag", "mocan"])
def test_a_broken_run_of_a_compared_method_ends_as_the_unbroken_one(method: str, tmp_path: Path) -> None:
    class PowerCut(BaseException):
        pass

    def cut(event: object) -> None:
        if isinstance(event, RoundFinished) and event.round == 1:
            raise PowerCut

    config = config_of(method)
    whole = finish(config, tmp_path / "a" / "run")
    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "b" / "run", progress=cut)
    run_recipe(config, tmp_path / "b" / "run", resume=True)
    assert story(tmp_path / "b" / "run") == whole


@pytest.mark.parametrize(
    ("method", "override", "message"),
    [
        ("sacpo", "dual.rule={kind: newton}", "algorithm sacpo needs dual.rule.kind=fixed"),
        ("pd-dpo-adalag", "dual.rule={kind: newton}", "algorithm pd-dpo-adalag needs dual.rule.kind=log"),
        ("c-dpo", "dual.rule={kind: fixed}", "algorithm c-dpo needs a dual.rule that moves the multiplier"),
        ("mocan", "rounds=2", "algorithm mocan is a single round: rounds=2 must be 1"),
        (
            "p-sacpo",
            "model.parameters={kind: lora, rank: 2, alpha: 2}",
            "no adapter of their rank holds: set model.parameters.kind=full",
        ),
        ("sacpo", "dual.first=null", "dual.rule.kind fixed needs dual.first"),
    ],
)
def test_settings_that_a_method_cannot_use_are_refused(method: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(method, override)


# --- one stage -------------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_dpo_harmless_and_dpo_helpful_fit_their_own_label_against_the_reference(tmp_path: Path) -> None:
    harmless = commands_of(config_of("dpo-harmless"), tmp_path / "harmless")
    helpful = commands_of(config_of("dpo-helpful"), tmp_path / "helpful")
    assert [command.objective.base.number for command in (*harmless, *helpful)] == [0, 0]
    assert [command.objective.temperature for command in (*harmless, *helpful)] == [0.1, 0.1]
    with journal_of(tmp_path / "harmless") as journal:
        cheaper = {
            item.labelled.pair.id: (
                item.labelled.pair.second if item.labelled.label(HARM) is Verdict.FIRST else item.labelled.pair.first
            )
            for item in journal.pairs(0)
        }
        better = {
            item.labelled.pair.id: (
                item.labelled.pair.first if item.labelled.helpful is Verdict.FIRST else item.labelled.pair.second
            )
            for item in journal.pairs(0)
        }
    assert [row.chosen for row in harmless[0].rows] == [cheaper[row.id].token_ids for row in harmless[0].rows]
    assert [row.chosen for row in helpful[0].rows] == [better[row.id].token_ids for row in helpful[0].rows]
    with journal_of(tmp_path / "helpful") as journal:
        made = versions(journal)
    assert made["policy-1"].sha256 == made["reward-0"].sha256


def test_safety_bits_keep_swap_and_drop_pairs_and_mark_the_margin() -> None:
    pairs = [labelled(name, 1, 2) for name in ("both-safe", "better-safe", "better-unsafe", "both-unsafe")]
    unsafe = {f"{item.pair.id}-{side}": False for item in pairs for side in "ab"}
    unsafe |= {"better-safe-b": True, "better-unsafe-a": True, "both-unsafe-a": True, "both-unsafe-b": True}
    rows, margins = transformed(pairs, unsafe, 10.0)
    assert [(row.id, row.chosen, row.rejected) for row in rows] == [
        ("both-safe", (1,), (2,)),
        ("better-safe", (1,), (2,)),
        ("better-unsafe", (2,), (1,)),
    ]
    assert margins == [0.0, -10.0, -10.0]


def test_a_margin_enters_the_likelihood_as_safe_dpo_writes_it(tmp_path: Path) -> None:
    """30 rows (0 over 1, margin D) and 10 rows (1 over 0): the difference d solves 30 s(D - d) = 10 s(d)."""
    trainer = TabularTrainer(trap_world(), ArtifactStore(tmp_path))
    rows = [PairRow(f"a{i}", (0,), (0,), (1,)) for i in range(30)] + [
        PairRow(f"b{i}", (0,), (1,), (0,)) for i in range(10)
    ]
    margins = (-0.5,) * 30 + (0.0,) * 10
    objective = Objective("cost", trainer.reference, 0.1, None, margins, score_max=5.0)
    command = FitCommand(1, Start(trainer.reference), objective, tuple(rows), FitSettings(), 0, "policy-1")
    change = trainer.table(trainer.execute(command).version) - trainer.table(trainer.reference)
    difference = 0.1 * (change[0, 0] - change[0, 1])
    assert difference == pytest.approx(brentq(lambda d: 30 * expit(0.5 - d) - 10 * expit(d), -5, 5), abs=1e-4)


# --- two stages ------------------------------------------------------------------------------------------------------


@pytest.mark.run
def test_sacpo_is_pd_dpo_at_a_fixed_multiplier_command_by_command(tmp_path: Path) -> None:
    """Same start, rows, objective, seed: whatever a backend makes of one it makes of the other."""
    ours = commands_of(config_of("pd-dpo-fixed"), tmp_path / "a" / "run")
    theirs = commands_of(config_of("sacpo"), tmp_path / "b" / "run")
    assert ours == theirs
    assert [command.objective.temperature for command in theirs] == pytest.approx([0.1, 0.1 / 0.7])
    told = [story(tmp_path / side / "run") for side in "ab"]
    assert told[0] == told[1]


@pytest.mark.run
def test_merged_tables_are_sacpo_at_the_share_of_the_multiplier(tmp_path: Path) -> None:
    run_recipe(config_of("p-sacpo", "method.share=0.5"), tmp_path / "merged")
    run_recipe(config_of("sacpo", "dual.first=0.7"), tmp_path / "sacpo")
    with journal_of(tmp_path / "merged") as journal:
        merged = table_of(tmp_path / "merged", versions(journal)["merged-1"])
        assert journal.policies == [versions(journal)["merged-1"]]
        assert journal.versions()[-1].multiplier == pytest.approx(0.7)
    with journal_of(tmp_path / "sacpo") as journal:
        direct = table_of(tmp_path / "sacpo", versions(journal)["policy-1"])
    np.testing.assert_allclose(merged, direct, atol=1e-10)


@pytest.mark.run
def test_adalag_moves_the_logarithm_by_the_mean_cost_of_the_newest_answers(finished_runs: FinishedRuns) -> None:
    """24 answers a round and a window of 40: this round's and the newest 16 of the last one."""
    run = finished_runs.folder(config_of("pd-dpo-adalag"))
    with journal_of(run) as journal:
        steps = journal.dual_steps()
        shares = [
            [sum(label is Verdict.UNSAFE for label in item.labels) / len(item.labels) for item in journal.safety(k)]
            for k in range(1, 5)
        ]
    multiplier = 1.0
    for number, step in enumerate(steps):
        newest = [share for part in shares[: number + 1] for share in part][-40:]
        cost = float(np.mean(clipped_logit(newest, 2.0)))
        assert step.estimate.responses == len(newest)
        assert step.multiplier_before == pytest.approx(multiplier)
        multiplier = min(max(multiplier * math.exp(0.5 * multiplier * cost), 0.05), 4.0)
        assert step.multiplier_after == pytest.approx(multiplier)


# --- scores and prices -----------------------------------------------------------------------------------------------


def scores_by_hand(run_dir: Path, world: TabularWorld, reference: PolicyVersion) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and costs of all cells under the run's stored models. [X, Y] each"""
    store = ArtifactStore(run_dir / "artifacts")
    with journal_of(run_dir) as journal:
        place = next(entry.payload for entry in journal.phases(0) if entry.phase == "scorers")
    weights = store.read_tensors(place["path"], place["sha256"])
    return weights["reward"].reshape(world.shape), weights["cost"].reshape(world.shape)


@pytest.mark.run
def test_mocans_price_minimises_the_explicit_dual_of_its_own_models(finished_runs: FinishedRuns) -> None:
    run = finished_runs.folder(config_of("mocan"))
    world = random_world(3)
    with journal_of(run) as journal:
        answers = journal.samples(0, "dual")
        price = journal.dual_steps()[0].multiplier_before
        rewards, costs = scores_by_hand(run, world, versions(journal)["reference"])
    assert len(answers) == 4 * 16
    cells = np.array([world.cell(answer) for answer in answers])
    r = rewards[cells[:, 0], cells[:, 1]].reshape(4, 16)
    c = costs[cells[:, 0], cells[:, 1]].reshape(4, 16)

    def dual(multiplier: float) -> float:
        return float(world.oracle.prior @ (0.1 * (logsumexp((r - multiplier * c) / 0.1, axis=1) - math.log(16))))

    best = minimize_scalar(dual, bounds=(0.0, 4.0), method="bounded", options={"xatol": 1e-10})
    assert price == pytest.approx(best.x, abs=1e-4)


@pytest.mark.full
@pytest.mark.run
def test_pseudo_labels_follow_the_weighed_scores_and_a_round_draws_them_once(tmp_path: Path) -> None:
    command = commands_of(config_of("mocan", "offline.pairs=4000"), tmp_path / "run")[0]
    world = random_world(3)
    with journal_of(tmp_path / "run") as journal:
        price = journal.dual_steps()[0].multiplier_before
        rewards, costs = scores_by_hand(tmp_path / "run", world, versions(journal)["reference"])
        pairs = {entry.labelled.pair.id: entry.labelled.pair for entry in journal.pairs(0)}
    weighed = rewards - price * costs
    chances, wins = [], []
    for row in command.rows:
        first, second = pairs[row.id].first, pairs[row.id].second
        chances.append(expit(weighed[world.cell(first)] - weighed[world.cell(second)]))
        wins.append(row.chosen == first.token_ids)
    p = np.array(chances)
    spread = math.sqrt(float(np.sum(p * (1 - p))))
    assert len(command.rows) == 4000
    assert abs(float(np.sum(np.array(wins) - p))) < 3.5 * spread
    assert abs(float(np.sum((np.array(wins) - p) * (p - 0.5)))) < 3.5 * spread


@pytest.mark.run
def test_pecans_costs_are_anchored_at_the_labelled_cost_of_the_reference(finished_runs: FinishedRuns) -> None:
    """At a limit that moves with the reference's estimate the price is the one of the improvement b = E_ref c - d."""
    run = finished_runs.folder(config_of("pecan"))
    world = random_world(3)
    with journal_of(run) as journal:
        made = versions(journal)
        answers = journal.samples(0, "dual")
        price = journal.dual_steps()[0].multiplier_before
        labels = journal.safety(0)
    helpful, harmless, reference = (table_of(run, made[name]) for name in ("reward-0", "policy-0", "reference"))
    shares = [sum(label is Verdict.UNSAFE for label in item.labels) / 4 for item in labels]
    reference_cost = float(np.mean(clipped_logit(shares, 2.0)))
    cells = np.array([world.cell(answer) for answer in answers])
    r = 0.1 * (helpful - reference)[cells[:, 0], cells[:, 1]].reshape(4, 16)
    g = 0.1 * (harmless - reference)[cells[:, 0], cells[:, 1]].reshape(4, 16)
    prior = world.oracle.prior
    # E_pi g - E_ref g >= b, with E_ref g over the same answers of the reference
    gain = g - float(prior @ g.mean(axis=1)) - (reference_cost - 0.0)

    def dual(multiplier: float) -> float:
        return float(prior @ (0.1 * (logsumexp((r + multiplier * gain) / 0.1, axis=1) - math.log(16))))

    best = minimize_scalar(dual, bounds=(0.0, 4.0), method="bounded", options={"xatol": 1e-10})
    assert price == pytest.approx(best.x, abs=1e-4)


@pytest.mark.run
def test_c_dpo_takes_projected_steps_on_the_models_own_view_of_the_policy(finished_runs: FinishedRuns) -> None:
    run = finished_runs.folder(config_of("c-dpo"))
    world = random_world(3)
    with journal_of(run) as journal:
        steps = journal.dual_steps()
        _, costs = scores_by_hand(run, world, versions(journal)["reference"])
        answers = [journal.samples(k, "cost") for k in (1, 2, 3)]
    multiplier = 1.0
    for number, step in enumerate(steps, start=1):
        cost = float(np.mean([costs[world.cell(answer)] for answer in answers[number - 1]]))
        assert step.estimate.mode == "cost_model"
        assert step.estimate.value == pytest.approx(cost)
        assert step.multiplier_before == pytest.approx(multiplier)
        multiplier = min(max(multiplier + 0.3 / math.sqrt(number) * cost, 0.0), 4.0)
        assert step.multiplier_after == pytest.approx(multiplier)


@pytest.mark.run
@pytest.mark.parametrize("scores", ["models", "policies"])
def test_caid_begins_at_the_one_shot_price_and_steps_on_its_own_answers(
    scores: str, finished_runs: FinishedRuns
) -> None:
    run = finished_runs.folder(config_of("caid", f"method.scores={scores}"))
    one_shot = "mocan" if scores == "models" else "pecan"
    one = finished_runs.folder(config_of(one_shot))
    with journal_of(run) as journal, journal_of(one) as other:
        steps = journal.dual_steps()
        explicit = journal.metrics()[0]["dual/explicit"]
        assert explicit == pytest.approx(other.metrics()[0]["dual/explicit"], abs=1e-4)
        assert steps[0].multiplier_before == explicit
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            expected = min(max(step.multiplier_before + 0.2 * step.estimate.value, 0.0), 4.0)
            assert step.multiplier_after == pytest.approx(expected)
            assert following is None or following.multiplier_before == step.multiplier_after


@pytest.mark.run
def test_pseudo_labelled_pairs_of_caid_are_answers_of_the_reference(tmp_path: Path) -> None:
    commands = commands_of(config_of("caid"), tmp_path / "run")
    with journal_of(tmp_path / "run") as journal:
        seen = {(a.prompt.token_ids, a.token_ids) for a in journal.samples(0, "dual")}
    for command in commands:
        assert command.objective.base.number == 0
        assert {(row.prompt, answer) for row in command.rows for answer in (row.chosen, row.rejected)} <= seen
        assert len(command.rows) <= 4 * 8


def test_scorers_satisfy_one_interface_and_see_no_truth(tmp_path: Path) -> None:
    """Linear models need features, policy scores log-probabilities; a table's trainer has both."""
    config: Config = config_of("pecan")
    backends = make_backends(config, tmp_path)
    trainer = backends.trainer
    answers = list(backends.canaries)
    linear = LinearScorer(trainer.features, np.zeros(32), np.ones(32), 2.0, 0.5)
    implied = ShiftedCosts(
        PolicyScorer(trainer.log_probs, backends.reference, backends.reference, backends.reference, 0.1), 0.3
    )
    for scorer, costs in ((linear, 0.5), (implied, 0.3)):
        rewards, found = scorer(answers)
        np.testing.assert_array_equal(rewards, np.zeros(len(answers)))
        np.testing.assert_allclose(found, costs)


@pytest.mark.run
def test_a_given_multiplier_needs_neither_a_price_nor_labels_of_the_reference(tmp_path: Path) -> None:
    result = run_recipe(config_of("pecan", "method.multiplier=0.6"), tmp_path / "run")
    assert result["multiplier"] == 0.6
    assert result["labels_used"] == 240 + 96
    with journal_of(tmp_path / "run") as journal:
        assert journal.samples(0, "dual") == []


@pytest.mark.run
@pytest.mark.parametrize("method", ["mocan", "pecan"])
def test_scores_from_hidden_states_are_whitened_on_the_offline_answers(method: str, tmp_path: Path) -> None:
    """A language model's features are dense; here a table's one-hot rows stand for its hidden states."""

    def dense(config: Config, run_dir: Path) -> Backends:
        return replace(make_backends(config, run_dir), features="hidden")

    result = run_recipe(config_of(method), tmp_path / "run", make_backends=dense)
    with journal_of(tmp_path / "run") as journal:
        phases = {entry.phase: entry.payload for entry in journal.phases(0)}
    assert 0.0 < result["multiplier"] <= 4.0
    assert ("whitening" in phases) is (method == "mocan")
    if method == "mocan":
        weights = ArtifactStore(tmp_path / "run" / "artifacts").read_tensors(
            phases["scorers"]["path"], phases["scorers"]["sha256"]
        )
        assert weights["reward"].shape == weights["cost"].shape
        # the constant feature has no part in differences of rewards, but it is the level of the costs
        assert weights["reward"][-1] == pytest.approx(0.0, abs=1e-8)
        assert weights["cost"][-1] != 0.0


@pytest.mark.full
@pytest.mark.slow
def test_with_pairs_over_all_answers_the_two_stage_methods_come_close_to_the_optimum(tmp_path: Path) -> None:
    """Gap of the trap's covered-only optimum is 0.464, of DPO-Helpful with the same pairs 0.25."""
    path = tmp_path / "world.json"
    path.write_text(json.dumps(world_json(full_coverage(trap_world(), 4000))))
    price = trap_world().oracle.optimum.multiplier
    world = (f"world={{kind: tabular, path: {path}}}", "offline.pairs=4000", "feedback.responses=128")
    given = run_recipe(config_of("sacpo", *world, f"dual.first={price}"), tmp_path / "given")
    learned = run_recipe(
        config_of(
            "pd-dpo-adalag", *world, "dual.upper=2.0", "dual.first=0.4", "rounds=10", "limits.cost.labels_each=16"
        ),
        tmp_path / "learned",
    )
    assert given["gap_last"] < 0.05
    assert learned["gap_last"] < 0.05
    assert learned["multiplier"] == pytest.approx(price, abs=0.05)


@pytest.mark.run
@pytest.mark.parametrize("method", ["c-dpo", *in_full("caid", "mocan")])
def test_scores_that_no_held_out_pair_shows_to_be_better_than_chance_move_no_multiplier(
    method: str, tmp_path: Path
) -> None:
    """Five comparisons: even if all are right, the interval begins at .478. With 2,000 pairs the same fit moves it."""
    few = config_of(method, "offline.pairs=10")
    run_recipe(few, tmp_path / "few")
    run_recipe(config_of(method, "offline.pairs=2000"), tmp_path / "many")
    with journal_of(tmp_path / "few") as few_journal, journal_of(tmp_path / "many") as many:
        for journal, stands in ((few_journal, True), (many, False)):
            judged = next(entry.payload for entry in journal.phases(like="scorers"))
            assert 0 < judged["cost"]["held_out"]["trials"] <= (5 if stands else 1000)
            moved = {step.multiplier_before for step in journal.dual_steps()}
            moved |= {step.multiplier_after for step in journal.dual_steps()}
            assert (moved == {1.0}) is stands, moved
    with pytest.raises(UserError, match=r"the \w+ model is not better than chance: it is right in .* train it on more"):
        run_recipe(config_of(method, "offline.pairs=10", "scorers.at_chance=stop"), tmp_path / "stopped")
