"""Updates by policy gradients as the methods see them: scored answers in, a stored and journalled version out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pddpo_lab.methods.scoring import ScoringController, scoring_of
from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import Critics, PpoCommand, PpoResult, ScoredAnswer
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.contracts import TrainerBackend, perform
from pddpo_ray.driver.build import BuiltParts
from pddpo_ray.journal import Journal
from pddpo_ray.records import Array, PolicyVersion, Response
from pddpo_ray.theory.multipliers.dual import LimitState
from pddpo_ray.theory.seeds import seed_of


class Updates:
    """Makes the round's policy by one update and journals it."""

    def __init__(self, backend: TrainerBackend, journal: Journal, settings: PpoSettings, *, seed: int) -> None:
        self._backend, self._journal, self._settings, self._seed = backend, journal, settings, seed

    def reinforce(
        self,
        reference: PolicyVersion,
        answers: Sequence[Response],
        scores: tuple[Array, Array],
        multiplier: float,
        critics: Critics | None,
        *,
        group: int | None = None,
    ) -> PolicyVersion:
        """The round's policy by one update of PPO-Lagrangian on answers of the policy before it (of the reference in
        round 1) with their rewards and costs. `critics` are those to begin with; later ones come from the round before.
        With `group`, the answers to a prompt are each other's baseline and no critic is kept.
        """
        numbers = [entry.version.number for entry in self._journal.versions()]
        command = PpoCommand(
            sequence=max(numbers, default=0) + 1,
            start=next(iter(self._journal.policies[-1:]), reference),
            answers=tuple(
                ScoredAnswer(answer.prompt.token_ids, answer.token_ids, float(reward), float(cost))
                for answer, reward, cost in zip(answers, *scores, strict=True)
            ),
            multiplier=multiplier,
            critics=critics,
            settings=self._settings,
            seed=seed_of(self._seed, self._journal.round, "ppo"),
            result=f"policy-{self._journal.round}",
            group=group,
        )
        number = self._journal.once("ppo", lambda: self._update(command))["number"]
        return next(entry.version for entry in self._journal.versions() if entry.version.number == number)

    def _update(self, command: PpoCommand) -> dict[str, Any]:
        before = [entry.payload["critics"] for entry in self._journal.phases(self._journal.round - 1, like="ppo")]
        if before and before[0] is not None:
            command = replace(command, critics=Critics(*(tuple(stored) for stored in before[0])))
        result: PpoResult = perform(self._backend, command)
        made, base, multiplier = result.version, command.start.number, command.multiplier
        self._journal.add_version(made, "cost", result.metrics, result.workers, base=base, multiplier=multiplier)
        self._journal.add_metrics(result.metrics)
        kept = result.critics
        return {"number": command.sequence, "critics": kept and [list(kept.reward), list(kept.cost)]}


@dataclass(frozen=True)
class GradientParts:
    """What these methods bring."""

    scores: ScoringController
    updates: Updates


def parts_of(config: Config, backends: Backends, parts: BuiltParts, first: LimitState) -> GradientParts:
    """The parts of a run."""
    settings = config.method_settings
    assert isinstance(settings, PpoSettings)
    updates = Updates(backends.trainer, parts.journal, settings, seed=config.seed)
    return GradientParts(scoring_of(config, backends, parts, first), updates)
