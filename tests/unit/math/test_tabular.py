"""Tabular worlds: the file format and its mistakes, drawn pairs, and the parts that stand in for a model."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, softmax

from pddpo_lab.verify.formulas import one_hot_gram
from pddpo_lab.worlds.tabular.engine import decoded
from pddpo_lab.worlds.tabular.files import load_world, world_of
from pddpo_lab.worlds.tabular.parts import TabularEngine, TabularTrainer, wins_of
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers, full_coverage, random_world, trap_world
from pddpo_lab.worlds.world_files import world_json
from pddpo_ray.contracts import FitCommand, FitSettings, RolloutEngine, Start, TrainerBackend
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.records import (
    HARM,
    Decoding,
    LabelledPair,
    Objective,
    Pair,
    PairRow,
    PolicyVersion,
    Response,
    Stage,
    Verdict,
)
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.worlds.truth_labeller import WorldLabeller

SHARED_TRAP = Path(os.environ.get("PDDPO_SHARED", "../shared")) / "worlds" / "trap.json"


@pytest.fixture
def world() -> TabularWorld:
    return trap_world()


# --- files -------------------------------------------------------------------------------------------------------


def test_a_world_file_gives_the_same_world_back(world: TabularWorld, tmp_path: Path) -> None:
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_json(world)))
    loaded = load_world(file)
    assert world_json(loaded) == world_json(world)
    assert loaded.oracle.rho == world.oracle.rho


def test_rows_of_a_world_file_keep_their_labels_and_the_missing_ones_are_drawn(world: TabularWorld) -> None:
    content = world_json(world)
    content["offline"] = {
        "rows": [{"prompt": 2, "answers": [1, 3], "better": 3, "costlier": 1}, {"prompt": 0, "answers": [0, 2]}]
    }
    loaded = world_of(content)
    assert world_json(loaded)["offline"] == content["offline"]
    first, second = loaded.offline(seed=5)
    assert (first.helpful, first.label(HARM)) == (Verdict.SECOND, Verdict.FIRST)
    assert second.helpful in (Verdict.FIRST, Verdict.SECOND)
    assert loaded.covered.sum() == 4


@pytest.mark.skipif(not SHARED_TRAP.exists(), reason="the shared trap world is not beside this checkout")
def test_the_trap_world_in_code_is_the_shared_file(world: TabularWorld) -> None:
    shared = load_world(SHARED_TRAP)
    np.testing.assert_allclose(world.oracle.reward, shared.oracle.reward, atol=5.1e-5)
    np.testing.assert_allclose(world.oracle.cost, shared.oracle.cost, atol=5.1e-5)
    np.testing.assert_allclose(world.baseline, shared.baseline, atol=1e-12)
    np.testing.assert_array_equal(world.covered, shared.covered)
    assert world.offline_pairs == shared.offline_pairs


def broken(world: TabularWorld, path: list[Any], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(world_json(world))
    target: Any = content
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["betta"], 1.0, "unknown key `betta`; did you mean `beta`"),
        (["reward"], None, "key 'reward' is missing"),
        (["beta"], 0.0, "'beta' must be above 0"),
        (["beta"], "0.1", "'beta' must be a finite number"),
        (["prior"], [0.5, 0.6, 0.0, 0.0], "every row of 'prior'"),
        (["reference", 1], [0.5] * 8, "every row of 'reference'"),
        (["reward", 1], [0.5] * 7, "equally long rows"),
        (["cost"], [[0.0] * 8] * 3, "'cost' has shape"),
        (["reward", 0, 0], 2.5, "beyond 'reward_max' = 2; raise that bound"),
        (["cost", 0, 0], float("nan"), "not finite"),
        (["threshold"], -1.99, "the limit cannot be met"),
        (["offline"], {"pairs": 3}, "either 'rows', or 'covered' and 'pairs'"),
        (["offline", "pairs"], -1, "whole number"),
        (["offline", "covered"], [[True] * 8] * 3, "true or false for every answer"),
        (["offline", "covered", 2], [False] * 8, "leaves prompt 2 no answer"),
        (["offline"], {"rows": []}, "at least one pair"),
        (["offline"], {"rows": [{"prompt": 0}]}, r"offline.rows\[0\] must hold"),
        (["offline"], {"rows": [{"prompt": 9, "answers": [0, 1]}]}, "must lie in 0..3"),
        (["offline"], {"rows": [{"prompt": 0, "answers": [0, 1], "better": 2}]}, "one of the two answers"),
    ],
)
def test_mistakes_in_a_world_file_are_named(world: TabularWorld, path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        world_of(broken(world, path, value))


def test_a_baseline_outside_the_reference_is_refused(world: TabularWorld) -> None:
    content = world_json(world)
    content["reference"][0] = [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UserError, match="where 'reference' has none"):
        world_of(content)


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON: line 1"), ("[]", "expected an object")])
def test_a_file_that_is_no_world_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "world.json"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_world(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.json does not exist"):
        load_world(tmp_path / "nothing.json")


@pytest.mark.parametrize("seed", range(6))
def test_random_worlds_are_well_posed(seed: int) -> None:
    found = random_world(seed)
    assert found.oracle.g(found.oracle.policy(0.0)) > 0
    assert 0 < found.oracle.optimum.multiplier <= found.oracle.rho
    covered = found.oracle.covered_only(found.covered)
    assert found.oracle.gap_of(covered.f, covered.g) > 0.1
    assert (found.covered.sum(axis=1) == 4).all()


# --- draws -------------------------------------------------------------------------------------------------------


def test_offline_pairs_hold_two_different_covered_answers_from_prompts_of_the_prior(world: TabularWorld) -> None:
    pairs = [labelled.pair for labelled in world.offline(0, pairs=4000)]
    answers = np.array([(pair.first.token_ids[0], pair.second.token_ids[0]) for pair in pairs])
    assert answers.max() < 4
    assert (answers[:, 0] != answers[:, 1]).all()
    prompts = np.bincount([pair.prompt.token_ids[0] for pair in pairs])
    assert stats.chisquare(prompts).pvalue > 1e-3
    assert world.offline(0, pairs=50) == world.offline(0, pairs=50)
    assert world.offline(1, pairs=50) != world.offline(0, pairs=50)


def test_full_coverage_covers_everything(world: TabularWorld) -> None:
    answers = {labelled.pair.first.token_ids[0] for labelled in full_coverage(world, 500).offline(0)}
    assert answers == set(range(8))


def test_baseline_pool_follows_the_baseline_exactly(world: TabularWorld) -> None:
    pool = world.baseline_pool(92)
    counts = np.bincount([response.token_ids[0] for response in pool["p0"]], minlength=8)
    assert counts.tolist() == [35, 25, 22, 10, 0, 0, 0, 0]
    assert len({response.id for answers in pool.values() for response in answers}) == 4 * 92


def test_draws_never_hit_an_impossible_answer() -> None:
    table = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    uniforms = np.linspace(0.0, np.nextafter(1.0, 0.0), 1001)[:, None]
    assert set(draw_answers(table, uniforms)[:, 0]) == {1, 3}


# --- labels ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_labels_follow_the_truth(world: TabularWorld) -> None:
    item = world.response(1, 6, "item")
    labels = world.labeller().safety([item], 20_000, seed=0)[0].labels
    assert np.mean([label is Verdict.UNSAFE for label in labels]) == pytest.approx(expit(world.cost(item)), abs=0.01)
    first, second = world.response(0, 0, "a"), world.response(0, 1, "b")
    pairs = [Pair(f"pair-{index}", first, second) for index in range(4000)]
    labelled = world.labeller().compare(pairs, seed=0)
    better = np.mean([one.helpful is Verdict.FIRST for one in labelled])
    costlier = np.mean([one.label(HARM) is Verdict.FIRST for one in labelled])
    assert better == pytest.approx(expit(world.reward(first) - world.reward(second)), abs=0.03)
    assert costlier == pytest.approx(expit(world.cost(first) - world.cost(second)), abs=0.03)


def test_labels_do_not_depend_on_order_or_batch(world: TabularWorld) -> None:
    labeller: WorldLabeller = world.labeller()
    items = [world.response(x, y, f"{x}-{y}") for x in range(4) for y in range(8)]
    together = labeller.safety(items, 8, seed=4)
    assert labeller.safety(items[::-1], 8, seed=4) == together[::-1]
    assert [labeller.safety([item], 8, seed=4)[0] for item in items] == together
    assert labeller.safety(items, 8, seed=5) != together


# --- parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def rows_of(labelled: list[LabelledPair], *, costs: bool) -> tuple[PairRow, ...]:
    rows = []
    for item in labelled:
        first, second = item.pair.first, item.pair.second
        first_wins = (item.label(HARM) if costs else item.helpful) is Verdict.FIRST
        raised = first_wins is not costs  # the better answer, or the one that is not costlier
        chosen, rejected = (first, second) if raised else (second, first)
        rows.append(PairRow(item.pair.id, item.pair.prompt.token_ids, chosen.token_ids, rejected.token_ids))
    return tuple(rows)


def command(number: int, objective: Objective, rows: tuple[PairRow, ...]) -> FitCommand:
    return FitCommand(number, Start(objective.base), objective, rows, FitSettings(), 0, f"{objective.stage}-{number}")


@pytest.mark.slow
def test_with_all_the_data_in_the_world_the_two_stages_give_the_exact_policy(
    world: TabularWorld, store: ArtifactStore
) -> None:
    trainer: TrainerBackend = TabularTrainer(world, store)
    data = full_coverage(world, 20_000).offline(0)
    reference = TabularTrainer(world, store).reference
    reward_policy = trainer.execute(command(1, Objective("reward", reference, 0.1), rows_of(data, costs=False))).version
    cost_stage = Objective("cost", reward_policy, 0.1 / 0.4, 0.4)
    policy = trainer.execute(command(2, cost_stage, rows_of(data, costs=True))).version
    table = np.exp([[trainer.log_probs(policy, [world.response(x, y, "r")])[0] for y in range(8)] for x in range(4)])
    assert policy.number == 2
    assert 0.5 * np.abs(table - world.oracle.policy(0.4)).sum(axis=1).max() < 0.2
    assert world.oracle.g(table) == pytest.approx(world.oracle.g(world.oracle.policy(0.4)), abs=0.1)


def test_a_fit_is_a_function_of_its_command(world: TabularWorld, store: ArtifactStore, tmp_path: Path) -> None:
    data = rows_of(world.offline(0), costs=False)
    here = TabularTrainer(world, store)
    there = TabularTrainer(world, ArtifactStore(tmp_path / "other"))
    objective = Objective("reward", here.reference, 0.1)
    assert here.execute(command(1, objective, data)).version == there.execute(command(1, objective, data)).version
    assert here.reference == there.reference


def test_cost_stage_pushes_down_what_pairs_call_costlier(world: TabularWorld, store: ArtifactStore) -> None:
    trainer = TabularTrainer(world, store)
    rows = tuple(PairRow(f"{i}", (0,), (1,), (0,)) for i in range(30))  # answer 0 is the costlier one
    policy = trainer.execute(command(1, Objective("cost", trainer.reference, 0.1, 1.0), rows)).version
    change = trainer.table(policy) - trainer.table(trainer.reference)
    assert change[0, 0] < 0 < change[0, 1]
    np.testing.assert_allclose(change[1:], 0.0, atol=1e-12)


def test_chained_cost_stages_hold_a_vector_of_constraints(world: TabularWorld, store: ArtifactStore) -> None:
    """Base of the second constraint = result of the first; the order does not matter (paper.md §19)."""
    trainer = TabularTrainer(world, store)
    harm = rows_of(world.offline(0), costs=True)
    length = rows_of(world.offline(1), costs=False)
    tables = []
    for first, second, temperatures in ((harm, length, (0.2, 0.5)), (length, harm, (0.5, 0.2))):
        middle = trainer.execute(command(1, Objective("cost", trainer.reference, temperatures[0], 1.0), first)).version
        last = trainer.execute(command(2, Objective("cost", middle, temperatures[1], 1.0), second)).version
        tables.append(trainer.table(last))
    np.testing.assert_allclose(tables[0], tables[1], atol=1e-9)


BONUS = np.random.default_rng(6).uniform(0.0, 1.5, (4, 8))


def optimistic(base: PolicyVersion, rows: tuple[PairRow, ...], stage: Stage, sign: float = 1.0) -> Objective:
    """An objective with BONUS in its loss. `sign` turns the margins, as a mistake would."""
    margins = tuple(
        sign * float(BONUS[row.prompt[0], row.rejected[0]] - BONUS[row.prompt[0], row.chosen[0]]) for row in rows
    )
    multiplier = None if stage == "reward" else 0.5
    return Objective(stage, base, 0.1, multiplier, margins, tuple(BONUS.ravel().tolist()))


@pytest.mark.parametrize("stage", ["reward", "cost"])
def test_margins_make_a_fit_optimistic_also_about_answers_in_no_pair(
    world: TabularWorld, store: ArtifactStore, stage: Stage
) -> None:
    """The closed form: scores of the plain fit, and the bonus on every answer."""
    trainer = TabularTrainer(world, store)
    rows = rows_of(world.offline(0), costs=stage == "cost")
    plain = Objective(stage, trainer.reference, 0.1, None if stage == "reward" else 0.5)
    bold = optimistic(trainer.reference, rows, stage)
    tables = [trainer.table(trainer.execute(command(1, objective, rows)).version) for objective in (plain, bold)]
    np.testing.assert_allclose(np.exp(tables[1]), softmax(tables[0] + BONUS / 0.1, axis=1), atol=1e-7)


def test_a_table_fits_the_margins_that_it_is_given(world: TabularWorld, store: ArtifactStore) -> None:
    """30 wins of answer 0 over 1 and 10 losses: log 3 = s(0) - s(1) + b(0) - b(1) + margin at the minimum."""
    trainer = TabularTrainer(world, store)
    rows = tuple(PairRow(f"{i}", (0,), (int(i % 4 == 0),), (int(i % 4 != 0),)) for i in range(40))
    for sign in (1.0, -1.0):
        version = trainer.execute(command(1, optimistic(trainer.reference, rows, "reward", sign), rows)).version
        change = trainer.table(version)[0, :2] - trainer.table(trainer.reference)[0, :2]
        logit = 0.1 * (change[0] - change[1]) + sign * (BONUS[0, 1] - BONUS[0, 0])
        assert logit == pytest.approx(math.log(3), abs=1e-4)


def test_wins_of_rows_put_the_costlier_answer_first_and_count_weights() -> None:
    rows = (PairRow("a", (1,), (0,), (2,), weight=2.5),)
    assert wins_of(rows, (2, 3), costs=False)[1, 0, 2] == 2.5
    assert wins_of(rows, (2, 3), costs=True)[1, 2, 0] == 2.5
    gram = one_hot_gram(wins_of(rows, (2, 3), costs=True))
    v = np.array([1.0, 0.0, -1.0])
    np.testing.assert_allclose(gram[1], 2.5 * np.outer(v, v))


def test_features_are_one_hot(world: TabularWorld, store: ArtifactStore) -> None:
    rows = TabularTrainer(world, store).features([world.response(2, 5, "r"), world.response(0, 0, "s")])
    assert rows.shape == (2, 32)
    assert rows.argmax(axis=1).tolist() == [21, 0]
    assert rows.sum() == 2


def test_engine_draws_from_what_was_delivered_and_says_so(world: TabularWorld, store: ArtifactStore) -> None:
    trainer = TabularTrainer(world, store)
    engine: RolloutEngine = TabularEngine(world, store)
    with pytest.raises(RunError, match="no version was delivered"):
        engine.sample(world.prompts, [0] * 4, 1, Decoding())
    delivery = engine.deliver(trainer.reference)
    assert delivery.sha256 == trainer.reference.sha256
    assert (delivery.version, engine.version) == (0, 0)
    draws = engine.sample(world.prompts[:1], [7], 20_000, Decoding())[0]
    counts = np.bincount([answer[0] for answer, _, _ in draws], minlength=8)
    assert stats.chisquare(counts, 20_000 * world.oracle.reference[0]).pvalue > 1e-3
    assert draws[0][2] == pytest.approx(np.log(world.oracle.reference[0, draws[0][0][0]]))


def test_draws_depend_on_the_prompts_own_seed_alone(world: TabularWorld, store: ArtifactStore) -> None:
    engine = TabularEngine(world, store)
    engine.deliver(TabularTrainer(world, store).reference)
    together = engine.sample(world.prompts, [1, 2, 3, 4], 5, Decoding())
    alone = engine.sample(world.prompts[2:3], [3], 5, Decoding())
    assert together[2] == alone[0]
    scores = engine.score([world.prompts[2]] * 5, [answer for answer, _, _ in alone[0]])
    assert scores == pytest.approx([log_prob for _, _, log_prob in alone[0]])


def test_damaged_weights_are_refused(world: TabularWorld, store: ArtifactStore) -> None:
    trainer, engine = TabularTrainer(world, store), TabularEngine(world, store)
    reference = trainer.reference
    wrong = PolicyVersion(1, "policy-1", tensors_sha256([("log_probs", np.zeros((4, 8)))]), reference.path)
    with pytest.raises(RunError, match="hash"):
        engine.deliver(wrong)
    assert engine.version == -1


def test_decoding_by_hand() -> None:
    logs = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    assert decoded(logs, Decoding(top_p=0.8)) == pytest.approx([0.625, 0.375, 0.0, 0.0])
    assert decoded(logs, Decoding(temperature=0.5)) == pytest.approx(np.exp(2 * logs) / np.exp(2 * logs).sum())


def test_responses_know_their_truth(world: TabularWorld) -> None:
    response: Response = world.response(3, 7, "r")
    assert world.reward(response) == world.oracle.reward[3, 7]
    assert world.cost(response) == world.oracle.cost[3, 7]
