"""PPO-Lagrangian on a language model: the networks of one update, from the artifact store and back to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pddpo_lab.policy_gradient.command import Critics, PpoCommand, PpoResult, StoredWeights
from pddpo_lab.policy_gradient.update import Actors, Learner, ModuleEngine, per_token, run_ppo, token_log_probs
from pddpo_ray.contracts import Start
from pddpo_ray.errors import UserError
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer
from pddpo_ray.training.models.score_model import ScoreModel, score_model_of, score_tensors
from pddpo_ray.training.passes.log_probs import device_of


def update_network(command: PpoCommand, trainer: LocalTrainer) -> PpoResult:
    """One update of the trainer's model and its critics, if any.

    The optimisers begin afresh in every update: a command holds everything that decides its result. Raises UserError
    where the engine trains adapters or a sharded model.
    """
    engine, store, folder = trainer.engine, trainer.store, trainer.store.folder(trainer.reference.path)
    began = time.perf_counter()
    if type(engine) is not TorchEngine or type(trainer) is not LocalTrainer:
        raise UserError("PPO needs trainer.engine=torch and model.parameters.kind=full")
    forward, device = token_log_probs(engine.scorer), device_of(engine.scorer)
    trainer.load(trainer.reference)
    reference = per_token(forward, [(answer.prompt, answer.answer) for answer in command.answers], device)
    trainer.load_start(Start(command.start))
    critics: list[ScoreModel] = []
    if command.group is None:
        given = (None, None) if command.critics is None else (command.critics.reward, command.critics.cost)
        critics = [_critic(store, folder, weights).to(device) for weights in given]
    learners = [Learner(ModuleEngine(critic, engine.shard), critic.token_scores) for critic in critics]
    metrics = run_ppo(
        Actors(Learner(engine, forward), command.group or (learners[0], learners[1])),
        command.answers,
        reference,
        command.multiplier,
        command.settings,
        command.seed,
    )
    engine.end()
    first_rank = engine.shard.rank == 0
    stored = [_stored(store, name, critic, first_rank) for name, critic in zip(NAMES, critics, strict=False)]
    metrics["ppo/seconds"] = time.perf_counter() - began
    return PpoResult(
        trainer.keep(command, engine.weights()), metrics, (os.getpid(),), critics=Critics(*stored) if stored else None
    )


NAMES = ("reward-critic", "cost-critic")


def _critic(store: ArtifactStore, folder: Path, weights: StoredWeights | None) -> ScoreModel:
    """A stored critic, or a score model that becomes one; without either the reference with a head of zeros."""
    critic = score_model_of(folder, "critic")
    if weights is not None:
        critic.load_state_dict(store.read_torch(*weights))
    return critic


def _stored(store: ArtifactStore, name: str, critic: ScoreModel, first_rank: bool) -> StoredWeights:
    tensors = score_tensors(critic)
    if first_rank:
        return store.write_tensors(name, tensors)
    sha256 = tensors_sha256(tensors.items())
    return f"{name}-{sha256[:12]}", sha256
