"""Records that travel between the parts of a run.

Each is a frozen value: no part keeps a reference to another part's state, so every record can be written to the
journal, sent to a Ray actor or compared in a test. Token ids travel with text; text is never tokenised a second time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Numbers of formulas, in double precision; docstrings give their shapes."""
Stage = Literal["reward", "cost"]


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Prompt:
    """A question: `token_ids` as the policy sees it, `text` as people and judges do, `messages` as it was asked.

    In a tabular world `token_ids` is the single prompt index. Worlds leave `messages` empty.
    """

    id: str
    token_ids: tuple[int, ...]
    text: str
    messages: tuple[Message, ...] = ()

    @property
    def turns(self) -> tuple[Message, ...]:
        """The messages; a prompt without any is one question of a user."""
        return self.messages or (Message("user", self.text),)


@dataclass(frozen=True)
class Response:
    """An answer with its provenance: who wrote it (`policy_version`) and from which seed it can be drawn again.

    `token_ids` ends with the end-of-sequence token when the policy stopped by itself. `log_prob` is the sum over
    `token_ids` under the policy that wrote it (`policy.temperature` is part of it), whatever the answer was
    drawn with (None if not asked for).
    """

    id: str
    prompt: Prompt
    token_ids: tuple[int, ...]
    text: str
    policy_version: int
    seed: int
    log_prob: float | None = None


@dataclass(frozen=True)
class PolicyVersion:
    """One set of weights. `number` is the run-wide policy_version (0 is the reference); `sha256` names the content."""

    number: int
    name: str
    sha256: str
    path: str


@dataclass(frozen=True)
class Decoding:
    """How answers are drawn from a policy. The temperature is relative to the policy's own."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64


@dataclass(frozen=True)
class CandidateSet:
    """Answers to one prompt from which the explorer picks what people will compare.

    `log_policy[i]` and `log_proposal[i]` are the log-probabilities of `responses[i]` under the round's policy and
    under the broader proposal; both are needed because a candidate may come from either.
    """

    prompt: Prompt
    responses: tuple[Response, ...]
    log_policy: tuple[float, ...]
    log_proposal: tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, in the order in which a labeller sees them."""

    id: str
    first: Response
    second: Response

    @property
    def prompt(self) -> Prompt:
        return self.first.prompt


class Verdict(StrEnum):
    """A label. Abstained, failed and missing labels are kept and counted; they never become numbers."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    FIRST = "first"
    SECOND = "second"
    ABSTAIN = "abstain"
    FAILED = "failed"
    MISSING = "missing"
    """No label that may be used, and none that is asked for again: a person decided so, or its source refuses the text.
    It counts as the worst that it may say."""


HARM = "cost"
"""The comparison that people, judges, cost models and files of pairs make: which answer does more harm. A world makes
one for each of its costs, under the cost's name."""


@dataclass(frozen=True)
class LabelledPair:
    """`helpful` says which answer is better, `labels` which one is costlier, by the name of the comparison."""

    pair: Pair
    helpful: Verdict
    labels: Mapping[str, Verdict]
    reason: str = ""
    """Why a verdict failed or is missing, where its source says so; for messages alone."""

    def label(self, comparison: str) -> Verdict:
        """Which answer is costlier; abstained where nobody made this comparison."""
        return self.labels.get(comparison, Verdict.ABSTAIN)


@dataclass(frozen=True)
class SafetyLabels:
    """Labels of one answer by distinct sources; a cost estimate uses exactly `labels_each` of them."""

    response: Response
    labels: tuple[Verdict, ...]
    constraint: str = "cost"
    reason: str = ""
    """Why a label failed or is missing, where its source says so; for messages alone."""
    people: tuple[str | None, ...] = ()
    """Who gave each of the first labels, where people did."""


@dataclass(frozen=True)
class PairRow:
    """One training row of D^r or D^c.

    `chosen` is the answer whose probability the stage raises: the better one of a reward pair, the *cheaper* one of a
    cost pair (the paper's cost "winner" is the costlier answer, here `rejected`).
    """

    id: str
    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    round: int = 0
    weight: float = 1.0


@dataclass(frozen=True)
class CostEstimate:
    """Estimated expected cost with its standard error; `mode` is one of paper.md §5's three dual signals."""

    value: float
    standard_error: float
    responses: int
    """Answers that an interval may count: where people saw a part and a machine stands for the others, fewer."""
    labels_each: int
    mode: str = "logit_labels"
    constraint: str = "cost"
    within_variance: float | None = None
    """Variance of the cost among answers to one prompt, label noise taken out; among all where no prompt has two. None:
    not known. It follows from the labels, so the journal leaves it out."""
    cost_max: float | None = None
    """C, the bound of the clipped logits (`logit_labels` only): their mean's interval rests on it."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest number that a draw may have, where somebody stated it (`cost_model` only)."""
    missing: float = 0.0
    """How much lower the value is if every label that is missing says safe; the value counts them as unsafe. Where a
    machine stands for answers that people did not see: how much lower at least what people themselves said is."""
    low: float | None = None
    """Ends of the 95 % interval by what each draw measured; None: value and standard error alone make one."""
    high: float | None = None
    rounds_late: int = 0
    """Rounds between the one whose policy was labelled and the one in which the labels are used."""
    moved: float = 0.0
    """How far the multiplier has moved from the one of that policy by then; its owner knows."""

    @property
    def spread(self) -> float:
        """Standard deviation of the answers' costs."""
        return self.standard_error * math.sqrt(self.responses)


def answers_seen(unsure: int, random: int, answers: int) -> int:
    """How many answers drawn evenly say as much about what a machine missed as `random` ones that people saw of those
    besides the `unsure` ones, of which they saw all: what none of them showed, a machine's word does not rule out."""
    return min(answers, max(1, random * answers // (answers - unsure))) if unsure < answers else answers


@dataclass(frozen=True)
class Objective:
    """Objective of one stage: softplus(-(temperature * (h(chosen) - h(rejected)) + margin)), h = log policy/base.

    The reward stage has base = reference and temperature beta; the cost stage base = reward policy and temperature
    beta / multiplier (paper.md §2, §3). `multiplier` is None in the reward stage, and in the only stage of a method
    that runs plain DPO. `margins[i]` belongs to row i; empty: none.
    """

    stage: Stage
    base: PolicyVersion
    temperature: float
    multiplier: float | None = None
    margins: tuple[float, ...] = ()
    answer_bonus: tuple[float, ...] = ()
    """Bonus of every answer of a table, prompt by prompt, where the margins come from a bonus (paper.md §4): a table's
    policy carries it also at answers in no row, which margins cannot reach. Empty: margins only enter the loss."""
    score_max: float | None = None
    """Bound of the scores in a table's policy class (paper.md §4); None: the world's bound for the stage."""
    values: bool = False
    """Whether rows are measured differences (`theory.value_stage`): the loss is then the square of the same logit, with
    `margins[i]` = sum_j lambda_j (C_j(chosen) - C_j(rejected)) / s, `multiplier` s and temperature beta / s."""


@dataclass(frozen=True)
class UniformMixture:
    """What the theorem speaks of: draw a round's policy evenly, then an answer from it (paper.md §10)."""

    policies: tuple[PolicyVersion, ...]


def responses_of(sets: Sequence[CandidateSet]) -> list[Response]:
    """All candidates of several sets, in order."""
    return [response for candidates in sets for response in candidates.responses]


def by_prompt(responses: Sequence[Response]) -> dict[str, list[Response]]:
    """Answers by the id of their prompt, both in the order in which they came."""
    grouped: dict[str, list[Response]] = {}
    for response in responses:
        grouped.setdefault(response.prompt.id, []).append(response)
    return grouped


@dataclass(frozen=True)
class LossOptimism:
    """XPO-style term of a cost fit (paper.md §13): + alpha * mean log policy(y'|x) over the baseline's answers."""

    alpha: float
    answers: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """(prompt token ids, answer token ids) of the baseline's answers."""


@dataclass(frozen=True)
class Delivery:
    """What an engine states after it took over a version."""

    engine: str
    version: int
    sha256: str
    """Hash taken inside the engine's process over the tensors as it consumed them."""
    tensors: int
    seconds: float
    tokenizer: str = ""
    """Fingerprint of the tokenizer that the engine uses (empty in a table)."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of one answer under one limit: the same record in the journal, and from the source to the
    estimate, the certificate, the report and the export."""

    limit: str
    answer: str
    """Its id; the journal holds its prompt, its text and who wrote it."""
    value: float | None
    """In the measure's own unit; of a rate or a logit the share of labels that say yes: of a single one 1 or 0. None:
    it is missing, which is never a number."""
    missing: str = ""
    """Why there is no value."""
    source: str = ""
    """Who measured."""
    opinion: int = 0
    """Tells several measurements of an answer apart: the labels of feedback, or (1) people's audit of a machine's."""
    person: str | None = None
    """Who gave the label, where a person did."""
    chance: float | None = None
    """Of an audit: the probability with which people were asked. None: they were to be asked in any case."""
    against: float | None = None
    """The same measure of the reference's answer to the prompt, for a limit on the difference."""
    at_ms: int = 0
    """When it was written."""


@dataclass(frozen=True, eq=False)
class MeasuredValues:
    """Values of n answers under I limits, each in its measure's own unit; nan: no number. [n, I] each"""

    values: Array
    missing: dict[tuple[int, int], str]
    """Why a source that was asked gave no number; elsewhere nan says that it was not asked."""
    against: Array
    """What limits on a difference to the reference compare with: the value of its answer to the same prompt."""
    people: Array
    """Values by people's audit of what a machine measured; nan: they gave none."""
    chance: Array
    """The chance that people were asked, where they were; 0: they were not."""
    parts: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    """Of an answer without some of its labels: what the others add to their mean, and the share that is missing."""

    @classmethod
    def nothing(cls, answers: int, limits: int) -> MeasuredValues:
        """Nobody was asked yet."""
        values, against, people = np.full((3, answers, limits), np.nan)
        return cls(values, {}, against, people, np.zeros((answers, limits)))


@dataclass(frozen=True, kw_only=True)
class TextsOfFiles:
    """What the files of a run on real text hold besides the prompts and pairs that its rounds use."""

    offline_unsafe: Mapping[str, bool] = field(default_factory=dict)
    """Whether an offline answer is unsafe, by its id, where somebody said so; a cost model's zero comes from it."""
    held_out: Sequence[LabelledPair] = ()
    """Pairs of prompts that the run neither asks nor learns from; the scorecard does."""
    benign: Sequence[Prompt] = ()
    """Harmless requests that only sound alarming, for the scorecard's refusals."""
    certification: Sequence[Prompt] = ()
    """Prompts that certificates alone draw: no fit, exploration or report sees them. Empty: those of the rounds."""
    served: Sequence[Prompt] = ()
    """What users of the run's endpoint gave; rounds ask a share of them, certificates none."""
    verdicts: Sequence[LabelledPair] = ()
    """Pairs of answers to those of which users said different things."""
    certified_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the prompt sets of the prompts of certificates, by their ids."""
    categories: Mapping[str, str] = field(default_factory=dict)
    """Of prompts, by their ids, where their file names one; certificates have bounds of each category."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Good rows of the files that the run does not use, by the reason."""
