"""The explorer: chooses which pairs of answers get compared (contracts.Explorer; paper.md §15, §16).

    candidates -> bonus of each -> one draw from the optimistic policy = y;  a baseline answer = y';  compare (y, y')

It keeps no state that the journal does not hold: feeding it the journalled pairs again, in order and in any grouping,
gives the same explorer. Every draw is seeded by the candidates' ids, so it depends on no earlier draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pddpo_ray.exploration.alternatives import BOTH, EllipticalBonus, Uncertainty, saturation
from pddpo_ray.exploration.bonuses import BonusContext
from pddpo_ray.exploration.design import FISHER_WEIGHT
from pddpo_ray.exploration.features import Features, centres, pool_features
from pddpo_ray.exploration.resampling import (
    ESS_FLOOR,
    bonus_only_base,
    exact_base,
    greedy_weights,
    optimistic_weights,
    resampling_weights,
)
from pddpo_ray.records import HARM, Array, CandidateSet, LabelledPair, Pair, Response, Stage, Verdict, responses_of
from pddpo_ray.registry import code_of
from pddpo_ray.theory.seeds import generator_of


def choose_pairs(
    norms: Callable[[], Array],
    picked: Callable[[int], None],
    count: int,
    *,
    keep: int,
    random_share: float,
    generator: np.random.Generator,
) -> list[int]:
    """Indices of `keep` of `count` pairs, ascending: a random share first, then the most informative one by one.

    `norms()` returns how much each pair would teach, given the picks so far, which `picked(index)` is called with: a
    second pair in the same direction is worth less. The random share ignores the norms: without it nobody would notice
    where the features are blind.
    """
    if not 0 < random_share <= 1:
        raise ValueError(f"random_share must be in (0, 1], got {random_share}")
    if keep >= count:
        return list(range(count))
    draw = generator.choice(count, size=min(keep, math.ceil(random_share * keep)), replace=False)
    indices = [int(index) for index in draw]
    for index in indices:
        picked(index)
    while len(indices) < keep:
        values = np.array(norms(), dtype=np.float64)
        values[indices] = -np.inf
        best = int(values.argmax())
        indices.append(best)
        picked(best)
    return sorted(indices)


EXACT = "exact"
"""For studies: the elliptical bonus on all answers, drawn from the optimistic policy itself."""
PRIOR_SD = 2.0
"""Prior standard deviation of a difference of scores: what the worlds' scores in [-2, 2] spread over."""
THEOREM = "theorem"
"""The same with the bonus held within a round, so that all its draws are from one policy (paper.md §16)."""
SIGNS = {Verdict.FIRST: 1.0, Verdict.SECOND: -1.0}
"""Which answer of a pair won, where a label says so."""
Comparator = Literal["baseline", "max_info"]
Weights = Literal["exact", "bonus_only"]


class OptimisticExplorer:
    """Optimistic choice of what gets labelled. It never decides what is served.

    Args:
        features: answers -> features [n, q] (whitened hidden states of the reference; one-hot in a table).
        baseline: answers of the baseline policy per prompt id; they centre the features and serve as comparators.
            Further prompts come with `meet`.
        beta: KL weight of the run, or a getter of the current one where a limit on the drift moves it.
        multiplier: getter of the current multiplier, the weight of the cost bonus.
        seed: seed of the run.
        k: bonus in posterior standard deviations (alpha of `simhash`); 1 to 2 works everywhere that was tried.
        s0: prior standard deviation of a score difference.
        weight: Fisher information w of one comparison, at most 1/4; `fitted`: what each has at the fitted scores.
        picks: pairs per candidate set, chosen one after another with the uncertainty updated in between.
        bonus: the uncertainty model (see `alternatives`), or a choice without one: `off` draws y evenly from the
            policy's own candidates, `proposals` from all, `greedy` takes those that the policy prefers most against the
            reference. `exact`, for studies, and `theorem` expect all answers as candidates and draw from the optimistic
            policy.
        bonus_settings: settings of a bonus from an installed package.
        comparator: y' from the baseline, or the most informative candidate.
        weights: `exact` importance weights, or `bonus_only` for long answers.
        proposal_weight: weight of a proposal's candidate under `bonus_only`.
        ess_floor: the bonus is tempered until the effective sample size is at least this.
        cost_bonus_scale: factor on the cost bonus; 0 explores the reward's uncertainty alone, which asks for fewer
            possibly harmful texts.
        reward_weight: factor on the reward bonus, from logits to the reward's units.
    """

    def __init__(
        self,
        *,
        features: Features,
        baseline: Mapping[str, Sequence[Response]],
        beta: float | Callable[[], float],
        multiplier: Callable[[], float],
        seed: int,
        k: float = 1.5,
        s0: float = PRIOR_SD,
        weight: float | Literal["fitted"] = FISHER_WEIGHT,
        picks: int = 1,
        bonus: str = "elliptical",
        bonus_settings: BaseModel | None = None,
        comparator: Comparator = "baseline",
        weights: Weights = "exact",
        proposal_weight: float = 0.2,
        ess_floor: float = ESS_FLOOR,
        cost_bonus_scale: float = 1.0,
        reward_weight: float = 1.0,
    ) -> None:
        self._features, self._beta, self._multiplier = features, beta, multiplier
        self._seed, self._k, self._s0, self._picks = seed, k, s0, picks
        self._has_fitted_weight = weight == "fitted"
        self._weight = FISHER_WEIGHT if weight == "fitted" else weight
        self._rows: dict[str, Array] = {}
        self._kind, self._comparator, self._weights = bonus, comparator, weights
        self._settings = bonus_settings
        self._proposal_weight, self._ess_floor, self._cost_bonus_scale = proposal_weight, ess_floor, cost_bonus_scale
        self._reward_weight = reward_weight
        self._baseline: dict[str, Sequence[Response]] = {}
        self._centres: dict[str, Array] = {}
        self._pool: dict[str, Array] = {}
        self._observed_ids: set[str] = set()
        self._metrics: dict[str, float] = {}
        self.meet(baseline)

    @property
    def metrics(self) -> Mapping[str, float]:
        """`explore/...` of the last `choose`."""
        return self._metrics

    def meet(self, baseline: Mapping[str, Sequence[Response]]) -> None:
        """Adds prompts with the baseline's answers to them; a prompt that was met before keeps its own."""
        new_answers = {prompt: answers for prompt, answers in baseline.items() if prompt not in self._baseline}
        if not new_answers:
            return
        pool = pool_features(self._features, new_answers)
        self._baseline |= new_answers
        self._centres |= centres(pool)
        self._pool |= {prompt: rows - self._centres[prompt] for prompt, rows in pool.items()}

    @cached_property
    def _uncertainty(self) -> Uncertainty:
        """The uncertainty model, as wide as the features, which the first prompt shows."""
        dimension = len(next(iter(self._centres.values())))
        run = BonusContext(dimension, self._k, self._s0, self._weight, self._seed)
        uncertainty: Uncertainty = code_of("bonuses", "elliptical" if self._kind == EXACT else self._kind)(
            self._settings, run
        )
        return uncertainty

    def choose(self, candidates: Sequence[CandidateSet]) -> list[Pair]:
        """Up to `picks` pairs per candidate set, in the order in which a labeller sees them (random sides).

        Two equal texts are never paired: nothing can be learned from them. A set in which every candidate equals all
        comparators gives no pair; `explore/skipped` counts that.
        """
        self._uncertainty.start_batch(self._generator("batch", [c.responses[0].id for c in candidates]))
        log = _Log()
        # once: they may live in another process
        multiplier, beta = self._multiplier(), self._beta() if callable(self._beta) else self._beta
        rows = self._centred_features(responses_of(candidates))
        parts = np.split(rows, np.cumsum([len(c.responses) for c in candidates])[:-1])
        pairs = [
            pair
            for candidate_set, part in zip(candidates, parts, strict=True)
            for pair in self._pick_pairs(candidate_set, part, multiplier, beta, log)
        ]
        self._metrics = log.summary() | {
            "explore/pairs": float(len(pairs)),
            "explore/skipped": float(len(candidates) * self._picks - len(pairs)),
            "explore/logdet": self._uncertainty.information,
        }
        return pairs

    def select(self, pairs: Sequence[Pair], keep: int, random_share: float) -> list[Pair]:
        """The `keep` pairs that are worth asking people about, in order: a random share, and those whose difference
        is least known. The uncertainty is updated after every pick."""
        if keep >= len(pairs):
            return list(pairs)
        generator = self._generator("select", [pair.id for pair in pairs])
        self._uncertainty.start_batch(generator)
        rows = self._centred_features([response for pair in pairs for response in (pair.first, pair.second)])
        first, second = rows[::2], rows[1::2]
        indices = choose_pairs(
            lambda: self._uncertainty.distances(first - second),
            lambda index: self._uncertainty.picked(pairs[index].prompt.id, first[index], second[index]),
            len(pairs),
            keep=keep,
            random_share=random_share,
            generator=generator,
        )
        return [pairs[index] for index in indices]

    def update(self, pairs: Sequence[Pair], streams: tuple[Stage, ...] = BOTH) -> None:
        """Remembers compared pairs. A pair that was seen before counts once, so a retry changes nothing.

        `streams` names the labels that exist, where reward and cost were not both answered.
        """
        new_pairs = [pair for pair in pairs if pair.id not in self._observed_ids]
        if not new_pairs:
            return
        features = self._features([response for pair in new_pairs for response in (pair.first, pair.second)])
        for pair, first, second in zip(new_pairs, features[::2], features[1::2], strict=True):
            # Prompts of pairs from files have no baseline answers until a round asks them: the middle of the prompt's
            # first pair stands in. What is learnt from a comparison, the difference, does not depend on it.
            centre = self._centres.setdefault(pair.prompt.id, (first + second) / 2)
            first, second = first - centre, second - centre
            self._observed_ids.add(pair.id)
            if self._has_fitted_weight:
                self._rows[pair.id] = first - second
            self._uncertainty.observe(pair.prompt.id, first, second, streams)

    def learn(self, labelled: Callable[[], Sequence[LabelledPair]]) -> None:
        """Refits the design matrices to all labels so far where `weight` is `fitted`. Pairs that have no label of a
        stream yet count with 1/4."""
        if not self._has_fitted_weight or not self._rows:
            return
        assert isinstance(self._uncertainty, EllipticalBonus)
        labels_by_id = {item.pair.id: (item.helpful, item.label(HARM)) for item in labelled()}
        labels = [labels_by_id.get(name, (Verdict.MISSING, Verdict.MISSING)) for name in self._rows]
        signs = np.array([[SIGNS.get(verdict, 0.0) for verdict in verdicts] for verdicts in labels])
        rows = np.array(list(self._rows.values()))
        for stage, column in zip(BOTH, signs.T, strict=True):
            self._uncertainty.learn(stage, rows, column)

    def bonuses(self, responses: Sequence[Response]) -> tuple[Array, Array]:
        """Reward and cost bonus of any answers under everything observed so far (bonus in the loss). -> [n], [n]"""
        self._uncertainty.start_batch(self._generator("bonuses", []))
        rows = self._centred_features(responses)
        values = [
            self._uncertainty.bonuses(response.prompt.id, row[None])
            for response, row in zip(responses, rows, strict=True)
        ]
        return np.array([float(r[0]) for r, _ in values]), np.array([float(c[0]) for _, c in values])

    def _pick_pairs(
        self, candidates: CandidateSet, rows: Array, multiplier: float, beta: float, log: _Log
    ) -> list[Pair]:
        generator = self._generator("choose", [response.id for response in candidates.responses])
        pairs = []
        mask = np.zeros(len(rows), dtype=bool)
        for pick in range(self._picks):
            weights = self._behaviour_weights(candidates, rows, multiplier, beta, mask, log)
            choice = int(generator.choice(len(rows), p=weights))
            mask |= [response.token_ids == candidates.responses[choice].token_ids for response in candidates.responses]
            other = self._choose_comparator(candidates, rows, choice, generator)
            if other is None:
                continue
            response, other_row = other
            self._uncertainty.picked(candidates.prompt.id, rows[choice], other_row)
            sides = [candidates.responses[choice], response]
            if generator.random() < 0.5:
                sides.reverse()
            pairs.append(Pair(f"{candidates.responses[choice].id}/{response.id}/{pick}", *sides))
        return pairs

    def _behaviour_weights(
        self,
        candidates: CandidateSet,
        rows: Array,
        multiplier: float,
        beta: float,
        mask: NDArray[np.bool_],
        log: _Log,
    ) -> Array:
        """Weights of the candidates under the behaviour policy; `mask` marks texts of earlier picks. -> [n]"""
        versions = np.array([response.policy_version for response in candidates.responses])
        from_policy = versions == versions.max()  # a proposal is always an older version than the round's policy
        log_policy, log_proposal = np.asarray(candidates.log_policy), np.asarray(candidates.log_proposal)
        if self._kind == "off":
            return from_policy / from_policy.sum()
        if self._kind == "proposals":
            return np.full(len(rows), 1.0 / len(rows))
        if self._kind == "greedy":
            return greedy_weights(log_policy - log_proposal, mask)
        reward, cost = self._uncertainty.bonuses(candidates.prompt.id, rows)
        optimism = (self._reward_weight * reward + multiplier * self._cost_bonus_scale * cost) / beta
        if self._kind in (EXACT, THEOREM):
            weights = optimistic_weights(log_policy, optimism)
            log.add(reward, cost, saturation(reward, rows, k=self._k, s0=self._s0), 1.0, 1.0 / float(weights @ weights))
            return weights
        if self._weights == "exact":
            base = exact_base(log_policy, log_proposal)
        else:
            base = bonus_only_base(from_policy, self._proposal_weight)
        weights, tau, ess = resampling_weights(base, optimism, ess_floor=self._ess_floor)
        log.add(reward, cost, saturation(reward, rows, k=self._k, s0=self._s0), tau, ess)
        return weights

    def _choose_comparator(
        self, candidates: CandidateSet, rows: Array, chosen: int, generator: np.random.Generator
    ) -> tuple[Response, Array] | None:
        """The comparator y' of the chosen candidate with its centred features; None where no text differs."""
        tokens = candidates.responses[chosen].token_ids
        if self._comparator == "max_info":
            distances = self._uncertainty.distances(rows[chosen] - rows)
            differs = np.array([response.token_ids != tokens for response in candidates.responses])
            if not differs.any():
                return None
            index = int(np.where(differs, distances, -np.inf).argmax())
            return candidates.responses[index], rows[index]
        pool = self._baseline[candidates.prompt.id]
        options = [index for index, answer in enumerate(pool) if answer.token_ids != tokens]
        if not options:
            return None
        index = options[int(generator.integers(len(options)))]
        return pool[index], self._pool[candidates.prompt.id][index]

    def _centred_features(self, responses: Sequence[Response]) -> Array:
        """phi - phi_base(x). -> [n, q]"""
        return self._features(responses) - np.stack([self._centres[response.prompt.id] for response in responses])

    def _generator(self, purpose: str, ids: Sequence[str]) -> np.random.Generator:
        return generator_of(self._seed, purpose, *ids)


class _Log:
    """Running means of what one `choose` saw."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, float, float, float, float]] = []

    def add(self, reward: Array, cost: Array, saturated: float, tau: float, ess: float) -> None:
        self._rows.append((float(reward.mean()), float(cost.mean()), saturated, tau, ess))

    def summary(self) -> dict[str, float]:
        names = ("mean_bonus_reward", "mean_bonus_cost", "saturation", "tau", "ess")
        means = np.mean(self._rows, axis=0) if self._rows else np.zeros(len(names))
        return {f"explore/{name}": float(value) for name, value in zip(names, means, strict=True)}
