"""Light parts over which the study runs the methods' own modules (pddpo_ray.algorithms) on worlds of known truth.

Fits, scorers, explorer, dual steps and draws are those of runs with log-linear policies; what is left out is what a run
has around them (journal on disk, weight files, delivery checks), so that a run takes seconds. The limit is a rate: a
cost is the chance that a label says unsafe, and a method that fits a cost model reads its logit as that chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
from scipy.special import expit, log_softmax

from lab.studies.comparison.ground import BASELINE_ANSWERS, BETA, LARGEST_LOGIT, REFERENCE, Bonus, Ground, cells
from lab.studies.limits.worlds import PRIOR_SD
from pddpo_lab.methods.explicit_dual import descend
from pddpo_lab.methods.linear_scores import LinearScorer, fit_cost, fit_reward, shift_to_rate
from pddpo_lab.methods.scoring import PolicyScorer, Scorer, UnsafeChances
from pddpo_lab.mle import unbounded_logistic
from pddpo_lab.worlds.log_linear import LogLinear
from pddpo_lab.worlds.tabular.world import draw_answers
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.records import (
    HARM,
    Array,
    CandidateSet,
    CostEstimate,
    LabelledPair,
    Objective,
    Pair,
    PairRow,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.theory.estimates.cost_estimate import mean_with_error
from pddpo_ray.theory.seeds import generator
from pddpo_ray.worlds.oracle import Oracle


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
