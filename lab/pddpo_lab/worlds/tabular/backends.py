"""The parts of a run on a table, and the recipe's limits on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from pddpo_lab.worlds.tabular.files import tabular_world
from pddpo_lab.worlds.tabular.parts import TabularEngine, TabularTrainer
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config, TabularWorldConfig
from pddpo_ray.errors import UserError
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.limits.reading import REWARD, StatedLimit
from pddpo_ray.parts.held_limit import held_limits
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.records import Array, LabelledPair, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.prompt_sets import PromptSets
from pddpo_ray.worlds.computed_reward import own_reward
from pddpo_ray.worlds.exact_evaluation import WorldView
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.table_limits import TableLimits, costs_of, on_prompts


def table_backends(config: Config, store: ArtifactStore) -> Backends:
    """Backends of the world `tabular`."""
    return tabular_backends(config, world_of_recipe(config), store)


def world_of_recipe(config: Config) -> TabularWorld:
    """The recipe's table."""
    assert isinstance(config.world, TabularWorldConfig)
    return tabular_world(config.world)


def limits_of_recipe(config: Config) -> TableLimits:
    """The recipe's limits on its table, for a dry run. Raises UserError where they do not fit together."""
    return limits_on(world_of_recipe(config), config)


def texts_of_recipe(config: Config) -> tuple[list[str], list[str], Oracle]:
    """Prompts and answers as people are shown them, and the truth about them."""
    table = world_of_recipe(config)
    return (
        [prompt.text for prompt in table.prompts],
        [f"answer {index}" for index in range(table.shape[1])],
        table.oracle,
    )


def tabular_backends(config: Config, world: TabularWorld, store: ArtifactStore) -> Backends:
    """Tables in place of a model; features are one-hot and need no whitening."""
    trainer = TabularTrainer(world, store)
    limits, reward = limits_on(world, config), config.computed_reward

    def offline(seed: int) -> list[LabelledPair]:
        drawn = world.offline(seed, None if world.offline_rows else config.offline.pairs)
        return drawn + world.unconfined(seed, config.offline.extra)

    return Backends(
        store=store,
        trainer=trainer,
        engines=[TabularEngine(world, store, f"tabular-{index}") for index in range(config.rollout.engines)],
        labeller=world.labeller(),
        further_labellers={name: one for name, one in world.further_labellers().items() if name in config.compared},
        prompts=world.prompts,
        reference=trainer.reference,
        baseline=world.baseline_pool,
        canaries=[world.response(x, 0, f"canary-{x}") for x in range(world.shape[0])],
        answers=world.answers,
        prompt_sets=config.prompt_sets,
        prior=limits.weights.tolist(),
        offline=offline,
        features="one-hot",
        world=tabular_view(world, store, config),
        held_limits=held_limits(limits.stated, limits.scales, limits.factors, world.prompts),
        measure=limits.measure,
        reward=None if reward is None else ComputedReward(reward, own_reward(world.oracle, world.cell, reward)),
    )


def limits_on(world: TabularWorld, config: Config) -> TableLimits:
    """The recipe's limits on a table. Raises UserError where they do not fit together."""
    return table_limits(world, config.stated, config.prompt_sets)


def tabular_view(world: TabularWorld, store: ArtifactStore, config: Config) -> WorldView:
    """Evaluation reads a policy's table from its artifact. The recipe's limits and beta define the problem."""

    def table(policy: PolicyVersion) -> Array:
        return np.exp(store.read_tensors(policy.path, policy.sha256)["log_probs"])

    return WorldView(
        limits_on(world, config).oracle(config.beta),
        table,
        world.covered,
        stages_of_costs=labelled_by_feedback(config.stated),
        cell=world.cell,
        logits=world.oracle.cost,
    )


def table_limits(world: TabularWorld, stated: Sequence[StatedLimit], sets: PromptSets | None) -> TableLimits:
    """Raises UserError for a source that no table has, and for prompts that it does not have."""
    weights, factors = on_prompts(stated, sets, world.oracle.prior)
    single = np.stack([_measure_table(world, one) for one in stated])
    costs = np.stack([costs_of(one, table, f"the world's `{one.source.what}`", world.oracle.reference)
                      for one, table in zip(stated, single, strict=True)])  # fmt: skip
    return TableLimits(world.oracle, world.cell, world.oracle.cost_max, tuple(stated), costs, single, factors, weights)


def _measure_table(world: TabularWorld, stated: StatedLimit) -> Array:
    """What the world says of every answer by itself under one limit. [X, Y]"""
    if stated.limit.quantity.kind == "kl":
        return np.zeros_like(world.oracle.reference)
    logits = {"cost": world.oracle.cost, **{limit.name: limit.cost for limit in world.oracle.further}}
    kind, name = stated.limit.quantity.kind, stated.compared_as
    if stated.wins:
        tables = {REWARD: world.oracle.reward}
    elif kind == "logit":
        tables = logits
    else:
        rates = {label: expit(table) for label, table in logits.items()} if kind == "rate" else {}
        tables = {**rates, **world.measures}
    if name not in tables:
        known = ", ".join(tables) or "none"
        raise UserError(f"{stated.where}: this world has no {kind} called `{name}`; it has {known}")
    return np.asarray(tables[name], dtype=np.float64)
