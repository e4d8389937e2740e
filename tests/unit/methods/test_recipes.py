"""The `paper/` recipes hold the values of the table of hyper-parameters (paper.md §12; C for other methods)."""

from __future__ import annotations

from pathlib import Path

import pytest

import pddpo_lab.methods
from pddpo_lab.methods.settings import for_the_dual_by_policies
from pddpo_ray import algorithms
from pddpo_ray.config import LogRule, LoraParameters, load, recipe_names
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.registry import names
from tests.support.method_modules import METHODS

# epochs, pairs per device, accumulated batches x devices, learning rate, schedule, warm-up, weight decay
TABLE = {
    "pd-dpo": (3.0, 8, 1, 3e-5, "cosine", 0.03, 0.05),
    "pd-dpo-fixed": (3.0, 8, 1, 3e-5, "cosine", 0.03, 0.05),
    "pd-dpo-adalag": (3.0, 16, 4, 3e-5, "cosine", 0.03, 0.05),
    "dpo-harmless": (3.0, 8, 1, 1e-5, "cosine", 0.03, 0.05),
    "dpo-helpful": (3.0, 8, 1, 1e-5, "cosine", 0.03, 0.05),
    "safe-dpo": (3.0, 8, 1, 1e-6, "cosine", 0.03, 0.05),
    "sacpo": (3.0, 16, 2, 2e-5, "cosine", 0.03, 0.0),
    "p-sacpo": (3.0, 16, 2, 2e-5, "cosine", 0.03, 0.0),
    "pecan": (3.0, 2, 8, 5e-4, "cosine", 0.1, 0.05),
    "mocan": (3.0, 2, 8, 5e-4, "cosine", 0.1, 0.05),
    "caid": (1.0, 8, 1, 5e-4, "cosine", 0.1, 0.05),
}
FITS: dict[str, tuple[Stage, ...]] = {
    "dpo-helpful": ("first_reward",),
    "dpo-harmless": ("first_cost",),
    "safe-dpo": ("first_cost",),
    "mocan": ("first_cost",),
    "caid": ("first_cost", "cost"),
    "pd-dpo": ("first_reward", "first_cost", "cost"),
}


@pytest.mark.parametrize("method", TABLE)
def test_a_paper_recipe_trains_with_the_values_of_the_table(method: str) -> None:
    epochs, per_device, batches, rate, schedule, warmup, decay = TABLE[method]
    config = load(f"paper/{method}")
    assert config.algorithm == method
    assert config.beta == 0.1
    assert config.model.dtype == "bfloat16"
    assert config.rollout.model_dump()["max_model_len"] == 512
    assert config.trainer.micro_pairs == per_device
    assert config.trainer.support == 0.0
    for name in FITS.get(method, ("first_reward", "first_cost")):
        fit = config.trainer.of_stage(name)
        assert fit.batch_pairs == per_device * batches, name
        assert (fit.epochs, fit.learning_rate, fit.schedule, fit.warmup, fit.weight_decay) == (
            epochs, rate, schedule, warmup, decay,
        ), name  # fmt: skip


def test_adalag_has_its_own_values() -> None:
    config = load("paper/pd-dpo-adalag")
    devices = config.trainer.workers
    assert devices == 4
    assert config.rounds - 1 == 20
    assert (config.feedback.responses, config.method["window"]) == (16 * devices, 128 * devices)
    assert (config.dual.first, config.dual.upper, config.thresholds["cost"]) == (2.0, 10.0, 1.495)
    assert isinstance(config.dual.rule, LogRule)
    assert config.dual.rule.rate == 0.5
    assert (config.trainer.of_stage("cost").steps, config.trainer.of_stage("cost").batch_pairs) == (1, 16 * devices)
    assert config.trainer.of_stage("cost").learning_rate == 3e-5
    assert config.trainer.warm_start == "previous"


def test_the_multipliers_of_the_table() -> None:
    assert load("paper/pecan").method["multiplier"] == 3.2
    sacpo, merged = load("paper/sacpo"), load("paper/p-sacpo")
    assert isinstance(sacpo.dual.first, float)
    assert isinstance(merged.dual.first, float)
    assert sacpo.beta / sacpo.dual.first == pytest.approx(0.025)
    assert merged.beta / merged.dual.first == pytest.approx(0.01)
    assert merged.method["share"] in (0.25, 0.5, 0.75)
    for value in (1.0, 2.0, 3.0, 4.0):
        assert load("paper/pd-dpo-fixed", [f"dual.first={value}"]).dual.first == value
    assert load("paper/pd-dpo").dual.rho == 5.0


def test_pecan_draws_answers_for_a_multiplier_that_it_is_not_given() -> None:
    """Those of the dual, and the reference's whose labels set the zero of its costs."""
    given, free = load("paper/pecan"), load("paper/pecan", ["method.multiplier=null"])
    assert for_the_dual_by_policies(given, 3) == {}
    each = free.method["answers"]
    assert for_the_dual_by_policies(free, 3) == {"dual": 3 * each, "cost": free.feedback.responses}


@pytest.mark.parametrize("method", ["pecan", "mocan", "caid"])
def test_methods_that_were_published_with_adapters_train_adapters(method: str) -> None:
    config = load(f"paper/{method}")
    assert config.model.parameters == LoraParameters(rank=8, alpha=16.0, dropout=0.05)
    assert load("paper/safe-dpo").method["margin"] == 10.0


def test_the_other_methods_train_all_parameters_and_draw_what_their_authors_drew() -> None:
    assert {
        load(f"paper/{name}").model.parameters.kind for name in TABLE if name not in ("pecan", "mocan", "caid")
    } == {"full"}
    assert load("paper/mocan").method["answers"] == 128
    assert load("paper/mocan").method["multiplier"] is None
    assert (load("paper/caid").rounds, load("paper/caid").feedback.responses) == (4, 600 * 64)
    assert load("paper/c-dpo").feedback.responses == 2000 * 5


def test_every_method_has_a_page_a_world_recipe_and_a_paper_recipe() -> None:
    methods = set(names("methods"))
    parts = {"__init__", "stages", "scoring", "merging", "loss_bonus", "linear_scores", "explicit_dual", "settings"}
    rooms = [Path(algorithms.__file__).parent, *map(Path, pddpo_lab.methods.__path__)]
    files = {path.stem for room in rooms for path in room.glob("*.py")} - parts
    assert {METHODS[name].__name__.rpartition(".")[2] for name in methods} == files
    assert methods <= set(recipe_names())
    without = {"o-pd-dpo", "o-pd-dpo-paper", "c-grpo"}  # the paper has no experiment with them
    assert {f"paper/{name}" for name in methods - without} == {n for n in recipe_names() if n.startswith("paper/")}
    assert {load(name).algorithm for name in methods} == methods
