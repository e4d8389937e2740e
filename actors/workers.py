"""What runs inside the worker processes: functions that make a rank's trainer, an engine or a labeller there.

They travel by name with plain arguments; models and engines are imported and built where they live: a labeller or a
table's engine needs no torch, whose import takes over a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.backends.in_process import backends_of_world
from pddpo_ray.config import Config
from pddpo_ray.contracts import Labeller, RolloutEngine, TrainerBackend
from pddpo_ray.records import PolicyVersion
from pddpo_ray.rollout.factory import language_engine
from pddpo_ray.storage.artifacts import ArtifactStore

if TYPE_CHECKING:
    from pddpo_ray.training.fit import Engine, Shard
    from pddpo_ray.training.passes.log_probs import ResponseScorer


def text_trainer(
    config: Config, folder: Path, store: str, reference: PolicyVersion, rank: int, ranks: int
) -> TrainerBackend:
    """A rank of the trainer for the model in `folder`, with the recipe's engine."""
    from pddpo_ray.training.fit import Shard
    from pddpo_ray.training.recipe_trainer import recipe_trainer

    name, dtype, shard = config.trainer.engine, config.model.dtype, Shard(rank, ranks)
    return recipe_trainer(
        config.model,
        folder,
        ArtifactStore(store),
        reference,
        temperature=config.policy.temperature,
        make_engine=lambda scorer: make_engine(name, scorer, shard, dtype=dtype),
    )


def table_trainer(config: Config, store: str, rank: int, ranks: int) -> TrainerBackend:
    """A table's fit is exact and takes no time: every rank does the whole of it."""
    return backends_of_world(config, ArtifactStore(store)).trainer


def text_engine(config: Config, name: str, folder: Path, store: str) -> RolloutEngine:
    """The recipe's engine, in this process."""
    return language_engine(config, name, folder, ArtifactStore(store))


def table_engine(config: Config, name: str, store: str) -> RolloutEngine:
    """The world's engine of that name."""
    return next(engine for engine in backends_of_world(config, ArtifactStore(store)).engines if engine.name == name)


def given_labeller(labeller: Labeller) -> Labeller:
    """A labeller that was made by the driver, such as a calibrated world's truth."""
    return labeller


def make_engine(name: str, scorer: ResponseScorer, shard: Shard, *, dtype: str = "float32") -> Engine:
    """`torch`, or `zero1` to `zero3`; DeepSpeed is imported only where it is asked for."""
    if name == "torch":
        from pddpo_ray.training.engine import TorchEngine

        return TorchEngine(scorer, shard)
    from actors.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(scorer, shard, stage=int(name.removeprefix("zero")), dtype=dtype)
