"""Runs whose reward is computed: the first stage learns from measured values, and nobody is asked what is helpful."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.world import two_limits_world
from pddpo_ray.backends.in_process_text import log_linear_backends
from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.config import Config, load
from pddpo_ray.config.recipe_sections import STATED_LIMITS
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.plan.printed import make_plan
from pddpo_ray.records import HARM, LabelledPair, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.worlds.text.prepared_world import prepare_text_world
from tests.runs.test_limits_on_text import twin
from tests.support.measuring_server import measuring_server
from tests.unit.loop.small_run import story
from tests.unit.loop.test_limits_on_files import RULES
from tests.unit.loop.test_limits_on_files import recipe as on_files

DUAL: dict[str, dict[str, Any]] = {
    "o-pd-dpo": {"rule": {"kind": "newton", "damping": 0.5}},
    "pd-dpo": {"rule": {"kind": "newton", "damping": 0.5}},
    "pd-dpo-fixed": {"rule": {"kind": "fixed"}, "first": 1.0},
    "pd-dpo-adalag": {"rule": {"kind": "log"}},
}
RATES = {
    "leaks": {"rate": {"world": "privacy"}, "at_most": "50 %"},
    "harm": {"rate": {"world": "cost"}, "at_most": "50 %"},
}
LOGIT = {"harm": {"logit": {"world": "cost"}, "at_most": 0, "labels_each": 20}}


def on_table(folder: Path, limits: dict[str, Any], *overrides: str, algorithm: str = "o-pd-dpo") -> Config:
    tree = {
        "extends": "tabular", "algorithm": algorithm, "rounds": 4, "world": {"kind": "tabular", "name": "two-limits"},
        "reward": {"world": "reward"}, "limits": {"cost": None, **limits}, "dual": DUAL[algorithm],
        "offline": {"pairs": 300},
        "feedback": {"responses": 64}, "report": {"html": False, "tensorboard": False},
    }  # fmt: skip
    (folder / "values.yaml").write_text(json.dumps(tree))
    return load(str(folder / "values.yaml"), overrides)


def read(run: Path) -> tuple[dict[str, PolicyVersion], list[LabelledPair], ArtifactStore]:
    """Versions by name, all pairs, and the store of a run."""
    with open_folder(run) as journal:
        versions = {entry.version.name: entry.version for entry in journal.versions()}
        return versions, [entry.labelled for entry in journal.pairs()], ArtifactStore(run / "artifacts")


def offline_columns(run: Path, prompt: int) -> list[int]:
    """The answers of a table's prompt that offline pairs hold."""
    with open_folder(run) as journal:
        pairs = [entry.labelled.pair for entry in journal.pairs(0)]
    answers = [answer for pair in pairs for answer in (pair.first, pair.second)]
    return sorted({one.token_ids[0] for one in answers if one.prompt.token_ids[0] == prompt})


@pytest.mark.run
@pytest.mark.parametrize("algorithm", STATED_LIMITS)
def test_the_first_fit_is_the_optimum_of_the_reward_on_what_was_measured(algorithm: str, tmp_path: Path) -> None:
    """The minimiser over all tables is reference * exp(r / beta): its log ratio, times beta, is r up to a constant."""
    config = on_table(tmp_path, RATES, algorithm=algorithm)
    run_recipe(config, tmp_path / "run")
    versions, _, store = read(tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        new = [entry.labelled for entry in journal.pairs() if entry.round > 0]
    assert {verdict.value for item in new for verdict in (item.helpful, item.label(HARM))} <= {"abstain"}
    assert bool(new) == config.online
    learned, reference = (
        store.read_tensors(versions[name].path, versions[name].sha256)["log_probs"]
        for name in (f"reward-{int(config.online)}", "reference")
    )
    truth = two_limits_world().oracle.reward
    for x in range(len(truth)):
        columns = offline_columns(tmp_path / "run", x)
        assert len(columns) > 2
        ratio = config.beta * (learned - reference)[x, columns]
        np.testing.assert_allclose(ratio - ratio[0], (truth[x] - truth[x, columns[0]])[columns], atol=1e-9)


@pytest.mark.run
def test_explored_answers_teach_the_reward_of_later_rounds(tmp_path: Path) -> None:
    """What no offline pair holds has a reward after it was explored, and the run ends near the world's optimum."""
    result = run_recipe(on_table(tmp_path, LOGIT, "rounds=20"), tmp_path / "run")
    versions, pairs, store = read(tmp_path / "run")
    last, reference = (
        store.read_tensors(versions[name].path, versions[name].sha256)["log_probs"]
        for name in ("reward-20", "reference")
    )
    answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
    explored = {(answer.prompt.token_ids[0], answer.token_ids[0]) for answer in answers}
    new = [(x, y) for x, y in explored if y not in offline_columns(tmp_path / "run", x)]
    assert new
    truth, ratio = two_limits_world().oracle.reward, 0.1 * (last - reference)
    for x, y in new:
        (first, *_) = offline_columns(tmp_path / "run", x)
        assert ratio[x, y] - ratio[x, first] == pytest.approx(truth[x, y] - truth[x, first], abs=1e-9)
    assert {item.label(HARM).value for item in pairs} == {"first", "second"}
    assert result["gap_last"] < 0.25 * result["gap_reference"]


class PowerCut(BaseException):
    pass


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("phase", ["reward-pairs", "fit-reward"])
def test_a_run_that_breaks_off_in_mid_round_goes_on_as_if_it_had_not(phase: str, tmp_path: Path) -> None:
    config = on_table(tmp_path, {**RATES, "drift": {"kl": "reference", "at_most": 0.4}})

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (3, phase):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "cut", progress=cut)
    run_recipe(config, tmp_path / "cut", resume=True)
    run_recipe(config, tmp_path / "whole")
    assert story(tmp_path / "cut") == story(tmp_path / "whole")


SHORT = "def short(prompt, answer, row):\n    return -float(len(answer.split()))\n"


def by_function(folder: Path, *overrides: str) -> Config:
    """The twin with a function of the answer as its reward: minus its words."""
    (folder / "measures.py").write_text(SHORT)
    source = f"{{function: 'measures:short', folder: {folder}, bounds: [-20, 0]}}"
    return twin(f"reward={source}", "offline.pairs=200", *overrides)


@pytest.mark.slow
def test_a_function_is_the_reward_of_a_text_world_whose_truth_stays_exact(tmp_path: Path) -> None:
    config = by_function(tmp_path)
    result = run_recipe(config, tmp_path / "run")
    prepared = prepare_text_world(config)
    world = prepared.world
    words = np.array([len(text.split()) for text in world.grammar.answer_texts], dtype=float)
    backends = log_linear_backends(config, ArtifactStore(tmp_path / "store"))
    assert backends.world is not None
    oracle = backends.world.oracle
    # by hand: text outside the grammar has the lowest reward; 60 % of the prompts are inside, 40 % outside
    mean = float(np.repeat([0.6 / 12, 0.4 / 12], 12) @ (oracle.reference @ [*-words, -20.0]))
    assert oracle.f(oracle.reference) == pytest.approx(mean, abs=1e-9)
    assert result["gap_last"] < 0.5 * result["gap_reference"]
    with open_folder(tmp_path / "run") as journal:
        known = {answer.id: answer for answer in journal.samples()}
        measured = journal.phases(like="reward-%")
        assert [one.phase for one in measured] == ["reward-offline", *["reward-pairs"] * 2]
        assert "reward" in journal.phases(0, "limit-sources")[0].payload
        for one in measured:
            rewards = {each.answer: each.value for each in journal.measurements(one.round, one.phase)}
            assert rewards == {name: -float(len(known[name].text.split())) for name in one.payload["ids"]}


@pytest.mark.full
@pytest.mark.slow
def test_a_changed_function_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    config = by_function(tmp_path)

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (1, "reward-pairs"):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(config, tmp_path / "run", progress=cut)
    (tmp_path / "measures.py").write_text(SHORT.replace("-float", "-0.5 * float"))
    with pytest.raises(UserError, match=r"reward: run .* was started with the source"):
        run_recipe(config, tmp_path / "run", resume=True)


@pytest.mark.full
@pytest.mark.slow
def test_on_files_nobody_is_asked_what_is_helpful_and_a_failed_score_is_no_number(tmp_path: Path) -> None:
    """No people, no judge, no reward model: the service's numbers are the reward, every fifth one it does not have."""
    asked = count()

    def measure(body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"value": None if next(asked) % 5 == 0 else min(1.0, len(body["response"]) / 400)}

    with measuring_server() as server:
        server.measure = measure
        source = f"{{endpoint: '{server.url}/measure', bounds: [0, 1], failed: 40 %, tries: 1}}"
        config = on_files(tmp_path, RULES, f"reward={source}", "feedback.kind=world")
        result = run_recipe(config, tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        measured = journal.phases(like="reward-%")
        numbers = [(one.answer, one.value) for one in journal.measurements(phase="reward-%")]
        known = {answer.id: answer for answer in journal.samples()}
        new = [entry.labelled for entry in journal.pairs() if entry.round > 0]
    assert len(measured) == 3
    assert new
    assert {item.helpful.value for item in new} == {"abstain"}
    assert 0.1 < np.mean([value is None for _, value in numbers]) < 0.3
    assert all(value == min(1.0, len(known[name].text) / 400) for name, value in numbers if value is not None)
    assert len({name for name, _ in numbers}) == len(numbers)
    prices = [one["price"] for one in result["limits"].values()]
    assert all(one["win_points"] is None and "win rate" not in one["text"] for one in prices)
    assert result["rounds"] == 2


@pytest.mark.full
@pytest.mark.slow
def test_a_source_that_never_answers_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with measuring_server() as server:
        server.measure = lambda body: (200, {"value": None})
        source = f"{{endpoint: '{server.url}/measure', bounds: [0, 1], tries: 1}}"
        config = on_files(tmp_path, RULES, f"reward={source}", "feedback.kind=world")
        with pytest.raises(RunError, match=r"no two answers to a prompt have a reward.*endpoint"):
            run_recipe(config, tmp_path / "run")


def test_pairs_in_files_are_the_comparisons_of_real_text(tmp_path: Path) -> None:
    for name in ("mine.jsonl", "other.jsonl"):
        (tmp_path / name).touch()
    recipe = {"extends": "real-text", "reward": {"pairs": ["mine.jsonl"]}}
    (tmp_path / "pairs.yaml").write_text(json.dumps(recipe))
    config = load(str(tmp_path / "pairs.yaml"))
    assert config.data is not None
    assert (config.data.helpful, config.reward) == ([str(tmp_path / "mine.jsonl")], {})
    with pytest.raises(UserError, match="files of real text"):
        load("text-world", ["reward={pairs: [mine.jsonl]}"])
    with pytest.raises(UserError, match="the same files; name them once"):
        load(str(tmp_path / "pairs.yaml"), [f"data.helpful=[{tmp_path / 'other.jsonl'}]"])


def test_a_layers_source_takes_the_place_of_the_one_below_and_what_is_asked_is_laid_over_it(tmp_path: Path) -> None:
    config = by_function(tmp_path, "reward.bounds=[-30, 0]")
    assert config.reward["bounds"] == [-30, 0]
    assert "function" in config.reward
    (tmp_path / "own.yaml").write_text(json.dumps({**on_files(tmp_path, RULES).model_dump(mode="json"), "reward": {
        "rule": "words", "bounds": [0, 60]}}))  # fmt: skip
    lower = load(str(tmp_path / "own.yaml"), ["reward={rule: characters, bounds: [0, 300]}"])
    assert lower.reward == {"rule": "characters", "bounds": [0, 300]}


def test_a_plan_counts_no_comparison_that_no_stage_learns_from(tmp_path: Path) -> None:
    machine = inspect_machine()
    alone = make_plan(on_table(tmp_path, RATES), machine)["labels"]
    compared = make_plan(on_table(tmp_path, LOGIT), machine)["labels"]
    assert (alone["preferences"], alone["offline"]) == (0, 0)
    assert compared["preferences"] == 2 * 32 * 4
    source = "reward={endpoint: 'http://127.0.0.1:9/', bounds: [0, 1]}"
    asked = make_plan(on_files(tmp_path, RULES, source), machine)["labels"]["limits"]["reward"]
    assert asked == {"limit": "reward", "source": "endpoint http://127.0.0.1:9/", "before": 80, "per_round": 12,
                     "in_all": 104}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=o-pd-dpo-paper"], "algorithm o-pd-dpo-paper learns the reward from comparisons"),
        (["reward={rule: words, bounds: [0, 50]}"], "reward: rule words reads texts; a table has none"),
        (["reward={world: cost}"], "a world has one reward; write {world: reward}, not `cost`"),
        (["reward={people: {}}"], "people compare answers; leave `reward` out and set feedback.kind=people"),
        (["reward={function: 'a:b'}"], "a computed reward needs `bounds: [low, high]`"),
        (["reward={functoin: 'a:b', bounds: [0, 1]}"], "did you mean `function`?"),
        (["reward={function: 'a:b', bounds: [1, 0]}"], "reward.bounds: 1 is not below 0"),
        (["reward={function: 'a:b', at_most: 3, bounds: [0, 1]}"], "unknown key `at_most`"),
        (["limits.reward={rate: {world: cost}, at_most: 50 %}"], "give this limit another name"),
    ],
)
def test_what_a_reward_cannot_be_is_refused_in_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        on_table(tmp_path, RATES, *overrides)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_recipe_without_limits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limits: cost taken out, and none is left"):
        on_table(tmp_path, {})


def test_methods_that_learn_from_comparisons_alone_refuse_a_computed_reward() -> None:
    with pytest.raises(UserError, match=r"algorithm sacpo learns the reward from comparisons; a computed `reward:`"):
        load("sacpo", ["reward={world: reward}"])


@pytest.mark.run
def test_a_worlds_reward_beyond_the_recipes_bounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the world's reward runs from"):
        run_recipe(on_table(tmp_path, RATES, "reward_max=0.5"), tmp_path / "run")
