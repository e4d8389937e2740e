"""A resolved recipe, and what does not go together in one."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from pddpo_ray.config.former import data as former_data
from pddpo_ray.config.former import settings as former_settings
from pddpo_ray.config.recipe_sections import PAPERS_COST, STATED_LIMITS, Sections
from pddpo_ray.config.sections.cluster import InProcess
from pddpo_ray.config.sections.dual import FixedRule, LogRule, ProjectedRule
from pddpo_ray.config.sections.feedback import (
    JudgeFeedback,
    MixedFeedback,
    ScoredFeedback,
    WorldFeedback,
)
from pddpo_ray.config.sections.judge import NAMELESS
from pddpo_ray.config.sections.model import LoraParameters
from pddpo_ray.config.sections.production import ProductionConfig
from pddpo_ray.config.sections.rollout import TabularRollout, VllmRollout
from pddpo_ray.config.sections.world import InstalledWorld
from pddpo_ray.limits import former
from pddpo_ray.limits.audits import AUDITED
from pddpo_ray.limits.former import flow
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.limits.reading import COMPARISONS, LABELLERS, PAIRS, REWARD, StatedLimit
from pddpo_ray.registry import UnknownName, code_of, resolved


class Config(Sections):
    """A resolved recipe: all that decides what a run computes, and where."""

    @model_validator(mode="before")
    @classmethod
    def settings_are_todays(cls, tree: Any) -> Any:
        """Refuses keys of earlier versions, with the line to write."""
        for earlier in (former, former_data, former_settings) if isinstance(tree, dict) else ():
            if problem := earlier.refusal(tree):
                raise ValueError(problem)
        return tree

    @model_validator(mode="before")
    @classmethod
    def data_or_world(cls, tree: Any) -> Any:
        """A run learns from the user's files or in a world."""
        if not isinstance(tree, dict):
            return tree
        if (tree.get("data") is None) == (tree.get("world") is None):
            state = "has neither `data` nor `world`" if tree.get("data") is None else "has `data` and `world`"
            raise ValueError(
                f"the recipe {state}: name your files, e.g. data: {{helpful: [helpful.jsonl]}}, or a world of the"
                " laboratory, e.g. world: {kind: text}"
            )
        return tree

    @model_validator(mode="before")
    @classmethod
    def pairs_are_those_of_the_files(cls, tree: Any) -> Any:
        """`reward: {pairs: FILES}` is `data.helpful`."""
        reward = tree.get(REWARD) if isinstance(tree, dict) else None
        if not isinstance(reward, dict) or PAIRS not in reward:
            return tree
        if len(reward) > 1:
            raise ValueError(f"reward: `pairs` stand alone, without {', '.join(sorted(set(reward) - {PAIRS}))}")
        data = tree.get("data")
        if not isinstance(data, dict):
            raise ValueError("reward.pairs are files of real text (`data`); a world compares its own answers")
        if data.get("helpful"):
            raise ValueError("reward.pairs and data.helpful are the same files; name them once")
        return {**tree, REWARD: {}, "data": {**data, "helpful": reward[PAIRS]}}

    @model_validator(mode="before")
    @classmethod
    def settings_are_the_methods(cls, tree: Any) -> Any:
        """The algorithm's own class checks `method` and fills in what it leaves out."""
        if not isinstance(tree, dict) or not isinstance(tree.get("algorithm"), str):
            return tree
        settings = tree.get("method", {})
        if not isinstance(settings, dict):
            return tree
        try:
            return {**tree, "method": resolved("methods", tree["algorithm"], settings, "method")}
        except UnknownName:
            return tree  # the key `algorithm` refuses it

    @model_validator(mode="after")
    def parts_fit_together(self) -> Self:
        tabular = self.policies == "tables"
        summed = self.policies != "language models"
        if summed != isinstance(self.rollout, TabularRollout):
            engine_names = "tabular" if summed else "vllm or transformers"
            learner = "world.learner loglinear" if self.policies == "log-linear" else self._place
            raise ValueError(f"{learner} needs rollout.engine {engine_names}, not {self.rollout.engine}")
        if self.policies == "log-linear":
            self._no_network_is_needed()
        if tabular and self.policy.temperature != 1.0:
            raise ValueError(
                f"policy.temperature={self.policy.temperature} divides the logits of a language model; a table's policy"
                " is the table itself: leave it at 1.0"
            )
        if tabular and (self.score_models is not None or not self.labels.of_tables):
            raise ValueError(f"feedback.kind={self.feedback.kind} reads texts; a table has none, use world or people")
        if isinstance(self.cluster, InProcess):
            self._one_process()
        elif isinstance(self.world, InstalledWorld):
            raise ValueError(f"{self._place} runs in one process: set cluster={{mode: in-process}}")
        elif self.cluster.layout == "time-shared":
            self._one_engine_per_rank()
        self._rule_fits_the_method()
        self._reward_fits()
        self._limits_fit()
        if self.rounds_late:
            self._labels_may_be_late()
        self._certificate_fits()
        self._production_fits()
        self._scorecard_fits()
        if self.model.compile is True and self.trainer.engine != "torch":
            raise ValueError(f"model.compile works with trainer.engine torch, not with {self.trainer.engine}")
        if self.explore.loss == "xpo" and self.algorithm != "o-pd-dpo":
            raise ValueError(f"explore.loss=xpo is a variant of algorithm o-pd-dpo, not of {self.algorithm}")
        if isinstance(self.feedback, JudgeFeedback) and not self.judge.model:
            raise ValueError(f"judge: {NAMELESS}")
        self._something_comes_first()
        if self.data is not None:
            self._somebody_knows()
        if self.explore.information == "fitted" and self.online:
            if self.explore.bonus not in ("elliptical", "thompson") or self.traits.optimistic:
                raise ValueError(
                    "explore.information=fitted is of the design matrix that o-pd-dpo explores by: it needs"
                    f" explore.bonus elliptical or thompson, not {self.explore.bonus} with {self.algorithm}"
                )
            if not labelled_by_feedback(self.stated):
                raise ValueError("explore.information=fitted is of comparisons; measured limits and rewards have 1/4")
        if self.explore.bonus == "theorem" and self.online and not tabular:
            raise ValueError("explore.bonus=theorem lists every answer, as only a table can: use elliptical")
        if self.explore.weights == "exact" and self.rollout.proposal_temperature != 1.0 and self.online:
            raise ValueError(
                "explore.weights=exact needs rollout.proposal_temperature=1.0, not "
                f"{self.rollout.proposal_temperature}: set it, or choose explore.weights=bonus_only"
            )
        if isinstance(self.rollout, VllmRollout) and self.rollout.max_tokens >= self.rollout.max_model_len:
            raise ValueError("rollout.max_tokens must be below rollout.max_model_len, which counts the prompt too")
        return self

    def _no_network_is_needed(self) -> None:
        """Refuses what only a network can do, where weights of features are learned in its place."""
        feedback, without = self.feedback, "with world.learner=loglinear there is none"
        if not isinstance(self.cluster, InProcess):
            raise ValueError("world.learner=loglinear runs in one process: set cluster={mode: in-process}")
        if self.traits.policy_gradient:
            raise ValueError(f"algorithm {self.algorithm} updates a network by policy gradients; {without}")
        if self.explore.loss == "xpo":
            raise ValueError(f"explore.loss=xpo is a term in a network's loss; {without}: use explore.bonus")
        if self.score_models is not None:
            raise ValueError(f"feedback.kind={feedback.kind} scores with networks; {without}: use world or people")

    def _something_comes_first(self) -> None:
        """The first policy learns from the offline pairs, unless its method scores answers of the reference itself, or
        what is measured on them says everything."""
        needed = not self.traits.policy_gradient and (self.world is not None or self.compares)
        if needed and not self.offline.pairs + self.offline.extra:
            raise ValueError(
                f"offline.pairs=0: the first policy of algorithm {self.algorithm} learns from them; give some, e.g."
                " offline.pairs=100"
            )

    def _rule_fits_the_method(self) -> None:
        rules = [dual.rule for dual in self.duals.values()]
        fixed = all(isinstance(rule, FixedRule) for rule in rules)
        if self.traits.multiplier != "moves" and not fixed:
            raise ValueError(f"algorithm {self.algorithm} needs dual.rule.kind=fixed")
        if self.algorithm == "pd-dpo-adalag" and not all(isinstance(rule, LogRule) for rule in rules):
            raise ValueError("algorithm pd-dpo-adalag needs dual.rule.kind=log")
        if self.traits.scored and self.traits.multiplier == "moves" and fixed:
            raise ValueError(
                f"algorithm {self.algorithm} needs a dual.rule that moves the multiplier, e.g. dual.rule.kind=anytime"
            )
        if any(dual.first == 0 and isinstance(dual.rule, ProjectedRule) for dual in self.duals.values()):
            raise ValueError(
                "dual.first=0: the step of dual.rule.kind=projected grows with the first multiplier, which stays 0;"
                " give more, or leave it out"
            )
        check = code_of("methods", self.algorithm, "check")
        if check is not None:
            check(self)
        multipliers = [dual.first for dual in self.duals.values() if isinstance(dual.rule, FixedRule)]
        if None in multipliers and self.traits.multiplier != "none":
            raise ValueError("dual.rule.kind fixed needs dual.first, the multiplier to keep")
        if self.traits.one_round and self.rounds != 1:
            raise ValueError(f"algorithm {self.algorithm} is a single round: rounds={self.rounds} must be 1")
        if self.traits.whole and isinstance(self.model.parameters, LoraParameters):
            raise ValueError(
                f"algorithm {self.algorithm} mixes the weights of two fits, which no adapter of their rank holds: set"
                " model.parameters.kind=full"
            )
        if self.trainer.moments == "carried" and self.trainer.engine != "torch":
            raise ValueError("trainer.moments=carried needs trainer.engine=torch; else write trainer.moments=fresh")
        if self.model.in_nf4 and self.trainer.engine != "torch":
            raise ValueError(
                "model.parameters.quantise=nf4 needs trainer.engine=torch: DeepSpeed moves no weights of 4 bits"
            )

    def _labels_may_be_late(self) -> None:
        if self.algorithm not in ("o-pd-dpo", "pd-dpo"):
            raise ValueError(
                f"feedback.rounds_late: algorithm {self.algorithm} waits for its labels; use o-pd-dpo or pd-dpo"
            )
        for limit in self.stated:
            if limit.source.kind == "people" and limit.asking.answers is not None:
                raise ValueError(
                    f"feedback.rounds_late: {limit.where}: people measure answers of pairs too where `answers` is"
                    " given, and a round waits for those; leave `answers` out"
                )

    def _somebody_knows(self) -> None:
        """Without a world, what it would answer has to be said."""
        from_truth = isinstance(self.feedback, MixedFeedback) and self.feedback.model == "world"
        if self.compares and (from_truth or isinstance(self.feedback, WorldFeedback)):
            raise ValueError("data: files have no truth to label with: set feedback.kind to model, judge or people")
        if self.dual.rho is None and self.dual.upper is None:
            raise ValueError("data: files have no oracle: give dual.rho, half of the multiplier's upper end")

    def _one_engine_per_rank(self) -> None:
        if self.trainer.workers != self.rollout.engines:
            raise ValueError(
                f"cluster.layout=time-shared puts one engine beside each rank: trainer.workers={self.trainer.workers} "
                f"and rollout.engines={self.rollout.engines} must be equal"
            )
        if isinstance(self.rollout, VllmRollout) and self.rollout.tensor_parallel > 1:
            raise ValueError("cluster.layout=time-shared needs rollout.tensor_parallel=1; use cluster.layout=split")

    def _limits_fit(self) -> None:
        """What `limits:` and `prompts:` need of the other sections."""
        if not self.limits:
            raise ValueError(f"limits: state what must hold, e.g. limits: {{cost: {flow(PAPERS_COST)}}}")
        if labelled_by_feedback(self.stated):
            self._labels_suffice()
            return
        kind = self.feedback.kind
        other = "" if kind in LABELLERS else "feedback.kind=world and "
        labeller = flow(dict(LABELLERS.get(kind, LABELLERS["world"])))
        audit = f", audited_by: {flow(dict(AUDITED))}" if kind == "mixed" else ""
        papers = f"{other}limits: {{cost: {{logit: {labeller}, at_most: 0, labels_each: 32{audit}}}}}"
        if not self.traits.stated:
            raise ValueError(
                f"algorithm {self.algorithm} holds one limit, named cost, from labels of single answers by"
                f" `feedback`, e.g. {papers}; other limits need {', '.join(STATED_LIMITS)}"
            )
        if self.policies == "tables" and not isinstance(self.feedback, WorldFeedback | MixedFeedback):
            raise ValueError(
                f"limits on a table are measured by feedback.kind=world; with feedback.kind={kind} it labels the"
                f" paper's cost alone: {papers}"
            )
        for limit in self.stated:
            if self.policies == "tables" and limit.source.kind not in ("world", "people", "reference", "model"):
                raise ValueError(
                    f"{limit.where}: {limit.source} reads texts; a table has none: use"
                    f" {{{limit.limit.quantity.kind}: {{world: NAME}}}}"
                )
            if limit.source.kind == "model" and not (
                limit.audited and self.compares and isinstance(self.feedback, ScoredFeedback)
            ):
                raise ValueError(
                    f"{limit.where}: {{model: cost}} labels the only limit of a run, named cost, which"
                    " comparisons teach, under feedback.kind=model, or measures one that people audit, under"
                    " feedback.kind=mixed or model: state audited_by, take it out"
                    f" (limits.{limit.limit.name}=null) or name another source"
                )
            if limit.learned_from == COMPARISONS and limit.limit.quantity.kind != "logit":
                raise ValueError(
                    f"{limit.where}: comparisons teach a {limit.limit.quantity.kind} where it is the run's only limit,"
                    f" named cost, and feedback.kind={kind} labels it: {labeller}; leave learned_from out"
                )
            if limit.limit.quantity.kind == "mean" and limit.limit.cost_range is None:
                raise ValueError(f"{limit.where}: a mean needs `bounds: [low, high]` in a run, whose steps they scale")
        if self.data is not None and any(limit.source.kind == "world" for limit in self.stated):
            raise ValueError("limits: files have no truth to measure with; name another source")
        if self.prompt_sets is None and any(limit.limit.quantity.over for limit in self.stated):
            raise ValueError("limits: `over` names a prompt set, but the recipe has no `prompts:`")
        real = self.data is not None
        for name, prompt_set in self.prompts.items():
            if (prompt_set.files is None) == real:
                demand = "`files`, as `data` reads them" if real else "`indices`, numbers of its prompts"
                raise ValueError(f"prompts.{name}: {self._place} needs {demand}")
        if self.data is not None and self.prompts and self.data.prompts:
            raise ValueError("data.prompts: the sets under `prompts:` say which prompts a run asks; leave it out")
        for limit in self.stated:
            if limit.asks_people:
                self._people_can_be_asked(limit)
            if self.world is not None and self.world.kind == "text" and limit.limit.quantity.kind == "logit":
                self._comparisons_are_by_cost(limit)
            if limit.limit.quantity.kind == "logit" and limit.limit.quantity.over:
                raise ValueError(f"{limit.where}: a logit limit is over all prompts; leave out `over`")
        drifts = [limit.where for limit in self.stated if limit.limit.quantity.kind == "kl"]
        if len(drifts) > 1:
            raise ValueError(f"{drifts[1]}: a run has one reference, and one limit on the distance to it")

    def _comparisons_are_by_cost(self, limit: StatedLimit) -> None:
        """A logit is learned from comparisons, which a text world has of its first cost alone."""
        if limit.compared_as != "cost":
            raise ValueError(
                f"{limit.where}: comparisons of a text world are by its cost `cost` alone; write"
                f" {{logit: {{world: cost}}}} or {{rate: {{world: {limit.compared_as}}}}}, which is learned from values"
            )

    def _labels_suffice(self) -> None:
        """What limits need that are estimated from labels of single answers."""
        if self.prompts:
            raise ValueError("prompts: no limit names these sets; state one `over` a set, or leave `prompts:` out")
        for limit in self.stated:
            kind, bound = limit.limit.quantity.kind, limit.limit.bound.number
            if limit.asking.labels_each != self.stated[0].asking.labels_each:
                raise ValueError(
                    f"{limit.where}: limits that feedback labels share labels_each; write"
                    f" limits.{limit.limit.name}.labels_each={self.stated[0].asking.labels_each}"
                )
            if kind == "rate" and not 0 < bound < 1:
                raise ValueError(f"{limit.where}.at_most: a rate that comparisons teach lies between 0 and 100 %")
            if kind != "mean" and limit.asking.labels_each is None:
                raise ValueError(f"{limit.where}: say how many labels an answer has, e.g. labels_each: 32")
            if kind == "logit" and not self.traits.scored and bound <= -self.dual.cost_max:
                raise ValueError(
                    f"no policy keeps the limit of {limit.limit.name}, {bound:g}: costs lie in"
                    f" [-{self.dual.cost_max:g}, {self.dual.cost_max:g}] (dual.cost_max);"
                    f" raise limits.{limit.limit.name}.at_most"
                )

    def _people_can_be_asked(self, limit: StatedLimit) -> None:
        """What a limit needs that people measure; an audit's own needs are read with the limit."""
        quantity, source = limit.limit.quantity, limit.source
        if self.policies == "tables" and source.kind != "model":
            raise ValueError(
                f"{limit.where}: people read texts; a table has none: use {{{quantity.kind}: {{world: NAME}}}}"
            )
        if source.kind == "people" and quantity.kind == "logit" and limit.asking.labels_each is None:
            raise ValueError(f"{limit.where}: say how many labels an answer has: {{people: {{labels_each: 20}}}}")

    def _reward_fits(self) -> None:
        """What a computed reward needs of the other sections."""
        reward = self.computed_reward
        if reward is None:
            return
        if not self.traits.stated:
            raise ValueError(
                f"algorithm {self.algorithm} learns the reward from comparisons; a computed `reward:` needs one of"
                f" {', '.join(STATED_LIMITS)}"
            )
        if REWARD in self.limits:
            raise ValueError("limits.reward: the recipe has a computed `reward:`; give this limit another name")
        kind = reward.source.kind
        if self.policies == "tables" and kind != "world":
            raise ValueError(f"reward: {reward.source} reads texts; a table has none, write {{world: reward}}")
        if self.data is not None and kind == "world":
            raise ValueError("reward: files have no reward of their own; name another source")

    def _scorecard_fits(self) -> None:
        if self.scorecard_prompts and self.policies != "language models":
            raise ValueError("scorecard.prompts: a scorecard reads texts of a language model; here policies are exact")
        if self.scorecard.train and not (self.data and self.data.held_out):
            raise ValueError(
                "scorecard.train learns from pairs of real text that no run sees: set data.held_out, e.g. to 0.2, or"
                " name scorers in scorecard.scorers"
            )
        for kind, scorer in self.scorecard.scorers.items():
            own_scorer = getattr(self.score_models, kind, None)
            if own_scorer and own_scorer.path == scorer.path:
                raise ValueError(
                    f"scorecard.scorers.{kind} is the run's own {kind} model ({own_scorer.path}): name one of another"
                    " base or seed, trained on other prompts"
                )

    def _certificate_fits(self) -> None:
        certificate = self.certificate
        if self.data is None:
            if certificate.scope == "population":
                raise ValueError(
                    "certificate.scope=population is about new prompts; a world's prompts are all there are: use set"
                )
            if certificate.prompts:
                raise ValueError("certificate.prompts are files of real text; a world has prompts of its own")
        if certificate.scope == "population" and not certificate.prompts:
            raise ValueError(
                "certificate.scope=population draws each prompt once, before any fit has seen it: name files of them in"
                " certificate.prompts"
            )

        if certificate.mixtures:
            self._rounds_certify()

    def _production_fits(self) -> None:
        production = self.production
        if production == ProductionConfig():
            return
        if self.data is None:
            raise ValueError("production: users' prompts are real text (`data`); a world has its own alone")
        if not self.traits.stated:
            raise ValueError(f"production: {', '.join(STATED_LIMITS)} take users' prompts, not {self.algorithm}")
        if self.prompts:
            raise ValueError("production: users' prompts are in none of the sets of `prompts`; leave one of them out")
        if self.certificate.mixtures:
            raise ValueError(
                "production: the rounds' own draws certify nothing where they hold users' prompts; leave"
                " certificate.mixtures out, and `pddpo certify RUN --policy mixture` draws anew"
            )
        if production.verdicts and not self.compares:
            raise ValueError("production.verdicts make pairs, and no stage of this run learns from comparisons")

    def _rounds_certify(self) -> None:
        """What mixtures need whose rounds' own draws certify them: equally many of each limit in every round."""
        where, mixtures = "certificate.mixtures", self.certificate.mixtures
        if not (self.traits.several or self.traits.stated):
            raise ValueError(f"{where}: algorithm {self.algorithm} has no mixture of rounds that draw for themselves")
        if max(mixtures) > self.rounds:
            raise ValueError(f"{where}: round {max(mixtures)} is after the last one (rounds={self.rounds})")
        for limit in self.stated:
            if limit.unsure:
                raise ValueError(
                    f"{where}: under {limit.where} people see first what the source is least sure of, which is no even"
                    " draw; leave mixtures out, and `pddpo certify RUN --policy mixture` draws anew"
                )
            if limit.asking.answers is not None and limit.asking.answers < self.feedback.responses:
                raise ValueError(
                    f"{where}: {limit.where} measures {limit.asking.answers} of feedback.responses="
                    f"{self.feedback.responses} answers a round; leave `answers` out, or raise it to that"
                )
        if self.prompts and any(limit.limit.quantity.over is None for limit in self.stated):
            each = self.feedback.responses // 2
            for name, prompt_set in self.prompts.items():
                if abs(each * prompt_set.share - round(each * prompt_set.share)) > 1e-9:
                    raise ValueError(
                        f"{where}: of {each} prompts a round (feedback.responses / 2) prompts.{name} has"
                        f" {each * prompt_set.share:g}; choose responses so that every set has a whole number"
                    )

    def _one_process(self) -> None:
        only = (
            ("trainer.workers", self.trainer.workers, 1),
            ("trainer.engine", self.trainer.engine, "torch"),
            ("rollout.engines", self.rollout.engines, 1),
        )
        for key, value, possible in only:
            if value != possible:
                raise ValueError(f"{key}={value} needs cluster.mode=ray; in one process only {possible} works")
