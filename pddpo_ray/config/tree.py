"""What a run is made of: a tree of frozen settings, each explained underneath.

Defaults here are the values of the mathematics; recipes change what their world or model needs. Nothing heavy is
imported, so that `--help` stays instant, and no value that follows from others is a setting: it is a property.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """Unknown keys are refused and values are not converted: a typing mistake is never a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


# --- world -----------------------------------------------------------------------------------------------------------


class SmallModelConfig(Strict):
    """Shape and peak learning rate of a reference that is trained here in place of a downloaded one."""

    hidden: int = Field(64, ge=32, multiple_of=8)
    """Width of the model."""
    layers: int = Field(2, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Attention heads; vLLM on CPU wants at least 32 dimensions per head."""
    intermediate: int = Field(128, ge=32)
    """Width inside the feed-forward blocks."""
    learning_rate: float = Field(4e-3, gt=0)
    """Peak learning rate."""


class TextReferenceConfig(SmallModelConfig):
    """Size and pre-training of the text world's reference model."""

    steps: int = Field(240, ge=1)
    """Optimiser steps of the pre-training."""
    batch: int = Field(64, ge=1)
    """Sentences per step."""
    rare: float = Field(0.012, gt=0, lt=0.1)
    """Intended probability of each rare value: 0.2 to 2 % is where exploration matters and can succeed."""


class TextWorldConfig(Strict):
    """English sentences from a grammar, with a known reward and cost for every answer."""

    kind: Literal["text"] = "text"
    """Tag of this variant."""
    seed: int = Field(0, ge=0)
    """Draws the world: its effects, its calibration and its reference. `seed` of the run is another one."""
    reference: TextReferenceConfig = TextReferenceConfig()
    """The model that is trained in place of a downloaded one."""
    cache: str | None = None
    """Folder of trained references; null: `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""


class TabularWorldConfig(Strict):
    """Finite prompts and answers; policies are tables and everything is exact."""

    kind: Literal["tabular"] = "tabular"
    """Tag of this variant."""
    name: Literal["trap", "two-limits", "random", "rare"] = "trap"
    """`trap`: the good answers are in no offline pair. `two-limits`: the same with a second cost, `privacy`. `random`:
    drawn from `seed`. `rare`: so too, and what no offline pair holds is rare under the reference."""
    path: str | None = None
    """A world file (JSON, the format of `pddpo verify --world`) in place of a named world."""
    seed: int = Field(0, ge=0)
    """Seed of a random world and of the offline pairs."""


class ScratchReferenceConfig(SmallModelConfig):
    """Size and training of a reference that is made from the world's own texts."""

    vocabulary: int = Field(1024, ge=300)
    """Tokens of its byte-level tokenizer."""
    context: int = Field(192, ge=16)
    """Longest prompt and answer together, in tokens."""
    steps: int = Field(200, ge=1)
    """Optimiser steps."""
    batch: int = Field(16, ge=1)
    """Texts per step."""


class NoWorldConfig(Strict):
    """Real text from files, in any format of `pddpo data`; nobody knows the truth about it."""

    kind: Literal["none"] = "none"
    """Tag of this variant."""
    helpful: list[str] = []
    """Files of pairs whose `chosen` is the more helpful answer; both lists empty: the 200 HH-RLHF pairs that ship."""
    harmless: list[str] = []
    """Files of pairs whose `chosen` is the less harmful answer. A row that states both labels gives both, whichever
    list names it."""
    prompts: list[str] = []
    """Files of prompts for the rounds; empty: those of the pairs."""
    prompt_count: int = Field(48, ge=1)
    """At most so many of the prompts, drawn by seed."""
    template: str = "hh"
    """From turns to text: plain, hh, safe-rlhf, alpaca, chatml, or tokenizer (with `model.reference`)."""
    prompt_tokens: int = Field(96, ge=4)
    """Longer prompts are left out."""
    answer_tokens: int = Field(96, ge=2)
    """Pairs with a longer answer are left out."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of the pairs' prompts that no run asks or learns from: `pddpo compare` judges the policies by them."""
    seed: int = Field(0, ge=0)
    """Draws prompts and pairs, the held-out ones too, and initialises the reference."""
    reference: ScratchReferenceConfig = ScratchReferenceConfig()
    """The model that is trained on these texts where `model.reference` names none."""
    cache: str | None = None
    """Folder of trained references; null: `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""


World = Annotated[TextWorldConfig | TabularWorldConfig | NoWorldConfig, Field(discriminator="kind")]


# --- model and trainer -----------------------------------------------------------------------------------------------


class FullParameters(Strict):
    """Every weight is trained; a version is a whole model."""

    kind: Literal["full"] = "full"
    """Tag of this variant."""


class LoraParameters(Strict):
    """Reference, reward policy and every policy are adapters on one shared base (reference: adapters off)."""

    kind: Literal["lora"] = "lora"
    """Tag of this variant."""
    rank: int = Field(16, ge=1)
    """Rank of the update."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout in front of the adapters."""


class ModelConfig(Strict):
    """The language model that is aligned."""

    reference: str | None = None
    """Folder in Hugging Face layout with weights and tokenizer; null: the world's own reference."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights while computing. Losses and log-probabilities are float32 in any case."""
    tf32: bool = False
    """The trainer multiplies float32 matrices in TF32 on CUDA: faster, with 10 bits of mantissa in place of 23."""
    compile: bool = False
    """The trainer's layers are compiled by torch when they are first used: a minute that hundreds of steps pay back."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where training and inference run; auto: CUDA when there is a device."""
    parameters: Annotated[FullParameters | LoraParameters, Field(discriminator="kind")] = FullParameters()
    """What is trained."""


class FitConfig(Strict):
    """Optimiser of one fit (AdamW)."""

    steps: int = Field(30, ge=1)
    """Optimiser steps."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the rows of the fit in place of `steps`; null: `steps` counts."""
    learning_rate: float = Field(5e-4, gt=0)
    """Peak learning rate; the cost stage multiplies it by min(1, multiplier)."""
    batch_pairs: int = Field(32, ge=1)
    """Pairs per step, over all workers."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """What the learning rate does afterwards."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""


class SupportConfig(Strict):
    """Keeps a policy on the reference's tokens without touching its choices among them.

    The term is the mean over response tokens of -log of the mass on tokens to which the reference gives at least
    `floor`. Small models need it against likelihood displacement; recipes that follow the paper leave it out.
    """

    weight: float = Field(0.5, ge=0)
    """Weight of the term; 0 switches it off."""
    floor: float = Field(1e-3, gt=0, lt=1)
    """Smallest probability under the reference that counts as supported."""


class UnionRefit(Strict):
    """All pairs in every round; with `epochs` in place of `steps` the work of a run grows with its square."""

    kind: Literal["union"] = "union"
    """Tag of this variant."""
    cold: bool = False
    """Every fit starts from its base, with the settings of a first fit."""


class RowBudget(Strict):
    """The new pairs and a fixed number of older ones, weighted by what they stand for."""

    rows: int = Field(20_000, ge=0)
    """Older pairs of a fit, drawn evenly by seed ..."""
    per_new: float = Field(2.0, ge=0)
    """... and so many more for each new one."""


class BudgetRefit(RowBudget):
    """The row budget in every round."""

    kind: Literal["budget"] = "budget"
    """Tag of this variant."""


class GeometricRefit(RowBudget):
    """All pairs in rounds 1, factor, factor^2, ..., the budget in between."""

    kind: Literal["geometric"] = "geometric"
    """Tag of this variant."""
    factor: float = Field(2.0, gt=1)
    """Ratio between those rounds."""


class DeterminantRefit(RowBudget):
    """All pairs when exploration has learned enough since they were last seen, the budget in between."""

    kind: Literal["determinant"] = "determinant"
    """Tag of this variant."""
    growth: float = Field(1.0, gt=0)
    """The design matrix's determinant must have grown by 1 + growth."""


Refit = Annotated[UnionRefit | BudgetRefit | GeometricRefit | DeterminantRefit, Field(discriminator="kind")]


class TrainerConfig(Strict):
    """How policies are fitted."""

    engine: Literal["torch", "zero1", "zero2", "zero3"] = "torch"
    """Plain torch, or DeepSpeed ZeRO at that stage (needs `cluster.mode: ray`)."""
    workers: int = Field(1, ge=1)
    """Ranks of the worker group."""
    threads: int = Field(1, ge=1)
    """CPU threads of each rank."""
    micro_pairs: int | None = Field(None, ge=1)
    """Pairs per forward pass of a rank; null: its whole share. Changes memory, not results."""
    activation_gib: float | None = Field(None, gt=0)
    """Budget for the activations of one forward and backward pass of a rank, in GiB. A share of a batch that needs more
    is cut into passes; a single pair that needs more is computed in part a second time. Changes memory, not results."""
    reward: FitConfig = FitConfig()
    """The reward stage (standard DPO against the reference)."""
    cost: FitConfig = FitConfig()
    """The cost stage (Lagrangian DPO against the reward policy)."""
    first_reward: FitConfig = FitConfig(steps=200)
    """The reward stage of round 1, which starts from the reference."""
    first_cost: FitConfig = FitConfig(steps=60)
    """The cost stage of round 1. Long first cost fits push a small model off its language: keep them gentle."""
    warm_start: Literal["carried", "previous", "reward"] = "carried"
    """Start of a cost fit after round 1. carried: the new reward policy plus last round's cost part, rescaled to the
    new multiplier. previous: last round's policy. reward: the reward policy, as in round 1."""
    last_rate: float = Field(1.0, gt=0, le=1)
    """Learning rates of the last round as a share of those above, falling linearly in between: late fits polish."""
    support: SupportConfig = SupportConfig()
    """The term that keeps policies in their language."""
    refit: Refit = BudgetRefit()
    """How much of the past a fit sees."""
    merge_duplicates: bool = False
    """Pairs that were labelled alike more than once become one row of that weight; the likelihood is the same."""
    max_failures: int = Field(3, ge=0)
    """How often a broken worker group is restarted before the run fails."""
    deadline_s: float = Field(1800.0, gt=0)
    """Longest wait for one fit, in seconds; after it the run fails and says whom it waited for."""


# --- rollout ---------------------------------------------------------------------------------------------------------


class RolloutCommon(Strict):
    """Sampling; the same for every engine."""

    engines: int = Field(1, ge=1)
    """Engines that share the prompts. Results do not depend on their number."""
    max_tokens: int = Field(32, ge=1)
    """Longest answer, in tokens."""
    candidates: int = Field(16, ge=2)
    """Answers per prompt from which the explorer chooses, half from the policy and half from the proposal."""
    proposal_temperature: float = Field(1.0, gt=0)
    """Temperature of the reference as the broader proposal (1 to 1.2). What nobody proposes cannot be explored."""
    canaries: int = Field(8, ge=1)
    """Sequences whose log-probabilities verify a delivery."""
    canary_tolerance: float = Field(1e-4, gt=0)
    """Largest difference per token between engine and trainer (float32: 1e-4)."""
    deadline_s: float = Field(600.0, gt=0)
    """Longest wait for one batch, in seconds."""


class VllmRollout(RolloutCommon):
    """vLLM: weights updated in place, version by version."""

    engine: Literal["vllm"] = "vllm"
    """Tag of this variant."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices per engine."""
    threads: int = Field(1, ge=1)
    """CPU threads per engine."""
    max_model_len: int = Field(256, ge=8)
    """Longest prompt and answer together, in tokens."""
    max_sequences: int = Field(128, ge=1)
    """Sequences decoded at a time."""
    kv_cache_gib: float = Field(0.5, gt=0)
    """Key-value cache on a CPU, in GiB."""
    gpu_memory: float = Field(0.5, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""
    delivery: Literal["reload", "native"] = "reload"
    """How weights arrive. reload: the engine reads them from the artifact store. native: adapters as files, whole
    weights through vLLM's own transfer on GPUs (NCCL in the split layout, CUDA IPC in the time-shared one)."""


class TransformersRollout(RolloutCommon):
    """`transformers` generation: slower, runs everywhere."""

    engine: Literal["transformers"] = "transformers"
    """Tag of this variant."""
    batch: int = Field(128, ge=1)
    """Sequences decoded at a time."""


class TabularRollout(RolloutCommon):
    """Draws from tables; only for tabular worlds."""

    engine: Literal["tabular"] = "tabular"
    """Tag of this variant."""


Rollout = Annotated[VllmRollout | TransformersRollout | TabularRollout, Field(discriminator="engine")]


# --- feedback --------------------------------------------------------------------------------------------------------


class FeedbackCommon(Strict):
    """What every source of labels is asked for."""

    responses: int = Field(192, ge=2)
    """N_ce: answers per round whose cost is labelled."""
    labels_each: int = Field(32, ge=1)
    """M_ce: labels per answer, from distinct sources."""
    signal: Literal["logit_labels", "unsafe_rate", "cost_model"] = "logit_labels"
    """What the labels estimate: the expected cost (wants labels_each >= 5), or the unsafe rate, limited as a rate.
    cost_model: the mean of a cost model's own scores, limited on its scale (feedback.kind=model alone)."""
    minutes_per_label: float = Field(0.5, gt=0)
    """A person's time for one label, for the plan's estimate of what the same run costs with people."""
    deadline_s: float = Field(600.0, gt=0)
    """Longest wait for a round's labels, in seconds."""


class WorldFeedback(FeedbackCommon):
    """Labels drawn from a world's truth: Bernoulli for safety, Bradley-Terry for preferences."""

    kind: Literal["world"] = "world"
    """Tag of this variant."""


class AskedPeople(FeedbackCommon):
    """How people are asked through the annotation queue (`pddpo annotate --run DIR`)."""

    deadline_s: float = Field(7 * 86400.0, gt=0)
    """Longest wait for a round's labels, in seconds; a lead can extend it while it runs."""
    park_after_s: float | None = Field(None, ge=0)
    """After so long the run ends with exit code 3, its resources released, to be resumed; null: it stays."""
    missing: Literal["fail", "decide"] = "fail"
    """At the deadline with labels missing: fail (exit 1) or ask for a decision (exit 4). Nothing is filled in."""
    lease_s: float = Field(900.0, gt=0)
    """How long a question is reserved for the person who has it."""
    gold_rate: float = Field(0.05, ge=0, lt=1)
    """Share of control questions, once an admin has added some."""
    poll_s: float = Field(1.0, gt=0)
    """How often the run looks whether the labels are there."""


class PeopleFeedback(AskedPeople):
    """All labels by people."""

    kind: Literal["people"] = "people"
    """Tag of this variant."""


class StoredScorerConfig(Strict):
    """A reward or cost model in a folder or on the hub; its score is scale * output + shift."""

    path: str
    """Folder with config.json, *.safetensors and tokenizer, or a hub name owner/model."""
    template: str | None = None
    """tokens, safe-rlhf, chat, pair, or a text with {prompt} and {answer}; null: what the model was made with."""
    label: str | None = None
    """Label of a classifier whose log-odds are the score; null: its only output, or the second of two."""
    scale: float = 1.0
    """A harmlessness model is a cost at scale -1."""
    shift: float = 0.0
    """Moves the zero of a cost."""
    max_tokens: int | None = Field(None, ge=8)
    """Longer texts lose their beginning; null: the model's own limit."""
    batch: int = Field(64, ge=1)
    """Texts per forward pass."""


class ScorerTrainingConfig(Strict):
    """Reward and cost models that are trained before the first round, starting from the reference."""

    pairs: int = Field(3000, ge=8)
    """Pairs of the reference's answers that are labelled for it, on worlds; elsewhere the offline pairs are taken."""
    temperature: float = Field(1.5, gt=0)
    """Temperature of those answers: above 1 they cover more than the policy will say at first."""
    fit: FitConfig = FitConfig(steps=400, learning_rate=2e-3, batch_pairs=64)
    """Optimiser of each fit."""
    ridge: float = Field(1e-3, ge=0)
    """Weight of the squared scores: keeps them finite where the pairs leave no doubt."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """Share of the pairs that is kept for the accuracies in the journal."""


class ModelFeedback(FeedbackCommon):
    """Labels drawn from a reward and a cost model: P(unsafe) = sigmoid(cost), Bradley-Terry on the scores."""

    kind: Literal["model"] = "model"
    """Tag of this variant."""
    reward: StoredScorerConfig | None = None
    """The reward model; null: trained before the first round (`scorers`)."""
    cost: StoredScorerConfig | None = None
    """The cost model, its zero at the safety boundary; null: trained before the first round (`scorers`)."""
    hard: bool = False
    """Take the likelier label instead of drawing it."""
    gpus: float = Field(0.0, ge=0, le=1)
    """Share of a GPU that each of the two models reserves; 0: they score on CPUs."""


class JudgeFeedback(FeedbackCommon):
    """Labels by a language model behind an OpenAI-compatible endpoint."""

    kind: Literal["judge"] = "judge"
    """Tag of this variant."""
    endpoint: str = "http://127.0.0.1:8000/v1"
    """Base URL; /chat/completions is asked."""
    model: str
    """Name of the model there."""
    key_env: str | None = None
    """Environment variable that holds the key; null: no key is sent."""
    temperature: float = Field(0.7, ge=0)
    """Of the judge's answers; several labels of one answer differ only above 0."""
    max_tokens: int = Field(512, ge=16)
    """Longest explanation and scores."""
    workers: int = Field(8, ge=1)
    """Questions that are open at a time."""
    request_timeout_s: float = Field(120.0, gt=0)
    """Longest wait for one answer of the judge, in seconds."""
    tries: int = Field(4, ge=1)
    """How often one question is sent when the endpoint fails or is busy."""
    excluded: float = Field(0.1, ge=0, lt=1)
    """Largest share of a round's answers or pairs that are left out, and counted, because no reply about them could be
    read in three attempts; beyond it the run fails."""


class WorldScores(Strict):
    """Scores made from a world's truth with errors, where reward and cost models would stand."""

    kind: Literal["world"] = "world"
    """Tag of this variant."""
    noise: float = Field(0.7, ge=0)
    """Standard deviation of an error that belongs to the text: the same whenever it is scored."""
    bias: float = 0.3
    """Added to every cost."""


class TrainedScores(Strict):
    """Reward and cost models, as `feedback.kind=model` has them."""

    kind: Literal["scorers"] = "scorers"
    """Tag of this variant."""
    reward: StoredScorerConfig | None = None
    """The reward model; null: trained before the first round (`scorers`)."""
    cost: StoredScorerConfig | None = None
    """The cost model; null: trained before the first round (`scorers`)."""


class MixedFeedback(AskedPeople):
    """A model answers everything, people what it is least sure of and a random share."""

    kind: Literal["mixed"] = "mixed"
    """Tag of this variant."""
    model: Annotated[WorldScores | TrainedScores, Field(discriminator="kind")] = WorldScores()
    """What scores all answers."""
    unsure: int = Field(24, ge=0)
    """Answers per round that people label because the model is least sure of them."""
    random: int = Field(24, ge=8)
    """Answers per round that people label whatever the model says: they keep the cost estimate unbiased."""
    pairs_unsure: int = Field(24, ge=0)
    """Pairs per round that people compare because the model is least sure of them; it compares the rest."""
    pairs_random: int = Field(8, ge=1)
    """Pairs per round that people compare whatever the model says."""

    @model_validator(mode="after")
    def asks_no_more_than_there_is(self) -> Self:
        if self.unsure + self.random > self.responses:
            raise ValueError(
                f"unsure {self.unsure} and random {self.random} are more answers than responses={self.responses}"
            )
        return self


Feedback = Annotated[
    WorldFeedback | PeopleFeedback | MixedFeedback | ModelFeedback | JudgeFeedback, Field(discriminator="kind")
]


# --- dual variable ---------------------------------------------------------------------------------------------------


class ProjectedRule(Strict):
    """Projected ascent with the theory's step for a fixed number of rounds: eta = first / ((C + |d|) sqrt(K))."""

    kind: Literal["projected"] = "projected"
    """Tag of this variant."""
    curvature_cap: bool = True
    """Cap eta at 2 beta / Var(cost), above which exact steps overshoot."""


class AnytimeRule(Strict):
    """Projected ascent with eta_k = eta_0 / sqrt(k), for an open number of rounds."""

    kind: Literal["anytime"] = "anytime"
    """Tag of this variant."""
    first_step: float | None = Field(None, gt=0)
    """eta_0; null: rho / (C + |d|)."""
    curvature_cap: bool = True
    """Cap eta at 2 beta / Var(cost)."""


class NewtonRule(Strict):
    """Damped Newton: (estimate - d) * beta / Var(cost), within a trust region of 0.5 * upper / sqrt(K)."""

    kind: Literal["newton"] = "newton"
    """Tag of this variant."""
    damping: float = Field(1.0, gt=0, le=1)
    """Share of the Newton step that is taken: less follows the noise of the estimates less."""


class LogRule(Strict):
    """Ascent on log(multiplier), the rule of adaLag. It freezes near 0, hence the floor."""

    kind: Literal["log"] = "log"
    """Tag of this variant."""
    rate: float = Field(0.5, gt=0)
    """Learning rate on the logarithm."""
    floor: float = Field(0.05, gt=0)
    """The multiplier never falls below it."""


class PidRule(Strict):
    """Proportional, integral and derivative parts of the residual."""

    kind: Literal["pid"] = "pid"
    """Tag of this variant."""
    proportional: float = Field(0.1, ge=0)
    """Gain on the residual."""
    integral: float = Field(0.05, ge=0)
    """Gain on the sum of residuals."""
    derivative: float = Field(0.0, ge=0)
    """Gain on the rise of the residual."""


class FixedRule(Strict):
    """No ascent: the multiplier stays at `first`."""

    kind: Literal["fixed"] = "fixed"
    """Tag of this variant."""


DualRule = Annotated[
    ProjectedRule | AnytimeRule | NewtonRule | LogRule | PidRule | FixedRule, Field(discriminator="kind")
]


class DualConfig(Strict):
    """The limit on the expected cost, and how its price is found."""

    threshold: float = 0.0
    """d: the expected cost must stay at or below it."""
    cost_max: float = Field(2.0, gt=0)
    """C: costs lie in [-C, C]; labels are clipped to it before the logit."""
    rho: float | None = Field(None, gt=0)
    """Half of the multiplier's upper end; null: the value that the world's oracle states."""
    lower: float = Field(0.0, ge=0)
    """Lower end of the multiplier."""
    upper: float | None = Field(None, gt=0)
    """Upper end of the multiplier; null: twice rho."""
    first: float | None = Field(None, gt=0)
    """Multiplier of round 1 (at 0 the theory's step is 0 and it never moves); null: rho."""
    skip_below: float | None = Field(None, ge=0)
    """At or below it the round's policy is the reward policy itself, without a cost fit; null: 0.1 beta."""
    warmup_rounds: int = Field(0, ge=0)
    """Rounds in which the multiplier stays where it is: early fits pick costlier answers than they believe."""
    dead_band: bool = False
    """Leave the multiplier alone while the estimate is within one standard error of the limit."""
    rule: DualRule = ProjectedRule()
    """How the multiplier moves."""

    @model_validator(mode="after")
    def bounds_in_order(self) -> Self:
        upper = self.upper if self.upper is not None else (2.0 * self.rho if self.rho is not None else None)
        if upper is not None and self.lower >= upper:
            raise ValueError(f"the multiplier's bounds are reversed: lower {self.lower} >= upper {upper}; swap them")
        if self.first is not None and upper is not None and not self.lower <= self.first <= upper:
            raise ValueError(f"first {self.first} lies outside the multiplier's bounds [{self.lower}, {upper}]")
        return self


class ConstraintConfig(Strict):
    """One of several limits. What it leaves out is as in `dual`; bounds of costs, signal and rule are shared."""

    name: str = Field(min_length=1, max_length=40, pattern=r"^[a-z][a-z0-9_-]*$")
    """Name of the cost: `cost` is the world's first one, the others are its further costs."""
    threshold: float | None = None
    """d: the limit of this expected cost; null: `dual.threshold`."""
    rho: float | None = Field(None, gt=0)
    """Half of this multiplier's upper end; null: `dual.rho`."""
    first: float | None = Field(None, gt=0)
    """This multiplier in round 1; null: `dual.first`."""


# --- exploration -----------------------------------------------------------------------------------------------------


class ExploreConfig(Strict):
    """Which answers get labelled for preferences. The exploring policy is never served."""

    bonus: Literal["elliptical", "simhash", "thompson", "off"] = "elliptical"
    """elliptical: posterior standard deviations of frozen features. simhash: counts of hashed features, without linear
    algebra. thompson: one random guess a round in place of a bonus. off: answers of the policy as they come."""
    loss: Literal["plain", "xpo"] = "plain"
    """xpo: the policy's own loss carries optimism, alpha times its mean log-probability of the baseline's answers. It
    needs no features and never switches off; the policy of a round is then optimistic itself."""
    alpha: float = Field(1e-3, gt=0)
    """Weight of the xpo term against the mean loss of a pair; long answers want less (1e-5 for language models)."""
    prompts: int = Field(24, ge=1)
    """Prompts per round that get candidates."""
    picks: int = Field(6, ge=1)
    """Pairs per prompt, chosen one after another with the design matrix updated in between."""
    keep: int | None = Field(None, ge=1)
    """So many of a round's chosen pairs are labelled: those that teach most by the exploration norm, and a random
    share; null: all of them."""
    keep_random: float = Field(0.25, gt=0, le=1)
    """keep: share of the labelled pairs that is drawn evenly, whatever their norm."""
    scale: float = Field(1.5, gt=0)
    """k: bonus in posterior standard deviations (1 to 2 works everywhere that was tried)."""
    cost_scale: float = Field(1.0, ge=0)
    """Factor on the cost bonus; 0: only the reward's uncertainty is explored."""
    prior_sd: float = Field(2.0, gt=0)
    """s0: prior standard deviation of a difference of scores."""
    information: float = Field(0.25, gt=0)
    """w: Fisher information of one comparison (at most 1/4)."""
    rank: int = Field(128, ge=1)
    """q: dimensions kept by the whitening."""
    feature_clip: float = Field(3.0, gt=0)
    """Largest norm of a whitened feature."""
    calibration: int = Field(2048, ge=16)
    """Answers of the reference on which the whitening is fitted, once."""
    comparator: Literal["baseline", "max_info"] = "baseline"
    """The other answer of a pair: one of the baseline's, or the most informative candidate."""
    baseline_answers: int = Field(8, ge=4)
    """Answers of the baseline per prompt: they centre the features and serve as comparators."""
    baseline_top_p: float = Field(0.9, gt=0, le=1)
    """The baseline is the reference with this nucleus, so it is confined to common answers."""
    weights: Literal["exact", "bonus_only"] = "exact"
    """Weights of the resampling: with log-probability ratios, or for long answers without them."""
    proposal_weight: float = Field(0.2, gt=0, le=1)
    """bonus_only: weight of a proposal's answer against a policy's."""
    min_ess: float = Field(1.5, ge=1)
    """The bonus is tempered until the weights' effective sample size is at least this."""


# --- the rest --------------------------------------------------------------------------------------------------------


class OfflineConfig(Strict):
    """The preferences that exist before the first round."""

    pairs: int = Field(1500, ge=0)
    """n0: pairs, each labelled for helpfulness and for harm."""
    top_p: float = Field(0.9, gt=0, le=1)
    """Worlds draw their offline answers from the reference's nucleus: it covers the space badly, as real data do."""
    extra: int = Field(0, ge=0)
    """More pairs, of answers of the whole reference: an offline method gets the labels that an online run earns."""
    reward_share: float = Field(1.0, gt=0, le=1)
    """Share of the pairs that keep their label for helpfulness, drawn by seed; all keep the one for harm."""
    compare_rounds: int = Field(0, ge=0)
    """Rounds of offline PD-DPO that an online run makes first, on the same pairs, to be compared with; 0: none."""
    compare_reward: FitConfig | None = None
    """The reward fit of that comparison, its only one; null: as the online run's first."""
    compare_cost: FitConfig | None = None
    """Its cost fits; null: as the online run's. Without new pairs to repair it, a small model wants gentler ones."""


class InProcess(Strict):
    """Everything in this process, for notebooks and tests."""

    mode: Literal["in-process"] = "in-process"
    """Tag of this variant."""


class RayCluster(Strict):
    """Each part is a group of Ray actors."""

    mode: Literal["ray"] = "ray"
    """Tag of this variant."""
    address: str | None = None
    """A running cluster (`auto` or host:port); null: `$RAY_ADDRESS`, else a session of this machine."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of a session of this machine; null: as many as it has."""
    gpu_share: float = Field(1.0, gt=0, le=1)
    """Share of a GPU that a worker or an engine reserves; 0.5: training and inference on one GPU."""
    layout: Literal["split", "time-shared"] = "split"
    """split: trainer and engines have devices of their own. time-shared: each GPU holds one trainer rank and one
    engine, and the engine sleeps while the trainer works (as many engines as workers, no tensor parallelism)."""
    placement: Literal["pack", "spread"] = "pack"
    """Reserve the parts' resources on few nodes or on many."""
    start_deadline_s: float = Field(300.0, gt=0)
    """Longest wait for resources and for the parts to come up, in seconds."""


Cluster = Annotated[InProcess | RayCluster, Field(discriminator="mode")]


class MethodConfig(Strict):
    """Settings of single compared methods; a method looks at its own alone."""

    margin: float = Field(10.0, ge=0)
    """safe-dpo: D, what a safe answer must lead an unsafe one by in the logit (it is not multiplied by beta)."""
    share: float = Field(0.5, gt=0, lt=1)
    """p-sacpo: q, share of the policy after both stages in the merged weights; the rest is the reward policy's."""
    window: int = Field(128, ge=2)
    """pd-dpo-adalag: the newest labelled answers, over rounds, whose mean cost moves the multiplier."""
    answers: int = Field(128, ge=2)
    """mocan, pecan, caid: answers of the reference per prompt on which the explicit dual is minimised."""
    rate: float = Field(1.0, gt=0)
    """mocan, pecan: first rate of the descent on the explicit dual. caid: rate of its step per round as well."""
    multiplier: float | None = Field(None, gt=0)
    """mocan, pecan: the multiplier, given; null: found by minimising the explicit dual."""
    scores: Literal["models", "policies"] = "models"
    """caid: scores from fitted reward and cost models, or from the two policies of a DPO fit on each label."""


class PpoConfig(Strict):
    """safe-rlhf: proximal policy optimisation with two critics. Its batch of a round are feedback.responses answers."""

    kl: float = Field(0.1, gt=0)
    """kappa: price of the divergence from the reference per token, in both streams. The policy that it leads to has
    beta = (1 + multiplier) kappa."""
    epochs: int = Field(1, ge=1)
    """Passes over a round's answers."""
    batch: int = Field(32, ge=1)
    """Answers per optimiser step."""
    learning_rate: float = Field(1e-5, gt=0)
    """Of the policy, constant."""
    critic_learning_rate: float = Field(5e-6, gt=0)
    """Of both critics, constant."""
    weight_decay: float = Field(0.01, ge=0)
    """Of the policy."""
    critic_weight_decay: float = Field(0.1, ge=0)
    """Of both critics."""
    clip: float = Field(0.2, gt=0, lt=1)
    """Probability ratios beyond 1 +- clip earn nothing more."""
    value_clip: float = Field(5.0, gt=0)
    """Values may move so far from those before the round's update."""
    score_clip: float = Field(50.0, gt=0)
    """Bound of every reward and cost of a token."""
    discount: float = Field(1.0, gt=0, le=1)
    """gamma, per token."""
    trace: float = Field(0.95, ge=0, le=1)
    """lambda of the generalised advantage estimate, per token."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""


class ReportConfig(Strict):
    """What a run shows."""

    tensorboard: bool = True
    """Write TensorBoard files into the run folder."""
    html: bool = True
    """Write report.html at the end."""
    samples: int = Field(12, ge=0)
    """Answers shown before and after."""


WITHOUT_MULTIPLIER = ("dpo-harmless", "dpo-helpful", "safe-dpo")
ONE_ROUND = (*WITHOUT_MULTIPLIER, "sacpo", "p-sacpo", "mocan", "pecan")
SEVERAL_LIMITS = ("o-pd-dpo", "o-pd-dpo-paper", "pd-dpo", "pd-dpo-fixed")
"""Methods that chain one cost stage per constraint."""
WITHOUT_DUAL_STEP = (*ONE_ROUND, "pd-dpo-fixed", "caid")
"""Methods whose multiplier is given, found once from the reference's answers, or moved by the page itself."""


class Config(Strict):
    """A resolved recipe: all that decides what a run computes, and where."""

    about: str = ""
    """One line for `pddpo recipes`."""
    algorithm: Literal[
        "o-pd-dpo",
        "o-pd-dpo-paper",
        "pd-dpo",
        "pd-dpo-fixed",
        "pd-dpo-adalag",
        "dpo-harmless",
        "dpo-helpful",
        "safe-dpo",
        "sacpo",
        "p-sacpo",
        "mocan",
        "pecan",
        "c-dpo",
        "caid",
        "safe-rlhf",
    ]
    """The page that runs."""
    seed: int = Field(0, ge=0)
    """Seed of all draws of the run."""
    rounds: int = Field(16, ge=1)
    """K. Theory steps depend on it: it is fixed in advance."""
    beta: float = Field(0.1, gt=0)
    """Weight of the KL divergence from the reference, the same in both stages."""
    reward_max: float = Field(2.0, gt=0)
    """R: rewards lie in [-R, R]."""
    world: World
    """Where prompts and truth come from."""
    model: ModelConfig = ModelConfig()
    trainer: TrainerConfig = TrainerConfig()
    rollout: Rollout = VllmRollout()
    feedback: Feedback = WorldFeedback()
    dual: DualConfig = DualConfig()
    constraints: list[ConstraintConfig] = [ConstraintConfig(name="cost")]
    """The limits of the run, each with its own multiplier; the first is `cost`. Each is a cost stage of its own."""
    explore: ExploreConfig = ExploreConfig()
    offline: OfflineConfig = OfflineConfig()
    method: MethodConfig = MethodConfig()
    scorers: ScorerTrainingConfig = ScorerTrainingConfig()
    ppo: PpoConfig = PpoConfig()
    cluster: Cluster = InProcess()
    journal: str | None = None
    """Database URL; null: `journal.sqlite` in the run folder."""
    report: ReportConfig = ReportConfig()

    @property
    def pairs_per_round(self) -> int:
        """N_on: new pairs of an online round, each labelled for helpfulness and for harm."""
        found = self.explore.prompts * self.explore.picks if self.online else 0
        return found if self.explore.keep is None else min(found, self.explore.keep)

    @property
    def answers_asked(self) -> int:
        """Answers per round that get safety labels."""
        feedback = self.feedback
        return feedback.unsure + feedback.random if isinstance(feedback, MixedFeedback) else feedback.responses

    @property
    def pairs_asked(self) -> int:
        """Pairs per round that are not left to a model."""
        if isinstance(self.feedback, MixedFeedback):
            return min(self.pairs_per_round, self.feedback.pairs_unsure + self.feedback.pairs_random)
        return self.pairs_per_round

    @property
    def online(self) -> bool:
        """Whether rounds collect new preferences."""
        return self.algorithm.startswith("o-")

    @property
    def thresholds(self) -> dict[str, float]:
        """d of every constraint, by name and in order."""
        limits = {one.name: one.threshold for one in self.constraints}
        return {name: self.dual.threshold if given is None else given for name, given in limits.items()}

    @property
    def skip_below(self) -> float:
        """Multiplier at or below which the cost fit is skipped."""
        return 0.1 * self.beta if self.dual.skip_below is None else self.dual.skip_below

    def digest(self) -> str:
        """Hash of what decides the numbers. Two runs with one digest compute the same, wherever they run."""
        return hashlib.sha256(json.dumps(self.substance(), sort_keys=True).encode()).hexdigest()

    def substance(self) -> dict[str, Any]:
        """The settings that enter the digest: without where it runs and what it shows."""
        tree = self.model_dump(mode="json")
        for key in ("about", "cluster", "journal", "report"):
            del tree[key]
        tree["world"].pop("cache", None)
        for key in ("workers", "threads", "micro_pairs", "activation_gib", "max_failures", "deadline_s"):
            del tree["trainer"][key]
        for key in ("engines", "threads", "tensor_parallel", "deadline_s", "kv_cache_gib", "gpu_memory", "delivery"):
            tree["rollout"].pop(key, None)
        for key in ("minutes_per_label", "deadline_s", "park_after_s", "missing", "lease_s", "gold_rate", "poll_s"):
            tree["feedback"].pop(key, None)
        for key in ("endpoint", "key_env", "workers", "request_timeout_s", "tries", "gpus"):
            tree["feedback"].pop(key, None)
        return tree

    @model_validator(mode="after")
    def parts_fit_together(self) -> Self:
        tabular = isinstance(self.world, TabularWorldConfig)
        if tabular != isinstance(self.rollout, TabularRollout):
            wanted = "tabular" if tabular else "vllm or transformers"
            raise ValueError(f"world.kind {self.world.kind} needs rollout.engine {wanted}, not {self.rollout.engine}")
        if isinstance(self.cluster, InProcess):
            self._one_process()
        elif self.cluster.layout == "time-shared":
            self._one_engine_per_rank()
        self._rule_fits_the_method()
        self._constraints_fit()
        if self.model.compile and self.trainer.engine != "torch":
            raise ValueError(f"model.compile works with trainer.engine torch, not with {self.trainer.engine}")
        if self.explore.loss == "xpo" and self.algorithm != "o-pd-dpo":
            raise ValueError(f"explore.loss=xpo is a variant of algorithm o-pd-dpo, not of {self.algorithm}")
        if self.feedback.signal == "unsafe_rate" and not 0 < self.dual.threshold < 1:
            raise ValueError(
                f"feedback.signal=unsafe_rate limits a rate: dual.threshold={self.dual.threshold} is not in (0, 1)"
            )
        if self.feedback.signal == "cost_model" and not isinstance(self.feedback, ModelFeedback):
            raise ValueError("feedback.signal=cost_model needs feedback.kind=model, whose scores it takes")
        if tabular and isinstance(self.feedback, ModelFeedback | JudgeFeedback):
            raise ValueError(f"feedback.kind={self.feedback.kind} reads texts; a table has none, use world or people")
        if isinstance(self.world, NoWorldConfig):
            self._somebody_knows()
        if self.explore.weights == "exact" and self.rollout.proposal_temperature != 1.0 and self.online:
            raise ValueError(
                "explore.weights=exact needs rollout.proposal_temperature=1.0, not "
                f"{self.rollout.proposal_temperature}: set it, or choose explore.weights=bonus_only"
            )
        if isinstance(self.rollout, VllmRollout) and self.rollout.max_tokens >= self.rollout.max_model_len:
            raise ValueError("rollout.max_tokens must be below rollout.max_model_len, which counts the prompt too")
        return self

    def _rule_fits_the_method(self) -> None:
        fixed = isinstance(self.dual.rule, FixedRule)
        if self.algorithm in WITHOUT_DUAL_STEP and not fixed:
            raise ValueError(f"algorithm {self.algorithm} needs dual.rule.kind=fixed")
        if self.algorithm == "pd-dpo-adalag" and not isinstance(self.dual.rule, LogRule):
            raise ValueError("algorithm pd-dpo-adalag needs dual.rule.kind=log")
        if self.algorithm in ("c-dpo", "safe-rlhf") and fixed:
            raise ValueError(
                f"algorithm {self.algorithm} needs a dual.rule that moves the multiplier, e.g. dual.rule.kind=anytime"
            )
        if self.algorithm == "safe-rlhf":
            self._policy_gradients_are_possible()
        if fixed and self.dual.first is None and self.algorithm not in WITHOUT_MULTIPLIER:
            raise ValueError("dual.rule.kind fixed needs dual.first, the multiplier to keep")
        if self.algorithm in ONE_ROUND and self.rounds != 1:
            raise ValueError(f"algorithm {self.algorithm} is a single round: rounds={self.rounds} must be 1")

    def _somebody_knows(self) -> None:
        """Without a world, what it would answer has to be said."""
        from_truth = isinstance(self.feedback, MixedFeedback) and isinstance(self.feedback.model, WorldScores)
        if from_truth or isinstance(self.feedback, WorldFeedback):
            raise ValueError("world.kind=none has no truth to label with: set feedback.kind to model, judge or people")
        if self.dual.rho is None and self.dual.upper is None:
            raise ValueError("world.kind=none has no oracle: give dual.rho, half of the multiplier's upper end")

    def _one_engine_per_rank(self) -> None:
        if self.trainer.workers != self.rollout.engines:
            raise ValueError(
                f"cluster.layout=time-shared puts one engine beside each rank: trainer.workers={self.trainer.workers} "
                f"and rollout.engines={self.rollout.engines} must be equal"
            )
        if isinstance(self.rollout, VllmRollout) and self.rollout.tensor_parallel > 1:
            raise ValueError("cluster.layout=time-shared needs rollout.tensor_parallel=1; use cluster.layout=split")

    def _policy_gradients_are_possible(self) -> None:
        if self.trainer.engine != "torch" or isinstance(self.model.parameters, LoraParameters):
            raise ValueError("algorithm safe-rlhf needs trainer.engine=torch and model.parameters.kind=full")

    def _constraints_fit(self) -> None:
        names = [one.name for one in self.constraints]
        if not names or names[0] != "cost" or len(set(names)) < len(names):
            raise ValueError(f"constraints begin with cost and have different names: not {', '.join(names) or 'none'}")
        if len(names) == 1:
            return
        if self.algorithm not in SEVERAL_LIMITS:
            raise ValueError(f"algorithm {self.algorithm} has one constraint; several need {', '.join(SEVERAL_LIMITS)}")
        if not isinstance(self.world, TabularWorldConfig) or not isinstance(self.feedback, WorldFeedback):
            raise ValueError("several constraints need world.kind=tabular and feedback.kind=world, for their labels")
        outside = [name for name, limit in self.thresholds.items() if not 0 < limit < 1]
        if self.feedback.signal == "unsafe_rate" and outside:
            raise ValueError(f"feedback.signal=unsafe_rate limits rates: {outside[0]}'s threshold is not in (0, 1)")

    def _one_process(self) -> None:
        only = (
            ("trainer.workers", self.trainer.workers, 1),
            ("trainer.engine", self.trainer.engine, "torch"),
            ("rollout.engines", self.rollout.engines, 1),
        )
        for key, value, possible in only:
            if value != possible:
                raise ValueError(f"{key}={value} needs cluster.mode=ray; in one process only {possible} works")
