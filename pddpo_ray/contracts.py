"""The four parts of a run and what stands around them, as the methods see them.

Each part is a controller in the driver that journals what it does and hands the work to a backend. A backend exists
twice behind the same Protocol: a plain object in this process, or a Ray group. Both give the same numbers, because
every command is self-contained (start version, seed, data) and nothing depends on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pddpo_ray.config import FitConfig
from pddpo_ray.records import (
    Array,
    CandidateSet,
    CostEstimate,
    Decoding,
    Delivery,
    LabelledPair,
    LossOptimism,
    MeasuredValues,
    Objective,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
)

Count = int | Sequence[int]
"""Answers per prompt: one number for all prompts, or one each."""
Draw = tuple[tuple[int, ...], str, float]
"""Token ids incl. end of sequence, text, log-probability under the policy, undecoded."""


# --- what a method calls: its parts, as `loop` makes them -----------------------------------------------------------


class Trainer(Protocol):
    """Fits policies. What it returns is already in the artifact store."""

    def fit(self, objective: Objective, rows: Sequence[PairRow]) -> PolicyVersion: ...

    def begin(self, objective: Objective, rows: Sequence[PairRow]) -> None:
        """Starts the next round's reward fit, where the backend can work while labels are waited for."""
        ...

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        """log pi(y|x), summed over the response tokens. -> [n]"""
        ...


class Rollout(Protocol):
    """Samples from published policies; refuses to sample from one whose delivery was not verified."""

    def publish(self, policy: PolicyVersion) -> None: ...

    def sample(
        self, prompts: Sequence[Prompt], policy: PolicyVersion, pair_prompts: Sequence[Prompt] = (), each: int = 1
    ) -> list[Response]: ...

    def candidates(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[CandidateSet]: ...


class Feedback(Protocol):
    """Asks for labels and waits for them, with a deadline."""

    def open_safety(self, items: Sequence[Response], labels_each: int) -> None:
        """Puts the questions that `safety` collects later to labellers that can begin before the run waits."""
        ...

    def collect_safety(self, items: Sequence[Response], labels_each: int, name: str) -> None:
        """Journals the labels of `safety` without reading them back."""
        ...

    def safety(self, items: Sequence[Response], labels_each: int, name: str) -> list[SafetyLabels]: ...

    def safety_arrived(self, items: Sequence[Response], labels_each: int) -> bool:
        """Whether `safety` would get the labels without a wait."""
        ...

    def compare(self, pairs: Sequence[Pair]) -> list[LabelledPair]: ...


class Due(Protocol):
    """What a round takes of the labels that were asked for."""

    def answers(
        self, answers: Sequence[Response], arrived: Callable[[Sequence[Response]], bool]
    ) -> Iterable[tuple[int, Sequence[Response]]]:
        """How many rounds late, and the answers whose measures are taken now; `answers` are this round's. `arrived`
        says whether a round's answers can be measured without a wait; the journal stands at that round."""
        ...

    def pairs(self, pairs: Sequence[Pair]) -> Iterable[Sequence[Pair]]:
        """The pairs whose labels are taken now; `pairs` are this round's."""
        ...


class Dual(Protocol):
    """The multipliers of this round, and one step of all of them."""

    @property
    def multipliers(self) -> dict[str, float]: ...

    @property
    def multiplier(self) -> float:
        """The first limit's."""
        ...

    @property
    def message(self) -> str | None: ...

    def step(self, estimates: Sequence[CostEstimate], covariance: Array | None = None) -> dict[str, float]:
        """One projected step of every limit that was estimated; returns the multipliers that follow."""
        ...

    def observe(
        self, estimates: Sequence[CostEstimate], *, multiplier: float | None = None, following: float | None = None
    ) -> None:
        """Journals estimates that move nothing here."""
        ...


class Prompts(Protocol):
    def draw(self, count: int) -> list[Prompt]: ...


class Preferences(Protocol):
    """D^r and D^c."""

    @property
    def labelled(self) -> list[LabelledPair]: ...

    @property
    def reward(self) -> list[PairRow]: ...

    @property
    def cost(self) -> list[PairRow]:
        """D^c of a run that learns from one comparison."""
        ...

    def cost_of(self, comparison: str) -> list[PairRow]: ...

    def extend(self, labelled: Sequence[LabelledPair]) -> None: ...


class Limits(Protocol):
    """What must hold: the stages that learn it, the measuring of answers, and the step of all multipliers."""

    @property
    def on_drift(self) -> bool:
        """Whether a limit on the KL divergence from the reference moves the temperature."""
        ...

    @property
    def temperature(self) -> float:
        """beta + mu of the round: the weight of the KL divergence in its stages."""
        ...

    def stages(self, trainer: Trainer, preferences: Preferences, policy: PolicyVersion) -> PolicyVersion: ...

    def open(self, answers: Sequence[Response]) -> None:
        """Sources may begin to measure these answers before the run waits for them."""
        ...

    def step(self, answers: Sequence[Response]) -> None:
        """Measures the round's answers, estimates every limit and moves the multipliers."""
        ...

    def estimates(self, answers: Sequence[Response]) -> list[CostEstimate]: ...

    def observe(self, answers: Sequence[Response], multiplier: float | None = None) -> None:
        """Measures and estimates as `step`; journals the estimates, and nothing moves."""
        ...

    def measure_pairs(self, pairs: Sequence[Pair]) -> None: ...


class Rewards(Protocol):
    """A computed reward: the measuring of answers, and the first stage on what was measured."""

    def stage(self, reference: PolicyVersion, weight_of_kl: float) -> tuple[Objective, list[PairRow]]: ...

    def measure_pairs(self, pairs: Sequence[Pair]) -> None: ...


class Explorer(Protocol):
    """Chooses what gets labelled (the behaviour policy); never what is served."""

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]: ...

    def update(self, pairs: Sequence[Pair]) -> None: ...


# --- what stands behind them: one backend in this process, one on Ray ---------------------------------------------


class FitSettings(FitConfig):
    """One fit: its own section of the recipe, and what `trainer` says about every fit.

    A trainer backend sees no `epochs`: the trainer part has turned them into steps.
    """

    micro_pairs: int | None = None
    """Pairs per forward pass on one rank; None: the rank's whole share. Changes memory, not results."""
    activation_gib: float | None = None
    """What the activations of one forward and backward pass may take; None: no limit. Changes memory, not results."""
    support: float = 0.5
    """Weight of the term that keeps a policy on the reference's tokens."""
    held_out: float = 0.0
    """Share of the rows' prompts whose pairs teach nothing and say when to stop."""


@dataclass(frozen=True)
class Start:
    """Weights that a fit begins with: `policy + scale * (plus - minus)`, tensor by tensor (plain `policy` if None).

    The second form carries the cost part of last round's policy over to a new reward policy and rescales it to the
    new multiplier: log policy/reward_policy is close to -(multiplier/beta) * cost (paper.md §3).
    """

    policy: PolicyVersion
    plus: PolicyVersion | None = None
    minus: PolicyVersion | None = None
    scale: float = 1.0
    moments: PolicyVersion | None = None
    """The version with whose moments AdamW begins; None: afresh."""


@dataclass(frozen=True)
class FitCommand:
    """A whole fit. Executing it twice gives the same version: nothing outside this record enters."""

    sequence: int
    start: Start
    objective: Objective
    rows: tuple[PairRow, ...]
    settings: FitSettings
    seed: int
    result: str
    """Name of the version to be made, e.g. `policy-3`; its number is `sequence`."""
    optimism: LossOptimism | None = None
    keeps_moments: bool = False
    """The version keeps AdamW's moments, for the next fit of its stage."""


@dataclass(frozen=True)
class FitResult:
    """What a backend returns: the stored version and its metrics (`fit/loss`, `fit/seconds`, ...)."""

    version: PolicyVersion
    metrics: Mapping[str, float] = field(default_factory=dict)
    workers: tuple[int, ...] = ()
    """Process ids of the ranks that ran the fit."""
    curve: Mapping[str, Any] = field(default_factory=dict)
    """Of a network's fit: numbers of every step (`training.fit_watch`)."""


class TrainerBackend(Protocol):
    """Executes fits and scores texts. `TrainerGroup` (Ray) and `LocalTrainer` satisfy it."""

    def execute(self, command: FitCommand) -> FitResult: ...

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array: ...

    def features(self, responses: Sequence[Response]) -> Array: ...

    def close(self) -> None: ...


@runtime_checkable
class EarlyTrainer(Protocol):
    """A trainer backend that can run a fit while its caller waits for something else."""

    def begin(self, command: FitCommand) -> None:
        """Starts a fit; `execute` with an equal command collects it. What else it is asked for waits meanwhile."""
        ...


class Update(Protocol):
    """An update of the policy that a method brings. Running it twice gives the same result; it travels by pickle."""

    @property
    def sequence(self) -> int:
        """Number of the version to be made."""
        ...

    @property
    def result(self) -> str:
        """Its name."""
        ...

    def run(self, backend: TrainerBackend) -> FitResult:
        """The update, on the backend of every process that holds a part of the model."""
        ...


@runtime_checkable
class Performs(Protocol):
    """A trainer backend that hands updates on to the processes that hold the model."""

    def perform(self, update: Update) -> Any: ...


def perform(backend: TrainerBackend, update: Update) -> Any:
    """Runs an update where the model is. -> what the update returns"""
    return backend.perform(update) if isinstance(backend, Performs) else update.run(backend)


# --- engines and labellers -----------------------------------------------------------------------------------------


class RolloutEngine(Protocol):
    """One inference engine. `sample` draws `n` answers per prompt, or `n[i]` for prompt i, whose seed alone decides."""

    name: str

    def deliver(self, policy: PolicyVersion) -> Delivery: ...

    @property
    def version(self) -> int: ...

    def sample(self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding) -> list[list[Draw]]:
        """Per prompt n answers."""
        ...

    def score(self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]) -> Array:
        """Sum log-probability of each answer under the loaded version, for the canary. -> [n]"""
        ...

    def close(self) -> None: ...


class Labeller(Protocol):
    """A source of labels: a world's truth, a model, a judge, people. `seed` makes the draws repeatable."""

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]: ...

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """Each pair with a label by the name of the comparison that the labeller was given for."""
        ...


class Measure(Protocol):
    """Measures answers under every limit of a run; the seed makes draws repeatable.

    `references` are the reference's answers to the same prompts, one for each answer or None, for limits
    `versus: reference`; empty where there are none.
    """

    def __call__(
        self, answers: Sequence[Response], seed: int, references: Sequence[Response | None] = (), /
    ) -> MeasuredValues: ...


@runtime_checkable
class EarlyLabeller(Protocol):
    """A labeller that can begin before the run waits: people, or an actor. The labels are those of `safety` alone."""

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None: ...


@runtime_checkable
class LateLabeller(EarlyLabeller, Protocol):
    """A labeller that can tell whether labels are there: people. Asking opens the questions if they are not open."""

    def open_compare(self, pairs: Sequence[Pair], seed: int) -> None: ...

    def safety_arrived(self, items: Sequence[Response], labels_each: int, seed: int) -> bool: ...

    def comparisons_arrived(self, pairs: Sequence[Pair], seed: int) -> bool: ...
