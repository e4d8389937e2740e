"""Backends in this process, for notebooks, tests and small worlds; the same numbers as on Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.preflight import given_by_users
from pddpo_ray.config import Config, TabularWorldConfig
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.parts.held_limit import held_limits
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.records import Array, LabelledPair, PolicyVersion
from pddpo_ray.registry import code_of
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import ARTIFACTS
from pddpo_ray.worlds.computed_reward import own_reward
from pddpo_ray.worlds.exact_evaluation import WorldView
from pddpo_ray.worlds.tabular.files import tabular_world
from pddpo_ray.worlds.tabular.limits import TableLimits, table_limits
from pddpo_ray.worlds.tabular.parts import TabularEngine, TabularTrainer
from pddpo_ray.worlds.tabular.world import TabularWorld


def make_backends(config: Config, run_dir: Path) -> Backends:
    """Backends of the recipe's files or world. Raises UserError for a world file that is not one."""
    store = ArtifactStore(run_dir / ARTIFACTS)
    if config.world is not None:
        return backends_of_world(config, store)
    # Imported here: a world's run may need neither transformers nor an inference engine.
    from pddpo_ray.backends.in_process_text import text_backends

    return text_backends(config, store, given_by_users(config, run_dir))


def backends_of_world(config: Config, store: ArtifactStore) -> Backends:
    """By the world's name in the registry, one that ships or one of an installed package."""
    assert config.world is not None
    made: Backends = code_of("worlds", config.world.kind)(config, store)
    return made


def table_backends(config: Config, store: ArtifactStore) -> Backends:
    """Backends of the world `tabular`."""
    assert isinstance(config.world, TabularWorldConfig)
    return tabular_backends(config, tabular_world(config.world), store)


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
        reward=None if reward is None else ComputedReward(reward, own_reward(world, reward)),
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
