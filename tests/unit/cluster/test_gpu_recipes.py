"""The recipes for 1, 4 and 8 GPUs: they load, fit on what they name, and train with the paper's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from pddpo_ray.backends.machine import GIB, Machine
from pddpo_ray.config import ModelFeedback, VllmRollout, load, recipe_names
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.plan.cost_model import prompts_of, work_before
from pddpo_ray.plan.memory import ModelShape, memory, stored_bytes
from pddpo_ray.plan.printed import make_plan, plan_lines
from pddpo_ray.plan.resources import bundles
from pddpo_ray.plan.scale import cost_scale
from pddpo_ray.records import Array, Prompt, Response
from pddpo_ray.scoring.interface import TextPair
from pddpo_ray.scoring.scored_labeller import ScoredLabeller
from tests.support.label_estimates import label_estimate

PAPER = ("pd-dpo", "pd-dpo-fixed", "pd-dpo-adalag", "dpo-harmless", "dpo-helpful", "safe-dpo", "sacpo", "pecan")
METHODS = (*PAPER, "o-pd-dpo")
HELM = Path(__file__).parents[3] / "deploy" / "helm"
NAMES = [f"gpu/{method}-{count}" for method in METHODS for count in (1, 4, 8)] + ["gpu/o-pd-dpo-nf4-1"]
LINEAR_7B = 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
SEVEN_B = ModelShape(6_738_415_616, 4096, 32, 32_000, LINEAR_7B, 512, linear_numbers=32 * 202_375_168)
DEVICES = {"140 GB": 131, "80 GB": 79, "24 GB": 22}
"""GiB of devices, as drivers count them."""
CPUS = Machine(cpus=64, memory_bytes=512 * GIB)


def test_there_is_a_recipe_for_every_method_on_1_4_and_8_gpus() -> None:
    assert sorted(NAMES) == [name for name in recipe_names() if name.startswith("gpu/")]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_takes_as_many_gpus_as_its_name_says(name: str) -> None:
    config = load(name, check_files=False)
    reserved = {bundle.part: bundle for bundle in bundles(config, "cuda")}
    total = sum(bundle.count * bundle.gpus for bundle in reserved.values())
    assert math.ceil(round(total, 4)) == int(name[-1])
    if config.cluster.layout == "time-shared":  # type: ignore[union-attr]
        assert reserved["rollout"].count == int(name[-1])
        beside = 1 - reserved["rollout"].gpus - reserved["trainer"].gpus
        assert int(round(beside / reserved["feedback"].gpus, 6)) == (2 if name.endswith("-1") else 1)


def test_the_charts_share_holds_its_default_run_with_a_7b_model_and_as_much_again_at_most() -> None:
    values = yaml.safe_load((HELM / "values.yaml").read_text(encoding="utf-8"))
    config = load(values["run"]["recipe"], values["run"]["overrides"], check_files=False)
    share = int(values["storage"]["size"].removesuffix("Gi")) * GIB
    assert stored_bytes(config, SEVEN_B) < share < 2 * stored_bytes(config, SEVEN_B)


def test_the_charts_example_with_people_labels_a_model_of_ones_own_on_the_gpus_that_it_asks_for() -> None:
    run = yaml.safe_load((HELM / "examples" / "people.yaml").read_text(encoding="utf-8"))["run"]
    config = load(run["recipe"], run["overrides"], check_files=False)
    assert (config.feedback.kind, {one.source.kind for one in config.stated}) == ("people", {"people"})
    assert config.model.reference == "/mnt/pddpo/models/ours"
    assert sum(one.count * one.gpus for one in bundles(config, "cuda")) == run["workers"]["gpus"]


@pytest.mark.parametrize("name", NAMES)
def test_a_7b_model_fits_on_the_devices_that_a_recipe_names(name: str) -> None:
    """Whoever is at work: trainer, engine or a scoring model, beside what the others keep meanwhile."""
    config = load(name, check_files=False)
    device = next(size for name, size in DEVICES.items() if f"of {name}" in config.about)
    assert isinstance(config.rollout, VllmRollout)
    states = {need.part: need for need in memory(config, SEVEN_B, "cuda", device * GIB) if need.where == "device"}
    assert set(states) == {"trainer", "rollout", "reward and cost models"}
    assert all(need.each < device * GIB for need in states.values())
    engine = states["rollout"].bytes_by_purpose
    assert engine["weights"] + engine["cache"] == pytest.approx(config.rollout.gpu_memory * device * GIB)
    assert engine["cache"] > GIB
    scorer = states["reward and cost models"].bytes_by_purpose
    assert scorer["models"] == 2.0 * SEVEN_B.parameters
    together = config.cluster.layout == "split" and config.feedback.gpus == 0.5  # type: ignore[union-attr]
    assert sum(scorer.values()) * (1 + together) < device * GIB, "two of them share a device of their own"


def test_without_four_bits_the_same_recipe_does_not_fit_on_24_gb() -> None:
    config = load("gpu/o-pd-dpo-nf4-1", ["model.parameters.quantise=none"], check_files=False)
    states = [need for need in memory(config, SEVEN_B, "cuda", 24 * GIB) if need.where == "device"]
    assert {need.part for need in states if need.each < 24 * GIB} == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_round_is_scored_before_its_deadline(name: str) -> None:
    """2 operations a parameter and token, at a tenth of a card's 300 TFLOP/s in bfloat16, none of it on CPUs."""
    config = load(name, check_files=False)
    assert isinstance(config.feedback, ModelFeedback)
    assert config.feedback.gpus > 0
    operations = config.feedback.responses * SEVEN_B.text_tokens * 2.0 * SEVEN_B.parameters
    assert operations / 30e12 < config.rollout.deadline_s


@pytest.mark.parametrize("method", PAPER)
@pytest.mark.parametrize("count", [1, 4, 8])
def test_the_number_of_gpus_changes_where_it_runs_and_no_value_of_the_paper(method: str, count: int) -> None:
    ours, paper = (
        load(f"gpu/{method}-{count}", check_files=False).fixed_settings(),
        load(f"paper/{method}").fixed_settings(),
    )
    # the engine divides the work, and bfloat16 kernels of engine and trainer agree less closely than float32
    ours["trainer"].pop("engine"), paper["trainer"].pop("engine")
    ours["rollout"].pop("canary_tolerance"), paper["rollout"].pop("canary_tolerance")
    ours["model"].pop("device"), paper["model"].pop("device")
    for section in ("algorithm", "beta", "rounds", "trainer", "rollout", "dual", "method", "model", "explore"):
        assert ours.get(section) == paper.get(section), section
    assert ours["feedback"]["responses"] == paper["feedback"]["responses"]
    assert ours["limits"]["cost"]["labels_each"] == paper["limits"]["cost"]["labels_each"]


@pytest.mark.slow
def test_labels_come_from_the_models_of_the_paper() -> None:
    for name in NAMES:
        config = load(name, check_files=False)
        feedback = config.feedback
        assert isinstance(feedback, ModelFeedback)
        assert feedback.reward is not None
        assert feedback.cost is not None
        unified = "adalag" in name
        assert feedback.reward.path.endswith("beaver-7b-v1.0-reward")
        assert feedback.cost.path.endswith("beaver-7b-unified-cost" if unified else "beaver-7b-v1.0-cost")
        assert config.signal == ("cost_model" if unified else "logit_labels")


@pytest.mark.slow
def test_the_plan_says_on_which_scale_costs_and_limits_are() -> None:
    for name in NAMES:
        config = load(name, ["data.reference={}"], check_files=False)
        scale, said = cost_scale(config), " ".join(cost_scale(config).lines())
        assert isinstance(config.feedback, ModelFeedback)
        assert config.feedback.cost is not None
        assert f"the raw score of {config.feedback.cost.path}" in said
        if "adalag" in name:
            assert (scale.clip, scale.limits) == (None, {"cost": 1.495})
            assert "neither labelled nor clipped" in said
        else:
            assert (scale.clip, scale.limits) == (2.0, {"cost": 0.0})
            assert "clipped to [-2, 2] (dual.cost_max): one beyond counts as 2 or -2" in said
        printed = [row for heading, rows in plan_lines(make_plan(config, CPUS)) if "scale" in heading for row in rows]
        assert printed == [(line,) for line in scale.lines()]


@pytest.mark.parametrize("score", [-8.0, -1.0, 1.0, 8.0])
def test_what_an_answer_counts_is_what_the_plan_says(score: float) -> None:
    """The run's own labels and estimate, of answers with one score."""
    scored = ScoredLabeller(AllAlike(0.0), AllAlike(score))
    answers = [Response(f"a{i}", Prompt(f"p{i}", (1,), ""), (2,), "", 1, 0) for i in range(20)]
    verdicts = scored.safety(answers, 400, seed=1)
    estimate = label_estimate(verdicts, labels_each=400, cost_max=2.0)
    assert estimate.value == pytest.approx(np.clip(score, -2, 2), abs=0.1)


class AllAlike:
    """A scorer that gives every answer the same score."""

    name = "all alike"

    def __init__(self, value: float) -> None:
        self._value = value

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return np.full(len(texts), self._value)

    def score(self, responses: Sequence[Response]) -> Array:
        return np.full(len(responses), self._value)


@pytest.mark.slow
def test_prompts_and_offline_pairs_are_those_of_the_paper() -> None:
    for name in NAMES:
        config = load(name, check_files=False)
        assert config.data is not None
        assert isinstance(config.rollout, VllmRollout)
        assert config.data.helpful == ["hf:PKU-Alignment/PKU-SafeRLHF-30K:train"]
        assert config.data.template == "tokenizer-or-safe-rlhf"
        assert config.data.prompt_tokens + config.data.answer_tokens == config.rollout.max_model_len == 512


@pytest.mark.parametrize("count", [1, 4, 8])
def test_o_pd_dpo_trains_with_the_values_of_pd_dpo(count: int) -> None:
    ours, paper = load(f"gpu/o-pd-dpo-{count}", check_files=False), load("paper/pd-dpo")
    stages: tuple[Stage, ...] = ("first_reward", "first_cost", "reward", "cost")
    for stage in stages:
        assert ours.trainer.of_stage(stage) == paper.trainer.of_stage(stage)
    # eight rounds from rho would be the way to the multiplier and nothing else (docs/paper.md)
    assert ours.dual.first == 1.0
    assert (ours.beta, ours.dual.model_copy(update={"first": None})) == (paper.beta, paper.dual)
    assert ours.online


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_would_take_hours_comes_before_the_first_round(name: str) -> None:
    """240,000 answers and 160,000 features came before round 1 when pools of 10,000 prompts were drawn whole."""
    config = load(name, check_files=False)
    before = work_before(config, prompts_of(config))
    scorecard = {"scorecard": 48, "scorecard-benign": 16}
    assert before.answers == ({"calibration": 2048} if config.online else {}) | scorecard
    assert before.features == before.answers.get("calibration", 0)
    assert (before.log_probs, before.prepared, before.fits, before.scorers, before.scorer_pairs) == (0,) * 5
    assert before.deliveries == 1
