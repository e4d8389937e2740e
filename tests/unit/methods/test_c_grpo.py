"""Constrained GRPO: its advantages by hand, its gradient by enumeration, a table with a known optimum, a model."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.policy_gradient.group_advantages import group_advantages, lead_over_others
from pddpo_lab.policy_gradient.tables import Tables, update_tables
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.training.local import LocalTrainer
from tests.unit.loop.small_run import story
from tests.unit.methods.runs import SMALL, journal_of
from tests.unit.methods.test_safe_rlhf import (
    COST,
    KAPPA,
    PPO,
    REFERENCE,
    REWARD,
    RULE,
    SETTINGS,
    ScoredAnswer,
    command_of,
    lead,
    optimum,
    total_variation,
    trainer,
)

__all__ = ["trainer"]


def test_an_answer_is_compared_with_the_others_of_its_group_by_hand() -> None:
    """Values 1, 2, 6 | 0, 0, 3: leads -3, -1.5, 4.5 | -1.5, -1.5, 3; mean square 45 / 6.

    lambda 1 and kappa .5: (3 - 1) / 2 - .5 * 0 = 1, and so on for each.
    """
    rewards, costs = np.array([3.0, 5.0, 12.0, 2.0, 1.0, 8.0]), np.array([1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    ratios = np.array([0.0, 0.0, -2.0, 0.0, -1.0, 0.0])
    values = np.array([1.0, 2.0, 6.0, 0.0, 0.0, 3.0])
    np.testing.assert_allclose((rewards - costs) / 2 - 0.5 * ratios, values)
    leads = np.array([-3.0, -1.5, 4.5, -1.5, -1.5, 3.0])
    np.testing.assert_allclose(lead_over_others(values, 3), leads)
    found = group_advantages(rewards, costs, ratios, multiplier=1.0, kl=0.5, group=3)
    np.testing.assert_allclose(found, leads / np.sqrt(7.5))


def test_equal_values_say_nothing_and_broken_groups_are_refused() -> None:
    zeros = np.zeros(4)
    same = group_advantages(np.full(4, 0.1), np.full(4, 0.3), zeros, multiplier=0.7, kl=0.1, group=2)
    assert same.tolist() == [0.0] * 4
    for count, group in ((4, 3), (4, 1)):
        with pytest.raises(ValueError, match=f"{count} answers are not groups of {group}"):
            group_advantages(np.zeros(count), np.zeros(count), np.zeros(count), multiplier=0.0, kl=0.1, group=group)


def test_the_expected_step_is_the_exact_gradient_of_the_objective() -> None:
    """All 64 groups of three answers to one prompt, weighed by their chance: sum A grad log pi / G = grad J."""
    policy = np.array([0.1, 0.4, 0.3, 0.2])
    values = (REWARD[0] - 1.5 * COST[0]) / 2.5 - KAPPA * (np.log(policy) - REFERENCE[0])
    # grad of log pi(y) by the logits is e_y - pi; of J = E s - kappa KL it is pi (s - E s), as E grad log pi = 0
    exact = policy * (values - policy @ values)
    expected = np.zeros(4)
    for group in product(range(4), repeat=3):
        leads = lead_over_others(values[list(group)], 3)
        step = sum(a * (np.eye(4)[y] - policy) for a, y in zip(leads, group, strict=True)) / 3
        expected += np.prod(policy[list(group)]) * step
    np.testing.assert_allclose(expected, exact, atol=1e-14)


def groups(log_probs: np.ndarray, count: int, rng: np.random.Generator) -> list[ScoredAnswer]:
    cells = [(x, rng.choice(4, size=8, p=np.exp(log_probs[x]))) for x in rng.integers(2, size=count)]
    return [ScoredAnswer((int(x),), (int(y),), REWARD[x, y], COST[x, y]) for x, answers in cells for y in answers]


@pytest.mark.run
@pytest.mark.parametrize("multiplier", [0.0, 1.5])
def test_at_a_fixed_multiplier_the_policy_reaches_the_known_optimum(multiplier: float) -> None:
    rng, zeros, late = np.random.default_rng(4), np.zeros(2), []
    tables = Tables(REFERENCE, zeros, zeros)
    for step in range(45):
        settings = SETTINGS.model_copy(update={"learning_rate": 0.05 if step < 30 else 0.01})
        answers = groups(tables.log_probs, 50, rng)
        tables, metrics = update_tables(tables, REFERENCE, answers, multiplier, settings, step, group=8)
        late.append(tables.log_probs)
    found = np.log(np.mean(np.exp(late[-10:]), axis=0))
    assert total_variation(REFERENCE, optimum(multiplier)) > 0.15
    assert total_variation(found, optimum(multiplier)) < 0.05
    assert not [name for name in metrics if "critic" in name]


@pytest.mark.run
def test_a_language_model_learns_from_groups_repeatably_and_stores_no_critic(trainer: LocalTrainer) -> None:
    command = command_of(trainer, group=2)
    first = command.run(trainer)
    assert first.critics is None
    assert lead(trainer, first.version) > lead(trainer, trainer.reference) + 0.05
    assert command.run(trainer).version == first.version
    easier = tuple(replace(one, reward=one.reward + 4.0) for one in command.answers[:4]) + command.answers[4:]
    shifted = replace(command, answers=easier).run(trainer)
    assert lead(trainer, shifted.version) == pytest.approx(lead(trainer, first.version), abs=1e-5), "an easy prompt"


def tabular(*overrides: str) -> object:
    given = ["rounds=4", "dual.first=1.0", "method.window=40", "method.group=4"]
    return load("tabular", ["algorithm=c-grpo", *SMALL, RULE, PPO, *given, *overrides])


@pytest.mark.run
def test_a_run_samples_groups_and_one_that_was_broken_off_equals_the_unbroken(tmp_path: Path) -> None:
    class PowerCut(BaseException):
        pass

    def cut(event: object) -> None:
        inner = getattr(event, "event", None)
        if inner is not None and (inner.round, inner.phase) == (3, "ppo"):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(tabular(), tmp_path / "cut" / "run", progress=cut)  # type: ignore[arg-type]
    run_recipe(tabular(), tmp_path / "cut" / "run", resume=True)  # type: ignore[arg-type]
    run_recipe(tabular(), tmp_path / "whole" / "run")  # type: ignore[arg-type]
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
    with journal_of(tmp_path / "whole" / "run") as journal:
        samples = {number: journal.samples(number, "cost") for number in range(5)}
    assert [len(answers) for answers in samples.values()] == [24] * 5
    for answers in samples.values():
        asked = [answer.prompt.id for answer in answers]
        assert all(len(set(asked[at : at + 4])) == 1 for at in range(0, 24, 4))
    drawn = [answer.token_ids for answers in samples.values() for answer in answers]
    assert any(len(set(drawn[at : at + 4])) > 1 for at in range(0, len(drawn), 4)), "answers of a group are drawn apart"


def test_groups_that_do_not_fill_a_round_are_refused() -> None:
    with pytest.raises(UserError, match=r"feedback\.responses=24 is no multiple of method\.group=5"):
        tabular("method.group=5")
    with pytest.raises(UserError, match="c-grpo needs"):
        load("c-grpo", ["model.parameters.kind=lora"])
