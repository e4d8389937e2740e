"""The sections of a recipe, and what follows from them together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from pddpo_ray.config.former import data as former_data
from pddpo_ray.config.former import settings as former_settings
from pddpo_ray.config.registered import Named, SettingsOf
from pddpo_ray.config.sections.certificate import CertificateConfig
from pddpo_ray.config.sections.cluster import Cluster, InProcess
from pddpo_ray.config.sections.data import DataConfig
from pddpo_ray.config.sections.dual import DualConfig
from pddpo_ray.config.sections.explore import ExploreConfig
from pddpo_ray.config.sections.feedback import (
    Feedback,
    FeedbackCommon,
    FeedbackKind,
    LateLabels,
    MixedFeedback,
    PeopleFeedback,
    QueueConfig,
    ScoredFeedback,
    WorldFeedback,
)
from pddpo_ray.config.sections.judge import JudgeConfig
from pddpo_ray.config.sections.method import Method
from pddpo_ray.config.sections.model import ModelConfig, PolicyConfig
from pddpo_ray.config.sections.offline import OfflineConfig
from pddpo_ray.config.sections.production import ProductionConfig
from pddpo_ray.config.sections.prompts import PromptSetConfig
from pddpo_ray.config.sections.report import ReportConfig
from pddpo_ray.config.sections.rollout import Rollout, VllmRollout
from pddpo_ray.config.sections.scorecard import ScorecardConfig
from pddpo_ray.config.sections.scorers import ScorerTrainingConfig
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.config.sections.trainer import TrainerConfig
from pddpo_ray.config.sections.world import TextWorldConfig, World
from pddpo_ray.errors import UserError
from pddpo_ray.limits import former
from pddpo_ray.limits.of_recipe import by_world, labelled_by_feedback, stated_of
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import FEEDBACK, KINDS, StatedLimit, stated_reward
from pddpo_ray.registry import SHIPPED, checked, load
from pddpo_ray.theory.multipliers.cost_stage import SKIP_SHARE

if TYPE_CHECKING:
    from pddpo_ray.theory.estimates.prompt_sets import PromptSets

Policies = Literal["language models", "tables", "log-linear"]
"""What the policies of a run are."""


def _shipped_methods(fits: Callable[[Method], bool]) -> tuple[str, ...]:
    """Names of the shipped methods that fit, for messages."""
    return tuple(name for name in SHIPPED["methods"] if fits(load("methods", name, Method)))


STATED_LIMITS = _shipped_methods(lambda method: method.stated)
"""Shipped methods that hold limits of every kind; the others hold one limit, from labels of single answers."""
SIGNALS: Mapping[str, Literal["logit_labels", "unsafe_rate", "cost_model"]] = {
    "logit": "logit_labels", "rate": "unsafe_rate", "mean": "cost_model",
}  # fmt: skip
"""What labels of single answers estimate, by the kind of limit."""
PAPERS_COST: dict[str, Any] = {"logit": {"world": "cost"}, "at_most": 0.0, "labels_each": 32}
"""The limit of a recipe that states none."""


class Sections(Strict):
    """The sections of a recipe and what follows from them."""

    about: str = ""
    """One line for `pddpo recipes`."""
    needs: dict[str, str] = Field({})
    """Settings that you must give to run the recipe, by key, with what to write there."""
    algorithm: Annotated[str, Named("methods")]
    """The method that runs."""
    seed: int = Field(0, ge=0)
    """Seed of all draws of the run."""
    rounds: int = Field(16, ge=1)
    """K. Theory steps depend on it: it is fixed in advance."""
    beta: float = Field(0.1, gt=0)
    """Weight of the KL divergence from the reference, the same in both stages."""
    reward_max: float = Field(2.0, gt=0)
    """R: rewards lie in [-R, R]."""
    data: DataConfig | None = None
    """Your files of pairs and prompts."""
    world: World = None
    """A world whose truth is known, in place of `data`."""
    prompts: dict[str, PromptSetConfig] = Field({})
    """Sets of prompts with their shares, by name, for limits to name; empty: all prompts of the world alike."""
    production: ProductionConfig = ProductionConfig()
    """How much user traffic of the run's endpoint is used for training. Default: none."""
    limits: dict[str, dict[str, Any]] = Field({"cost": PAPERS_COST})
    """What must hold, by name (docs/limits.md)."""
    reward: dict[str, Any] = Field({})
    """What is helpful, computed for each answer (docs/limits.md), or `pairs`, files of comparisons; empty: comparisons
    labelled as `feedback` says."""
    judge: JudgeConfig = JudgeConfig()
    people: QueueConfig = QueueConfig()
    """How people are asked, for `feedback` and for limits."""
    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    trainer: TrainerConfig = TrainerConfig()
    rollout: Rollout = VllmRollout()
    feedback: Feedback = WorldFeedback()
    dual: DualConfig = DualConfig()
    explore: ExploreConfig = ExploreConfig()
    offline: OfflineConfig = OfflineConfig()
    method: Annotated[dict[str, Any], SettingsOf("methods")] = Field({})
    """Settings of the algorithm, checked by its own class."""
    scorers: ScorerTrainingConfig = ScorerTrainingConfig()
    scorecard: ScorecardConfig = ScorecardConfig()
    certificate: CertificateConfig = CertificateConfig()
    cluster: Cluster = InProcess()
    journal: str | None = None
    """Database URL; null: `journal.sqlite` in the run folder."""
    report: ReportConfig = ReportConfig()

    @classmethod
    def of_run(cls, recipe: Mapping[str, Any]) -> Self:
        """The recipe that the journal of a run has, which may be one of an earlier version. Raises UserError for a run
        on the one text world that came before families."""
        for earlier in (former, former_data, former_settings):
            recipe = earlier.in_todays_keys(recipe)
        world = recipe.get("world") or {}
        if world.get("kind") == "text" and (world.get("family") or {}).get("kind") != "drawn":
            raise UserError("the run is on the first text world, which this version has not: use pddpo-ray 0.2.0")
        return cls.model_validate(recipe)

    @property
    def pairs_per_round(self) -> int:
        """N_on: new pairs of an online round, each labelled for helpfulness and for harm."""
        pairs = self.explore.prompts * self.explore.picks if self.online else 0
        return pairs if self.explore.keep is None else min(pairs, self.explore.keep)

    @property
    def pairs_asked(self) -> int:
        """Pairs per round that are not left to a model."""
        if isinstance(self.feedback, MixedFeedback):
            return min(self.pairs_per_round, self.feedback.pairs_unsure + self.feedback.pairs_random)
        return self.pairs_per_round

    @property
    def people_each(self) -> int:
        """Most people that one question is for; 0: the run asks nobody."""
        return max(
            [
                int(isinstance(self.feedback, PeopleFeedback | MixedFeedback)),
                *(limit.people_each for limit in self.stated),
            ]
        )

    @property
    def labels(self) -> FeedbackKind:
        """Who gives the run's labels, one that ships or one of an installed package."""
        return load("feedback", self.feedback.kind, FeedbackKind)

    @property
    def rounds_late(self) -> int:
        """How many rounds late labels may be."""
        return self.feedback.rounds_late if isinstance(self.feedback, LateLabels) else 0

    @property
    def traits(self) -> Method:
        """What its method is, one that ships or one of an installed package."""
        return load("methods", self.algorithm, Method)

    @property
    def method_settings(self) -> BaseModel | None:
        """`method` as the algorithm's own class; None: it has none."""
        return checked("methods", self.algorithm, self.method, "method")

    @property
    def online(self) -> bool:
        """Whether rounds collect new preferences."""
        return self.traits.online

    @property
    def policies(self) -> Policies:
        """What the policies of the run are: a table's world has tables, a log-linear learner weights of features."""
        if self.world is None:
            return "language models"
        if not isinstance(self.world, TextWorldConfig):
            return "tables"
        return "log-linear" if self.world.learner == "loglinear" else "language models"

    @property
    def _place(self) -> str:
        """Where its prompts come from, in messages."""
        return "data" if self.world is None else f"world.kind {self.world.kind}"

    @property
    def template(self) -> str:
        """Name of what turns messages into text; worlds made here have none of their own."""
        return "tokenizer-or-plain" if self.data is None else self.data.template

    @property
    def scorecard_prompts(self) -> int:
        """Prompts of the scorecard; 0: there is none."""
        prompts = self.scorecard.prompts
        return (0 if self.data is None else 24) if prompts is None else prompts

    @property
    def stated(self) -> tuple[StatedLimit, ...]:
        """The limits of `limits:`, in order; those on comparisons first, as their stages come first."""
        recipe = {"limits": self.limits, "prompts": self.prompts, "dual": {"cost_max": self.dual.cost_max}}
        limits = stated_of(recipe)
        if not self._feedback_labels(limits):
            return limits
        sources = [replace(limit.source, kind=FEEDBACK, labeller=limit.source.kind) for limit in limits]
        return tuple(replace(limit, source=source) for limit, source in zip(limits, sources, strict=True))

    def _feedback_labels(self, limits: Sequence[StatedLimit]) -> bool:
        """Whether `feedback` labels single answers for these limits, and comparisons teach them: the paper's
        cost, a rate or a cost model's mean. Other limits are measured on two answers to a prompt by their sources."""
        feedback = self.feedback.kind
        if self.reward:
            return False
        several = self.traits.several and self.policies == "tables" and feedback == "world"
        names = [limit.limit.name for limit in limits]
        kinds = {limit.limit.quantity.kind for limit in limits}
        by_comparisons = not self.traits.stated
        return (
            names[:1] == ["cost"]
            and names == [limit.compared_as for limit in limits]
            and all(limit.labelled_by(feedback, by_comparisons=by_comparisons) for limit in limits)
            and (len(limits) == 1 or (several and len(kinds) == 1))
        )

    @property
    def labels_each(self) -> int:
        """M: the most labels that a limit asks for of one answer."""
        return max(limit.asking.labels_each or 1 for limit in self.stated)

    @property
    def signal(self) -> Literal["logit_labels", "unsafe_rate", "cost_model"]:
        """What labels of single answers estimate."""
        first = self.stated[0]
        return SIGNALS[first.limit.quantity.kind] if first.labelled else "logit_labels"

    @property
    def computed_reward(self) -> StatedLimit | None:
        """The reward where a source computes it (`limits.reading.stated_reward`); None: comparisons teach it."""
        return stated_reward(self.reward, "recipe", self.reward_max) if self.reward else None

    @property
    def compares(self) -> bool:
        """Whether a stage learns from comparisons, so that somebody is asked for them."""
        return not self.reward or any(limit.limit.quantity.kind == "logit" for limit in self.stated)

    @property
    def asks_costs(self) -> bool:
        """Whether feedback is asked which answer is costlier, or for a cost; other limits have their own sources."""
        limits_ask = any(limit.by_comparisons or limit.source.kind == "model" for limit in self.stated)
        return limits_ask or isinstance(self.feedback, MixedFeedback)

    @property
    def score_models(self) -> ScoredFeedback | None:
        """The reward and cost model that label, alone or beside people."""
        feedback = self.feedback
        if isinstance(feedback, MixedFeedback) and feedback.model == "world":
            return None
        return feedback if isinstance(feedback, ScoredFeedback) else None

    @property
    def asked_models(self) -> tuple[Literal["reward", "cost"], ...]:
        """Which of the two are asked for a label. The other is not needed: it is neither loaded nor trained."""
        if self.score_models is None or not self.compares:
            return ()
        return ("reward", "cost") if self.asks_costs else ("reward",)

    @property
    def trained_scorers(self) -> tuple[Literal["reward", "cost"], ...]:
        """Models that are asked and that the recipe does not name: the run trains them."""
        models = self.score_models
        return tuple(kind for kind in self.asked_models if getattr(models, kind) is None)

    @property
    def typed_limits(self) -> tuple[Limit, ...]:
        """Every limit of the run with its quantity."""
        return tuple(limit.limit for limit in self.stated)

    @property
    def prompt_sets(self) -> PromptSets | None:
        """The sets of `prompts:` over a world's prompts by number; None: all prompts alike. Raises ValueError.

        Of sets in files only the shares are known here.
        """
        if not self.prompts:
            return None
        # imported here: the command line's help needs no numpy
        from pddpo_ray.theory.estimates.prompt_sets import prompt_sets

        lists: dict[str, list[Any]] = {name: prompt_set.indices or [name] for name, prompt_set in self.prompts.items()}
        return prompt_sets(lists, {name: prompt_set.share for name, prompt_set in self.prompts.items()})

    @property
    def compared(self) -> tuple[str, ...]:
        """The costs under which pairs are compared, the paper's first."""
        costs = [limit.compared_as for limit in self.stated if limit.by_comparisons]
        return tuple(dict.fromkeys(["cost", *costs]))

    @property
    def thresholds(self) -> dict[str, float]:
        """d of every limit as a cost, by name and in order."""
        return {limit.limit.name: limit.limit.cost_limit for limit in self.stated}

    @property
    def duals(self) -> dict[str, DualConfig]:
        """How each limit's multiplier moves, by name: its own settings over those of `dual`."""
        return {limit.limit.name: self.dual.of_limit(limit.where, limit.dual) for limit in self.stated}

    @property
    def deltas(self) -> dict[str, float]:
        """1 - confidence of every limit, by name: the probability of a false certificate that its candidates share."""
        return {limit.limit.name: round(1.0 - limit.limit.confidence, 12) for limit in self.stated}

    @property
    def skip_below(self) -> float:
        """Multiplier at or below which the cost fit is skipped."""
        return SKIP_SHARE * self.beta if self.dual.skip_below is None else self.dual.skip_below

    def digest(self) -> str:
        """Hash of what decides the numbers. Two runs with one digest compute the same, wherever they run."""
        return hashlib.sha256(json.dumps(self.fixed_settings(), sort_keys=True).encode()).hexdigest()

    def fixed_settings(self) -> dict[str, Any]:
        """What a resumed run must share and the digest covers: all but where it runs and what it shows."""
        tree = self.model_dump(mode="json")
        for key in ("about", "needs", "cluster", "journal", "people", "report"):
            del tree[key]
        for key in ("prompts", "limits", "reward"):
            if not tree[key]:
                del tree[key]
        # Runs from before these sections are runs with their defaults.
        if self.policy == PolicyConfig():
            del tree["policy"]
        for key in ("certify", "candidates", "draws"):
            del tree["certificate"][key]
        if tree["certificate"] == CertificateConfig().model_dump(exclude={"certify", "candidates", "draws"}):
            del tree["certificate"]
        if self.production == ProductionConfig():
            del tree["production"]
        if self.dual.margin == 0.0:
            del tree["dual"]["margin"]
        if self.scorecard == ScorecardConfig():
            del tree["scorecard"]
        for key in ("at_chance", "clip_share"):
            del tree["scorers"][key]
        for key in ("parameters", "calibration"):
            if getattr(self.scorers, key) == ScorerTrainingConfig.model_fields[key].default:
                del tree["scorers"][key]
        tree = {key: value for key, value in tree.items() if key not in ("data", "world") or value is not None}
        for section in ("data", "world"):
            tree.get(section, {}).pop("cache", None)
        for key in ("columns", "ignore"):
            if not tree.get("data", {}).get(key):
                tree.get("data", {}).pop(key, None)
        for holder, key in ((tree["explore"], "settings"), (tree, "method")):
            if not holder[key]:
                del holder[key]
        if self.policies != "log-linear":
            for key in ("learner", "loglinear"):
                tree.get("world", {}).pop(key, None)
        for key in ("workers", "threads", "micro_pairs", "activation_gib", "max_failures", "deadline_s"):
            del tree["trainer"][key]
        for key in ("engines", "threads", "tensor_parallel", "deadline_s", "kv_cache_gib", "gpu_memory", "delivery"):
            tree["rollout"].pop(key, None)
        if not self.rounds_late:
            tree["feedback"].pop("rounds_late", None)
        tree["feedback"].pop("gpus", None)
        for key in ("endpoint", "key_env", "workers", "timeout", "tries"):
            tree["judge"].pop(key)
        if self.judge == JudgeConfig():
            del tree["judge"]
        return tree

    def labelled_by_world(self) -> Self:
        """The same recipe with a world's labels in place of the feedback's, or of a model's scores."""
        truth = WorldFeedback(**self.feedback.model_dump(include=set(FeedbackCommon.model_fields)))
        limits, each = self.limits, self.labels_each
        if labelled_by_feedback(self.stated):
            kind = "rate" if self.signal == "unsafe_rate" else "logit"
            each = PAPERS_COST["labels_each"] if self.signal == "cost_model" else each
            settings = {name: {key: limit[key] for key in limit if key not in KINDS} for name, limit in limits.items()}
            limits = {name: {kind: {"world": name}, **limit, "labels_each": each} for name, limit in settings.items()}
        limits = {name: by_world(limit) for name, limit in limits.items()}
        return self.model_copy(update={"feedback": truth, "limits": limits})

    def in_one_process(self) -> Self:
        """The same recipe with one rank and one engine in this process."""
        trainer = self.trainer.model_copy(update={"workers": 1, "engine": "torch"})
        rollout = self.rollout.model_copy(update={"engines": 1})
        return self.model_copy(update={"cluster": InProcess(), "trainer": trainer, "rollout": rollout})
