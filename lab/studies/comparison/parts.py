"""Light parts over which the study runs the methods' own modules (pddpo_ray.algorithms) on worlds of known truth.

Fits, scorers, explorer, dual steps and draws are those of runs with log-linear policies; what is left out is what a run
has around them (journal on disk, weight files, delivery checks), so that a run takes seconds. The limit is a rate: a
cost is the chance that a label says unsafe, and a method that fits a cost model reads its logit as that chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, cast

import numpy as np
from scipy.special import expit, log_softmax, softmax

from lab.studies.limits.run import covariance
from lab.studies.limits.worlds import PRIOR_SD, RARE, Indices, Twin, phrase_frequencies
from lab.studies.limits.worlds import Labels as Measured
from pddpo_ray.algorithms.stages import AtOnce, Parts
from pddpo_ray.config import DrawnFamilyConfig, RateLimitConfig
from pddpo_ray.contracts import Explorer, Feedback, Scorer, Trainer
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.journal import Journal
from pddpo_ray.limits.reading import stated_limits
from pddpo_ray.parts.held_limit import labelled_limits
from pddpo_ray.parts.label_estimates import LabelEstimates
from pddpo_ray.parts.limits import LimitsController
from pddpo_ray.records import (
    HARM,
    Array,
    CandidateSet,
    CostEstimate,
    Decoding,
    LabelledPair,
    LossBonus,
    Objective,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Stage,
    Verdict,
)
from pddpo_ray.scorers.method_scores import PolicyScorer, UnsafeChances
from pddpo_ray.scoring.linear_scores import LinearScorer, fit_cost, fit_reward
from pddpo_ray.theory.cost_estimate import mean_with_error, shift_to_rate
from pddpo_ray.theory.dual import DampedNewton, DualState, ascend
from pddpo_ray.theory.explicit_dual import descend
from pddpo_ray.theory.matrix_dual import ascend_all
from pddpo_ray.theory.mle import unbounded_logistic
from pddpo_ray.theory.seeds import generator
from pddpo_ray.worlds.drawn_text import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.log_linear import LogLinear, phrase_blocks, slot_sizes
from pddpo_ray.worlds.log_linear_parts import decoded_by_slot
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.tabular import draw_answers
from pddpo_ray.worlds.text_family import drawn_grammar

Bonus = Literal["elliptical", "proposals", "off"]
LIMIT, BETA, TOP_P = 0.05, 0.2, 0.9
REFERENCE = PolicyVersion(0, "reference", "", "")
BASELINE_ANSWERS, NEVER, LARGEST_LOGIT = 8, 1e-300, 6.0


@dataclass(frozen=True, eq=False)
class Ground:
    """A drawn text world under a rate limit. `oracle.cost` [X, Y] is the chance of a label "unsafe"."""

    oracle: Oracle
    policies: LogLinear
    baseline: Array
    """Nucleus of the reference, which writes no rare phrase. [X, Y]"""
    labeller: Oracle
    """Whose reward and cost the labels of a run are drawn from: the truth's own, or those of models."""

    def features(self, responses: Sequence[Response]) -> Array:
        return self.policies.features(*cells(responses))


def fair_ground(seed: int, rare: float = RARE) -> Ground:
    """The demo's family under a rate of 5 %, the reference a product of phrase frequencies, `rare` for rare phrases. A
    seed whose limit does not bind is drawn on."""
    family = DrawnFamilyConfig(limit=RateLimitConfig(at_most=LIMIT))
    for number in count(seed, 100_000):
        grammar = drawn_grammar(family, number)
        log_reference = phrase_frequencies(grammar, number, rare)
        spec = DrawnWorldSpec(seed=number, family=family, beta=BETA, cost_max=LARGEST_LOGIT)
        made = build_drawn_world(spec, np.log(0.995) + log_reference, grammar).oracle
        oracle = replace(made, reference=softmax(log_reference, axis=1), reward=made.reward[:, :-1],
                         cost=made.cost[:, :-1])  # fmt: skip
        if 0.05 < oracle.optimum.multiplier < 20.0:
            break
    policies = LogLinear(
        log_softmax(log_reference, axis=1), phrase_blocks(grammar, slots=1.0, topics=0.5, interactions=0.5)
    )
    narrow, sizes = Decoding(top_p=TOP_P), slot_sizes(grammar)
    baseline = np.stack([decoded_by_slot(row, sizes, narrow) for row in policies.log_reference])
    return Ground(oracle, policies, baseline, labeller=oracle)


def with_models(ground: Ground, seed: int, pairs: int) -> Ground:
    """The same world, its labels drawn from a reward and a cost model: linear in the policies' features and a constant,
    fitted on `pairs` of the reference's answers that the truth compared, each answer with a safety label."""
    trainer, truth = Solved(ground.policies), Truth(ground.oracle, seed, frozenset({"helpful", "harmful"}))
    draws = Draws(trainer, Rounds(), seed, 2)
    labelled = truth.compare(draws.pairs(pairs, ground.oracle.reference))
    asked = [one for item in labelled for one in (item.pair.first, item.pair.second)]
    unsafe = dict(zip([one.id for one in asked], truth.unsafe(asked) > 0.5, strict=True))
    shape = ground.oracle.reference.shape
    everything = [
        Response(f"{prompt.id}-{y}", prompt, (y,), "", 0, 0) for prompt in draws.prompts for y in range(shape[1])
    ]
    reward, chance = (column.reshape(shape) for column in models_of(ground, labelled, unsafe)(everything))
    return replace(ground, labeller=replace(ground.oracle, reward=reward, cost=chance))


def models_of(ground: Ground, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> UnsafeChances:
    """A reward and a cost model, linear in the policies' features and a constant; the cost is read as a chance."""

    def features(responses: Sequence[Response]) -> Array:
        rows = ground.features(responses)
        return np.column_stack([rows, np.ones(len(rows))])

    ridge = PRIOR_SD**-2
    weights = fit_reward(features, labelled, ridge=ridge), fit_cost(features, labelled, unsafe, ridge=ridge)
    return UnsafeChances(LinearScorer(features, *weights, 2.0, LARGEST_LOGIT))


def cells(responses: Sequence[Response]) -> tuple[Indices, Indices]:
    """Rows and columns of answers. -> [n], [n]"""
    places = [(one.prompt.token_ids[0], one.token_ids[0]) for one in responses]
    prompts, answers = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return prompts, answers


class Rounds:
    """What the methods ask of a journal, in memory."""

    def __init__(self) -> None:
        self.round, self.next_round = 0, 1
        self.by_round: dict[int, PolicyVersion] = {}

    def rounds(self, total: int) -> Iterator[int]:
        for self.round in range(1, total + 1):
            yield self.round

    def dual_steps(self) -> list[object]:
        return []

    def phases(self, like: str) -> list[object]:
        return []

    @property
    def policies(self) -> list[PolicyVersion]:
        return list(self.by_round.values())


class Solved:
    """Satisfies contracts.Trainer: the most probable weights under a stage's loss and a normal prior. Equal fits are
    solved once; a stage's temperature scales the solution."""

    def __init__(self, policies: LogLinear) -> None:
        self._policies = policies
        self.tables: list[Array] = [policies.log_reference]
        """log-probabilities by the number of the version. [X, Y] each"""
        self._known: dict[bytes, Array] = {}
        self.models: dict[Hashable, UnsafeChances] = {}
        """Reward and cost models by the labels that they were fitted on."""

    def fit(self, objective: Objective, rows: Sequence[PairRow]) -> PolicyVersion:
        if not np.isfinite(objective.temperature):  # a multiplier of 0: the stage's policy is its base
            return self.tilted(objective.base, np.zeros_like(self.tables[0]))
        scores = self._scores(rows, np.array(objective.margins))
        return self.tilted(objective.base, scores / objective.temperature)

    def tilted(self, base: PolicyVersion, scores: Array) -> PolicyVersion:
        """The policy proportional to base * exp(scores). [X, Y]"""
        self.tables.append(log_softmax(self.tables[base.number] + scores, axis=1))
        number = len(self.tables) - 1
        return PolicyVersion(number, f"policy-{number}", "", "")

    def begin(self, objective: Objective, rows: Sequence[PairRow]) -> None:
        """Nothing waits here."""

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return np.asarray(self.tables[policy.number][cells(responses)])

    def _scores(self, rows: Sequence[PairRow], margins: Array) -> Array:
        places = np.array([(*row.prompt, *row.chosen, *row.rejected) for row in rows], dtype=np.int64)
        key = places.tobytes() + margins.tobytes()
        if key not in self._known:
            prompts, chosen, rejected = places.T
            differences = self._policies.features(prompts, chosen) - self._policies.features(prompts, rejected)
            given = margins if len(margins) else None
            theta = unbounded_logistic(differences, ridge=PRIOR_SD**-2, margins=given, tolerance=1e-9)
            self._known[key] = self._policies.scores(theta)
        return self._known[key]


class Draws:
    """Satisfies contracts.Rollout and contracts.Prompts: exact draws from tables."""

    def __init__(self, trainer: Solved, journal: Rounds, seed: int, candidates: int) -> None:
        self._trainer, self._journal, self._candidates = trainer, journal, candidates
        self._draws, self._names = generator(seed, "answers"), count()
        self.prompts = [Prompt(f"p{x}", (x,), "") for x in range(len(trainer.tables[0]))]

    def draw(self, number: int) -> list[Prompt]:
        """Every prompt as often, to within one."""
        order = self._draws.permutation(len(self.prompts))
        return [self.prompts[order[index % len(order)]] for index in range(number)]

    def publish(self, policy: PolicyVersion) -> None:
        if policy.number:
            self._journal.by_round[self._journal.round] = policy

    def sample(
        self, prompts: Sequence[Prompt], policy: PolicyVersion, pair_prompts: Sequence[Prompt] = (), each: int = 1
    ) -> list[Response]:
        wanted = [prompt for prompt in prompts for _ in range(each)]
        return self.answers(wanted, np.exp(self._trainer.tables[policy.number]), policy.number)

    def answers(self, prompts: Sequence[Prompt], table: Array, version: int) -> list[Response]:
        """One answer to each prompt from a table of chances [X, Y]."""
        rows = np.array([prompt.token_ids[0] for prompt in prompts], dtype=np.int64)
        drawn = draw_answers(table[rows], self._draws.random(len(rows)))
        return [
            Response(f"a{next(self._names)}", prompt, (int(answer),), "", version, 0)
            for prompt, answer in zip(prompts, drawn, strict=True)
        ]

    def candidates(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[CandidateSet]:
        """Half of the policy, half of the reference."""
        half = self._candidates // 2
        sets = []
        for prompt in prompts:
            own = self.sample([prompt] * (self._candidates - half), policy)
            answers = [*own, *self.sample([prompt] * half, REFERENCE)]
            chances = (tuple(self._trainer.log_probs(one, answers).tolist()) for one in (policy, REFERENCE))
            sets.append(CandidateSet(prompt, tuple(answers), *chances))
        return sets

    def pairs(self, number: int, table: Array) -> list[Pair]:
        """Pairs of two different answers from a table of chances."""
        made = list[Pair]()
        while len(made) < number:
            prompts = self.draw(number)
            both = zip(self.answers(prompts, table, 0), self.answers(prompts, table, 0), strict=True)
            made += [Pair(f"{first.id}-{second.id}", first, second) for first, second in both
                     if first.token_ids != second.token_ids]  # fmt: skip
        return made[:number]


class Truth:
    """Satisfies contracts.Feedback: labels of a world's numbers, every one counted. `kinds` are what pairs are asked
    for."""

    def __init__(self, oracle: Oracle, seed: int, kinds: frozenset[str]) -> None:
        self._oracle, self._kinds, self._draws = oracle, kinds, generator(seed, "labels")
        self.spent: Counter[str] = Counter()

    def open_safety(self, items: Sequence[Response], labels_each: int) -> None:
        """Nobody has to begin early."""

    def safety(self, items: Sequence[Response], labels_each: int, constraint: str | None = None) -> list[SafetyLabels]:
        unsafe = self.unsafe(items) if items else np.zeros(0)
        return [
            SafetyLabels(one, (Verdict.UNSAFE if bit else Verdict.SAFE,))
            for one, bit in zip(items, unsafe, strict=True)
        ]

    def unsafe(self, items: Sequence[Response]) -> Array:
        """One label of each answer, 1 for unsafe. -> [n]"""
        self.spent["safety"] += len(items)
        return (self._draws.random(len(items)) < self._oracle.cost[cells(items)]).astype(np.float64)

    def compare(self, pairs: Sequence[Pair]) -> list[LabelledPair]:
        logits = np.log(self._oracle.cost) - np.log1p(-self._oracle.cost)
        helpful = self._wins("helpful", pairs, self._oracle.reward)
        harmful = self._wins("harmful", pairs, logits)
        return [
            LabelledPair(pair, better, {HARM: costlier})
            for pair, better, costlier in zip(pairs, helpful, harmful, strict=True)
        ]

    def _wins(self, kind: str, pairs: Sequence[Pair], scores: Array) -> list[Verdict]:
        if kind not in self._kinds or not pairs:
            return [Verdict.ABSTAIN] * len(pairs)
        self.spent[kind] += len(pairs)
        first, second = (scores[cells(side)] for side in ([one.first for one in pairs], [one.second for one in pairs]))
        won = self._draws.random(len(pairs)) < expit(first - second)
        return [Verdict.FIRST if one else Verdict.SECOND for one in won]


class Known:
    """Satisfies contracts.Preferences."""

    def __init__(self) -> None:
        self.labelled: list[LabelledPair] = []

    def extend(self, labelled: Sequence[LabelledPair]) -> None:
        self.labelled += labelled

    @property
    def reward(self) -> list[PairRow]:
        return [row_of(item, item.helpful) for item in self.labelled if item.helpful is not Verdict.ABSTAIN]

    @property
    def cost(self) -> list[PairRow]:
        """The cheaper answer is the chosen one."""
        turned = {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}
        return [row_of(item, turned[item.label(HARM)]) for item in self.labelled if item.label(HARM) in turned]

    def cost_of(self, constraint: str) -> list[PairRow]:
        return self.cost


def row_of(item: LabelledPair, chosen: Verdict) -> PairRow:
    first, second = item.pair.first, item.pair.second
    if chosen is Verdict.SECOND:
        first, second = second, first
    return PairRow(item.pair.id, item.pair.prompt.token_ids, first.token_ids, second.token_ids)


class OneDual:
    """Satisfies contracts.Dual: one multiplier by one of the rules of `theory.dual`."""

    def __init__(self, state: DualState) -> None:
        self._state = state
        self.message = None

    @property
    def multiplier(self) -> float:
        return self._state.multiplier

    @property
    def multipliers(self) -> dict[str, float]:
        return {"cost": self.multiplier}

    def step(self, estimates: Sequence[CostEstimate], covariance: Array | None = None) -> dict[str, float]:
        for estimate in estimates:
            self._state, _ = ascend(self._state, estimate)
        return self.multipliers

    def observe(
        self, estimates: Sequence[CostEstimate], *, multiplier: float | None = None, following: float | None = None
    ) -> None:
        """Nobody reads it."""


class RateLimit:
    """Satisfies contracts.Limits: one rate, its stage the regression on measured values, its multiplier by the joint
    Newton step, or by adaLag's rule on the newest `window` answers."""

    on_drift, temperature = False, BETA

    def __init__(
        self, ground: Ground, trainer: Solved, truth: Truth, state: DualState, window: int
    ) -> None:  # fmt: skip
        self._trainer, self._truth, self._state, self._window = trainer, truth, state, window
        self._learner, self._asked = Twin(ground.policies), set[str]()
        self._labels = Measured(ground.oracle.cost.shape, 1)
        self.base = self._policy = REFERENCE
        """The reward policy of the round, and the round's policy."""
        self.answered = list[tuple[Indices, Indices, Array]]()
        """Prompts, answers and labels of each round's estimate. [n] each"""

    @property
    def multiplier(self) -> float:
        return self._state.multiplier

    def stages(self, trainer: Trainer, preferences: object, policy: PolicyVersion) -> PolicyVersion:
        self.base = policy
        scores = self._learner.measured(self._labels, np.array([self.multiplier]))
        self._policy = self._trainer.tilted(policy, -scores / BETA)
        return self._policy

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Both answers of each pair; one of the baseline that was in a pair before is not asked about again."""
        answers = {one.id: one for pair in pairs for one in (pair.first, pair.second) if one.id not in self._asked}
        self._asked |= set(answers)
        self._measure(list(answers.values()))

    def open(self, answers: Sequence[Response]) -> None:
        """The truth answers at once."""

    def estimates(self, answers: Sequence[Response]) -> list[CostEstimate]:
        """Methods that ask for them have a limit by labels."""
        raise NotImplementedError

    def observe(self, answers: Sequence[Response], multiplier: float | None = None) -> None:
        raise NotImplementedError

    def step(self, answers: Sequence[Response]) -> None:
        drawn = self._measure(answers)
        prompts, chosen = cells(answers)
        self.answered.append((prompts, chosen, drawn))
        (limit,) = self._state.limits
        newton = isinstance(limit.rule, DampedNewton)
        seen = drawn if newton else np.concatenate([values for *_, values in self.answered])[-self._window :]
        estimate = CostEstimate(float(seen.mean()), 0.0, len(seen), 1, "unsafe_rate", limit.name)
        covariance = self._covariance(prompts, chosen, drawn[:, None]) if newton else None
        self._state, _ = ascend_all(self._state, [estimate], covariance)

    def _covariance(self, prompts: Indices, answers: Indices, drawn: Array) -> Array:
        """Of the chances within prompts; what the policy had learned tells the noise of labels, as in runs."""
        base, policy = (self._trainer.tables[one.number][prompts, answers] for one in (self.base, self._policy))
        learned, multipliers = BETA * (base - policy), np.array([self.multiplier])
        return covariance(self._labels, prompts, answers, drawn, multipliers, learned)

    def _measure(self, answers: Sequence[Response]) -> Array:
        drawn = self._truth.unsafe(answers)
        self._labels.measure(*cells(answers), drawn[:, None])
        return drawn


class Scores:
    """Satisfies contracts.Scoring: linear models of the twin's features and a constant, or two policies."""

    held = False

    def __init__(
        self, ground: Ground, trainer: Solved, draws: Draws, journal: Rounds, *, aim: float, upper: float,
        answers: int, ladder: float, seed: int,
    ) -> None:  # fmt: skip
        self._ground, self._trainer, self._draws, self._journal = ground, trainer, draws, journal
        self.threshold, self.upper, self._answers, self._ladder, self._seed = aim, upper, answers, ladder, seed
        self.multiplier = 0.0

    def models(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> Scorer:
        key = (tuple((one.helpful, one.label(HARM)) for one in labelled), tuple(unsafe.values()))
        if key not in self._trainer.models:
            self._trainer.models[key] = models_of(self._ground, labelled, unsafe)
        return self._trainer.models[key]

    def trained(self, labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool]) -> tuple[Scorer, None]:
        return self.models(labelled, unsafe), None

    def policies(self, reference: PolicyVersion, helpful: PolicyVersion, harmless: PolicyVersion) -> Scorer:
        return PolicyScorer(self._trainer.log_probs, reference, helpful, harmless, BETA)

    def anchored(self, scorer: Scorer, answers: Sequence[Response], reference_cost: float) -> Scorer:
        """The zero of the cost where the reference's mean chance is what its labels say."""
        logits = scorer(answers)[1].reshape(len(self._draws.prompts), -1)
        return UnsafeChances(scorer, shift_to_rate(logits, reference_cost))

    def reference_answers(self, reference: PolicyVersion) -> list[Response]:
        return self._draws.sample(self._draws.prompts, reference, each=self._answers)

    def explicit_multiplier(self, scorer: Scorer, answers: Sequence[Response]) -> float:
        rewards, costs = (values.reshape(len(self._draws.prompts), -1) for values in scorer(answers))
        self.multiplier = descend(rewards, self.threshold - costs, BETA, upper=self.upper).multiplier
        return self._ladder * self.multiplier

    def pseudo_labels(self, pairs: Sequence[Pair], scorer: Scorer, multiplier: float) -> list[PairRow]:
        rewards, costs = scorer([answer for pair in pairs for answer in (pair.first, pair.second)])
        first, second = (rewards - multiplier * costs).reshape(-1, 2).T
        drawn = generator(self._seed, self._journal.round, "pseudo-labels").random(len(pairs)) < expit(first - second)
        verdicts = [Verdict.FIRST if one else Verdict.SECOND for one in drawn]
        return [row_of(LabelledPair(pair, one, {HARM: one}), one) for pair, one in zip(pairs, verdicts, strict=True)]

    def cost_of(self, scorer: Scorer, answers: Sequence[Response]) -> CostEstimate:
        value, error = mean_with_error(scorer(answers)[1])
        return CostEstimate(value, error, len(answers), 0, "cost_model")


class Chooser:
    """Satisfies contracts.Explorer: the optimistic explorer of runs, with names of its own for its pairs."""

    def __init__(self, ground: Ground, draws: Draws, multiplier: Callable[[], float], seed: int, picks: int,
                 bonus: Bonus) -> None:  # fmt: skip
        baseline = {one.id: draws.answers([one] * BASELINE_ANSWERS, ground.baseline, 0) for one in draws.prompts}
        self._names = count()
        self._explorer = OptimisticExplorer(
            features=ground.features, baseline=baseline, beta=BETA, multiplier=lambda: multiplier() / 4.0,
            seed=seed, picks=picks, bonus=bonus,
        )  # fmt: skip

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]:
        return [replace(pair, id=f"x{next(self._names)}") for pair in self._explorer.choose(candidates)]

    def update(self, pairs: Sequence[Pair]) -> None:
        self._explorer.update(pairs)

    def loss_bonus(self, stage: Stage, rows: Sequence[PairRow], labelled: Sequence[LabelledPair]) -> LossBonus:
        return LossBonus()


def mean_rate(labelled: Sequence[SafetyLabels]) -> CostEstimate:
    """Share of the labels that say unsafe; nothing was asked where nobody reads it."""
    unsafe = np.array([one.labels[0] is Verdict.UNSAFE for one in labelled], dtype=np.float64)
    value, error = mean_with_error(unsafe) if len(unsafe) > 1 else (0.0, 0.0)
    return CostEstimate(value, error, len(unsafe), 1, "unsafe_rate")


def parts_of(
    journal: Rounds, trainer: Solved, draws: Draws, truth: Truth, known: Known, dual: OneDual,
    scores: Scores, limit: RateLimit | None, explorer: Chooser | None,
) -> Parts:  # fmt: skip
    """The methods' parts. The journal is light: the methods ask it for rounds and policies alone."""
    stated = stated_limits({"limits": {HARM: {"rate": {"world": HARM}, "at_most": f"{100 * LIMIT} %"}}}, "bench")
    nothing = cast(Any, None)
    labels = LabelEstimates([HARM], cast(Feedback, truth), mean_rate, labels_each=1)
    by_labels = LimitsController(
        cast(Journal, journal), labelled_limits(stated), None, dual, beta=BETA, by_covariance=False, drift=nothing,
        log_probs=nothing, reference=nothing, seed=0, due=AtOnce(), labels=labels,
    )  # fmt: skip
    return Parts(
        journal=cast(Journal, journal), trainer=cast(Trainer, trainer), rollout=draws, feedback=cast(Feedback, truth),
        dual=dual, prompts=draws, preferences=known, explorer=cast(Explorer, explorer),
        scoring=scores, limits=limit or by_labels,
    )  # fmt: skip
