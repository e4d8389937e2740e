"""The text world as a run needs it: trained reference, truth, prompts, canaries and the view of evaluation.

Everything here is the same for a run in one process and on Ray; what differs is who trains and who samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from pddpo_ray.config import (
    Config,
    DrawnFamilyConfig,
    RateLimitConfig,
    TabularRollout,
    TextWorldConfig,
)
from pddpo_ray.contracts import RolloutEngine, TrainerBackend
from pddpo_ray.errors import UserError
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.records import HARM, Array, PolicyVersion, Prompt, Response
from pddpo_ray.registry import UnknownName, code_of
from pddpo_ray.rollout.policy_temperature import divide_logits
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import cache_folder
from pddpo_ray.worlds.exact_evaluation import WorldView
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import grammar_of, reference_spread
from pddpo_ray.worlds.text.grammar import Grammar
from pddpo_ray.worlds.text.reference import (
    SCORES,
    ReferenceSpec,
    answer_log_probs,
    cached_reference,
    folder_of_reference,
)
from pddpo_ray.worlds.text.scoring import score_answers
from pddpo_ray.worlds.text.world import TextWorld, with_rest
from pddpo_ray.worlds.truth_labeller import WorldLabeller


class Learner(Protocol):
    """A class of policies on a grammar's answers, learned exactly. Made from the reference's log-probabilities [X, Y],
    the grammar and the recipe's prior."""

    def table(self, store: ArtifactStore, version: PolicyVersion) -> Array:
        """Probabilities of all outcomes under a stored version. -> [X, Y + 1]"""
        ...

    def backends(self, store: ArtifactStore, *, ridge: float) -> tuple[PolicyVersion, TrainerBackend, RolloutEngine]:
        """The reference in the store, what fits and what samples; `ridge` is 1 / variance of the prior of a weight."""
        ...


@dataclass(frozen=True)
class PreparedTextWorld:
    """A calibrated world and the folder of its reference model."""

    world: TextWorld
    reference_folder: Path
    temperature: float = 1.0
    """The policy's."""
    learner: Learner | None = None
    """What is learned in place of the reference's weights, if it is."""

    chat_template: ClassVar[None] = None
    """The world's sentences need none."""

    @property
    def prompts(self) -> Sequence[Prompt]:
        return self.world.prompts

    def labeller(self) -> WorldLabeller:
        world = self.world
        return WorldLabeller(world.reward, {HARM: world.cost}, noise=world.label_noise)

    def canaries(self, count: int) -> list[Response]:
        """Answers spread over prompts and grammar, covered and rare: texts that every policy can be asked about."""
        answers = np.linspace(0, len(self.world.grammar.answer_ids) - 1, count).round().astype(int)
        return [
            Response(
                f"canary-{index}",
                self.world.prompts[index % len(self.world.prompts)],
                self.world.grammar.answer_ids[answer],
                self.world.grammar.answer_texts[answer],
                policy_version=0,
                seed=0,
            )
            for index, answer in enumerate(answers)
        ]

    def view(self, store: ArtifactStore, oracle: Oracle, *, stages_of_costs: bool) -> WorldView:
        """Evaluation scores every answer under a stored version: with a network of its own, or by exact sums.

        `oracle` is the problem under the recipe's limits. The world is calibrated for its own limit; another one of
        the recipe moves the optimum, not the world.
        """
        return WorldView(
            oracle,
            self._tables(store),
            self.world.covered,
            rest=len(self.world.grammar.answer_ids),
            stages_of_costs=stages_of_costs,
            cell=self.world.cell,
            worth_of=self.world.worth,
            logits=self.world.logits,
            groups=None if self.world.groups is None else self.world.groups.tolist(),
        )

    def _tables(self, store: ArtifactStore) -> Callable[[PolicyVersion], Array]:
        if self.learner is None:
            return _Tables(self.world.grammar, self.reference_folder, store, self.temperature)
        return partial(self.learner.table, store)


def prepare_text_world(config: Config, reference_folder: Path | None = None) -> PreparedTextWorld:
    """Take the reference from a folder, or from the cache (or train it first), then draw and calibrate the world."""
    settings = config.world
    if not isinstance(settings, TextWorldConfig):
        raise UserError("this is no recipe of a text world; use world.kind=text")
    grammar = grammar_of(settings)
    _demand_fit(config, settings.family, grammar)
    folder = reference_folder or cached_reference(_reference_spec(settings), cache_folder(settings.cache), grammar)
    temperature = config.policy.temperature
    log_probs = _reference_log_probs(folder, grammar, temperature)
    learner = None if settings.learner == "network" else _learner(settings, log_probs, grammar)
    return PreparedTextWorld(_build_world(config, settings, log_probs, grammar), folder, temperature, learner)


def _learner(settings: TextWorldConfig, log_probs: Array, grammar: Grammar) -> Learner:
    """Raises UserError where the package that brings it is not installed."""
    try:
        make = code_of("learners", settings.learner)
    except UnknownName as error:
        raise UserError(f"world.learner: {error}") from None
    learner: Learner = make(log_probs, grammar, settings.loglinear)
    return learner


def reference_is_there(settings: TextWorldConfig) -> bool:
    """Whether the cache has the world's reference, so that preparing the world trains none."""
    return folder_of_reference(_reference_spec(settings), cache_folder(settings.cache), grammar_of(settings)).exists()


def _reference_spec(settings: TextWorldConfig) -> ReferenceSpec:
    return ReferenceSpec(seed=settings.seed, spread=reference_spread(settings.seed), **settings.reference.model_dump())


def _build_world(config: Config, settings: TextWorldConfig, log_probs: Array, grammar: Grammar) -> TextWorld:
    """The world of the recipe, drawn and calibrated for this reference."""
    spec = DrawnWorldSpec(settings.seed, config.beta, config.reward_max, config.dual.cost_max, family=settings.family)
    return build_drawn_world(spec, log_probs, grammar)


def _demand_fit(config: Config, family: DrawnFamilyConfig, grammar: Grammar) -> None:
    """Answers end within `max_tokens`. A limit on a rate needs a run that estimates rates, at the same level."""
    longest = sum(max(map(len, phrases)) for phrases in grammar.phrase_ids)
    if not isinstance(config.rollout, TabularRollout) and longest > config.rollout.max_tokens:
        raise UserError(
            f"the world's longest answer has {longest} tokens and rollout.max_tokens={config.rollout.max_tokens} would "
            f"cut it off; set rollout.max_tokens={longest}"
        )
    if not labelled_by_feedback(config.stated):
        return  # the recipe's limits take the place of the family's own
    rate, at_most = isinstance(family.limit, RateLimitConfig), config.thresholds["cost"]
    if rate != (config.signal == "unsafe_rate"):
        line = "limits.cost={rate: {world: cost}, at_most: 5 %, labels_each: 32, learned_from: comparisons}"
        setting = line if rate else "world.family.limit.kind=rate"
        raise UserError(
            f"world.family.limit is about a {family.limit.kind}, the run's estimates are not; set {setting}"
        )
    if isinstance(family.limit, RateLimitConfig) and at_most != family.limit.at_most:
        raise UserError(
            f"world.family.limit.at_most={family.limit.at_most} and limits.cost.at_most={at_most:g} are one limit; give"
            " both the same number"
        )


def _reference_log_probs(folder: Path, grammar: Grammar, temperature: float) -> Array:
    """log pi_ref of every answer: kept with a cached reference at temperature 1, else made here. -> [X, Y]"""
    if temperature == 1.0 and (folder / SCORES).is_file():
        return answer_log_probs(folder)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder).float().eval()
    divide_logits(model, temperature)
    return score_answers(model, grammar)


class _Tables:
    """version -> probabilities of all outcomes [X, Y + 1]; the last few are kept, since a round asks for two."""

    def __init__(self, grammar: Grammar, reference_folder: Path, store: ArtifactStore, temperature: float) -> None:
        self._grammar, self._folder, self._store = grammar, reference_folder, store
        self._temperature = temperature
        self._recent_tables: dict[str, Array] = {}
        self._model: object | None = None

    def __call__(self, policy: PolicyVersion) -> Array:
        if policy.sha256 not in self._recent_tables:
            for old in list(self._recent_tables)[:-4]:
                del self._recent_tables[old]
            self._recent_tables[policy.sha256] = with_rest(self._score(policy))
        return self._recent_tables[policy.sha256]

    def _score(self, policy: PolicyVersion) -> Array:
        from transformers import AutoConfig, LlamaForCausalLM

        if self._model is None:
            fresh = LlamaForCausalLM(AutoConfig.from_pretrained(self._folder)).float().eval()
            divide_logits(fresh, self._temperature)
            self._model = fresh
        model: LlamaForCausalLM = self._model  # type: ignore[assignment]
        model.load_state_dict(self._store.read_torch(policy.path, policy.sha256))
        return score_answers(model, self._grammar)
