"""The backends of a run's parts in one record, filled in this process or with Ray groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pddpo_ray.contracts import Labeller, Measure, RolloutEngine, TrainerBackend
from pddpo_ray.parts.dual_step import DualOwner
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.measuring import SourceMeasures
from pddpo_ray.parts.rewards import ComputedReward
from pddpo_ray.records import Decoding, LabelledPair, PolicyVersion, Prompt, Response, TextsOfFiles
from pddpo_ray.scoring.interface import AnswerScorer
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.recall import Recall
from pddpo_ray.theory.estimates.prompt_sets import PromptSets
from pddpo_ray.theory.multipliers.dual import DualState
from pddpo_ray.worlds.exact_evaluation import WorldView


@dataclass(frozen=True)
class Backends(TextsOfFiles):
    """Everything that does the work of one run. `close` releases it all."""

    store: ArtifactStore
    trainer: TrainerBackend
    engines: Sequence[RolloutEngine]
    labeller: Labeller
    """Compares helpfulness, and labels the first cost."""
    prompts: Sequence[Prompt]
    reference: PolicyVersion
    baseline: tuple[PolicyVersion, Decoding] | Callable[[int], dict[str, list[Response]]]
    """The fixed comparator: which version, and how it is sampled; or a number of its answers per prompt id."""
    canaries: Sequence[Response]
    """Texts whose log-probabilities verify a delivery."""
    answers: Sequence[Response] = ()
    """Every answer to every prompt, prompt by prompt; empty where they cannot be listed."""
    prior: Sequence[float] | None = None
    """Probability of each prompt; None: all alike."""
    prompt_sets: PromptSets | None = None
    """The recipe's sets, over the prompts' positions; None: all prompts are one."""
    tokenizer: str = ""
    """Fingerprint of the trainer's tokenizer; empty in a table."""
    offline: Callable[[int], list[LabelledPair]] | None = None
    """Pairs from before the first round, by seed; None: drawn from the reference's nucleus and labelled."""
    features: Literal["hidden", "one-hot", "linear"] = "hidden"
    """What the trainer's features are: hidden states, which are whitened before use; the cells of a table; or those in
    which the learner's scores are linear, on the scale of its prior."""
    world: WorldView | None = None
    """The truth, for evaluation alone."""
    own_scorer: Callable[[str, Callable[[], AnswerScorer]], AnswerScorer] | None = None
    """Starts a named reward or cost model somewhere else; None: it lives in this process."""
    further_labellers: Mapping[str, Labeller] = field(default_factory=dict)
    """Who labels each further cost, by its constraint's name."""
    own_dual: Callable[[DualState], DualOwner] | None = None
    """Makes the multipliers' owner somewhere else; None: it is in this process."""
    held_limits: Sequence[HeldLimit] = ()
    """The recipe's stated limits, comparisons first."""
    measure: Measure = field(default_factory=lambda: SourceMeasures([], [], [], 1.0))
    """Measures answers under the limits that have their own sources."""
    reward: ComputedReward | None = None
    """The reward where a source computes it; None: comparisons teach it."""
    measured_by: Mapping[str, str] = field(default_factory=dict)
    """Version of each limit's source, by the limit's name, and of the reward's; a resumed run needs the same."""
    recall: Recall | None = None
    """Finds results of other runs on the same store; None: everything is computed."""
    closers: Sequence[Callable[[], None]] = field(default_factory=tuple)

    def close(self) -> None:
        """Releases engines, trainer and what else was started, in that order."""
        for engine in self.engines:
            engine.close()
        self.trainer.close()
        for closer in self.closers:
            closer()


def sets_of_prompts(backends: Backends) -> dict[str, list[str]]:
    """Names of each prompt's sets, category, and group in the world's family, by its id; {} where there are none."""
    set_names = {prompt: list(names) for prompt, names in backends.certified_sets.items() if names}
    sets = backends.prompt_sets
    if sets is not None:
        for column, position in enumerate(sets.prompts):
            names = [name for name, row in zip(sets.names, sets.chances, strict=True) if row[column] > 0]
            set_names[backends.prompts[int(str(position))].id] = names
    for prompt in (*backends.prompts, *backends.certification):
        category = backends.categories.get(prompt.id)
        if category is not None and category not in set_names.setdefault(prompt.id, []):
            set_names[prompt.id].append(category)
    if backends.world is not None and backends.world.groups is not None:
        for prompt, group in zip(backends.prompts, backends.world.groups, strict=True):
            set_names.setdefault(prompt.id, []).append(f"group {group}")
    return set_names
