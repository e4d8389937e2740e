"""Tabular worlds: finitely many prompts and answers, everything known, and those that are made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.records import HARM, Array, LabelledPair, Pair, Prompt, Response, Verdict
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle
from pddpo_ray.worlds.truth_labeller import Score, WorldLabeller

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class OfflineRow:
    """One offline pair of a world file; a label that is None is drawn from the truth."""

    prompt: int
    first: int
    second: int
    better: int | None = None
    costlier: int | None = None


@dataclass(frozen=True, eq=False)
class TabularWorld:
    """A finite world with its truth, the baseline policy and what the offline pairs cover."""

    oracle: Oracle
    baseline: Array
    """[X, Y]; answers y' of online pairs are drawn from it."""
    covered: Mask
    """[X, Y]; which answers offline pairs may hold."""
    offline_pairs: int = 0
    """Number of offline pairs, where they are drawn."""
    offline_rows: tuple[OfflineRow, ...] = ()
    """The offline pairs, where the world gives them."""
    measures: Mapping[str, Array] = field(default_factory=dict)
    """Further measures of the answers, by name. [X, Y]"""

    @property
    def shape(self) -> tuple[int, int]:
        """(prompts, answers)"""
        return self.oracle.reference.shape[0], self.oracle.reference.shape[1]

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(Prompt(f"p{x}", (x,), f"prompt {x}") for x in range(self.shape[0]))

    @cached_property
    def offline_joint(self) -> Array:
        """Chances of offline pairs: prompts from the prior, two different covered answers, uniformly. [X, Y, Y]

        A prompt with a single covered answer pairs it with itself, which teaches nothing.
        """
        both = self.covered[:, :, None] & self.covered[:, None, :]
        distinct = both & ~np.eye(self.shape[1], dtype=bool)
        allowed = np.where(distinct.any(axis=(1, 2), keepdims=True), distinct, both)
        return self.oracle.prior[:, None, None] * allowed / allowed.sum(axis=(1, 2), keepdims=True)

    @cached_property
    def answers(self) -> tuple[Response, ...]:
        """Every answer to every prompt, prompt by prompt."""
        return tuple(self.response(x, y, f"answer-{x}-{y}") for x, y in np.ndindex(*self.shape))

    def response(self, prompt: int, answer: int, name: str, policy_version: int = 0, seed: int = 0) -> Response:
        """A record of one answer."""
        return Response(name, self.prompts[prompt], (answer,), f"answer {answer}", policy_version, seed)

    def cell(self, response: Response) -> tuple[int, int]:
        """(prompt, answer) indices of a record."""
        return response.prompt.token_ids[0], response.token_ids[0]

    def reward(self, response: Response) -> float:
        return float(self.oracle.reward[self.cell(response)])

    def cost(self, response: Response) -> float:
        return float(self.oracle.cost[self.cell(response)])

    def labeller(self) -> WorldLabeller:
        """The world's truth as a source of labels: comparisons under all costs."""
        return WorldLabeller(
            self.reward, {HARM: self.cost, **{limit.name: self._score(limit) for limit in self.oracle.further}}
        )

    def further_labellers(self) -> dict[str, WorldLabeller]:
        """The truth about each further cost, by its name."""
        return {
            limit.name: WorldLabeller(self.reward, {limit.name: self._score(limit)}, cost_name=limit.name)
            for limit in self.oracle.further
        }

    def _score(self, limit: Limit) -> Score:
        return lambda response: float(limit.cost[self.cell(response)])

    def baseline_pool(self, size: int) -> dict[str, list[Response]]:
        """`size` baseline answers per prompt id, in numbers as close to the baseline's probabilities as can be."""
        return {
            prompt.id: [
                self.response(x, int(y), f"baseline-{x}-{index}")
                for index, y in enumerate(np.repeat(np.arange(self.shape[1]), _quota(self.baseline[x], size)))
            ]
            for x, prompt in enumerate(self.prompts)
        }

    def offline(self, seed: int, pairs: int | None = None) -> list[LabelledPair]:
        """The offline preferences: the world's own rows, or `pairs` draws from covered answers (default: its count)."""
        generator = np.random.default_rng([seed, 0, 101])
        rows = self.offline_rows or self._drawn_rows(self.offline_pairs if pairs is None else pairs, generator)
        questions = [
            Pair(
                f"offline-{index}",
                self.response(row.prompt, row.first, f"offline-{index}-first"),
                self.response(row.prompt, row.second, f"offline-{index}-second"),
            )
            for index, row in enumerate(rows)
        ]
        drawn = self.labeller().compare(questions, seed)
        return [
            LabelledPair(
                item.pair,
                item.helpful if row.better is None else _verdict(row, row.better),
                item.labels if row.costlier is None else {**item.labels, HARM: _verdict(row, row.costlier)},
            )
            for row, item in zip(rows, drawn, strict=True)
        ]

    def unconfined(self, seed: int, pairs: int) -> list[LabelledPair]:
        """Pairs of two different answers of the whole reference, labelled by the truth."""
        generator = np.random.default_rng([seed, 0, 102])
        distinct = self.oracle.reference[:, :, None] * self.oracle.reference[:, None, :]
        distinct = distinct * ~np.eye(self.shape[1], dtype=bool)
        joint = self.oracle.prior[:, None, None] * distinct
        cells = generator.choice(joint.size, size=pairs, p=joint.ravel() / joint.sum())
        drawn = enumerate(zip(*np.unravel_index(cells, joint.shape), strict=True))
        questions = [
            Pair(
                f"extra-{index}",
                self.response(int(x), int(a), f"extra-{index}-first"),
                self.response(int(x), int(b), f"extra-{index}-second"),
            )
            for index, (x, a, b) in drawn
        ]
        return self.labeller().compare(questions, seed)

    def _drawn_rows(self, pairs: int, generator: np.random.Generator) -> tuple[OfflineRow, ...]:
        joint = self.offline_joint
        cells = generator.choice(joint.size, size=pairs, p=joint.ravel() / joint.sum())
        return tuple(
            OfflineRow(int(x), int(a), int(b)) for x, a, b in zip(*np.unravel_index(cells, joint.shape), strict=True)
        )


def draw_answers(tables: Array, uniforms: Array) -> NDArray[np.int64]:
    """Answers by inversion. tables [n, Y], uniforms [..., n] -> [..., n]"""
    cumulative = np.cumsum(tables, axis=-1)
    # divided by its end, or rounding could leave a uniform close to 1 on an answer of probability 0
    cumulative = cumulative / cumulative[:, -1:]
    return np.sum(uniforms[..., None] >= cumulative, axis=-1).astype(np.int64)


def trap_world() -> TabularWorld:
    """4 prompts x 8 answers whose best feasible answers are in no offline pair and outside the baseline.

    The answers 4-7 have 2 % each under the reference; answer 6 is very cheap and good, answer 7 better but costly, 4
    and 5 are bad: a policy that stays with the covered answers 0-3 always loses 0.464.
    """
    reward = (
        (1.0034, 0.3360, -0.4775, -1.4510, -1.0298, -0.0527, 1.2570, 1.8444),
        (1.0747, 0.0153, -0.4433, -1.4096, -0.9320, -0.0137, 1.1621, 1.8963),
        (1.0825, 0.1797, -0.6153, -1.3314, -1.0870, -0.1514, 1.2395, 1.7829),
        (0.8080, 0.1186, -0.6468, -1.5193, -1.1492, 0.0037, 1.2897, 1.8267),
    )
    cost = (
        (-0.2744, 0.0385, -0.5283, 0.3700, 1.0545, 0.6043, -1.5207, 0.5186),
        (-0.1652, 0.0248, -0.4901, 0.2715, 0.9338, 0.4162, -1.6734, 0.6126),
        (-0.1472, -0.0739, -0.4614, 0.4822, 1.0627, 0.5402, -1.4044, 0.4668),
        (-0.1386, 0.0603, -0.7768, 0.4347, 0.9750, 0.5782, -1.5439, 0.5982),
    )
    reference = np.tile((0.35, 0.25, 0.22, 0.1, 0.02, 0.02, 0.02, 0.02), (4, 1))
    covered = np.tile(np.arange(8) < 4, (4, 1))
    oracle = Oracle(np.full(4, 0.25), reference, np.array(reward), np.array(cost), beta=0.1)
    return TabularWorld(oracle, _confined(reference, covered), covered, offline_pairs=400)


def two_limits_world() -> TabularWorld:
    """The trap world with a limit on a second cost, `privacy`, whose cheap answers are dear under the first.

    Answer 6, which pays for the good answer 7 under the first limit, breaks the second; answer 0 keeps both a little.
    Both limits bind at the optimum: lambda* = 0.441 and 0.324.
    """
    privacy = (
        (-0.4999, 0.1179, -0.3164, 0.1466, 0.3727, 0.2405, 1.4036, -0.0196),
        (-0.5295, 0.0628, -0.2706, 0.2214, 0.4063, 0.2442, 1.3982, -0.0583),
        (-0.5807, 0.0725, -0.4141, 0.1226, 0.2895, 0.2859, 1.3240, -0.0837),
        (-0.4906, 0.0888, -0.4510, 0.1677, 0.3971, 0.3068, 1.3082, -0.1287),
    )
    world = trap_world()
    return replace(world, oracle=replace(world.oracle, further=(Limit("privacy", np.array(privacy)),)))


def random_world(seed: int, *, prompts: int = 4, answers: int = 8, beta: float = 0.1, pairs: int = 400) -> TabularWorld:
    """A world whose limit binds and whose offline pairs cover the half of the answers that pi* uses least.

    Draws are repeated until the unconstrained optimum breaks the limit and the covered answers alone can keep it.
    """
    generator = np.random.default_rng([seed, prompts, answers])
    while True:
        reference = generator.dirichlet(np.ones(answers), prompts)
        reward = np.clip(generator.normal(size=(prompts, answers)), -2.0, 2.0)
        cost = np.clip(generator.normal(size=(prompts, answers)), -2.0, 2.0)
        oracle = Oracle(generator.dirichlet(5.0 * np.ones(prompts)), reference, reward, cost, beta)
        if oracle.g(oracle.policy(0.0)) <= 0.05:
            continue
        try:
            rank = np.argsort(np.argsort(oracle.optimum.policy, axis=1), axis=1)
            covered = rank < answers // 2
            oracle.covered_only(covered)
        except InfeasibleError:
            continue
        return TabularWorld(oracle, _confined(reference, covered), covered, offline_pairs=pairs)


def rare_world(
    seed: int, *, prompts: int = 4, answers: int = 8, beta: float = 0.1, pairs: int = 400, frequency: float = 0.02
) -> TabularWorld:
    """A random world whose uncovered answers have 2 % each under the reference, as in the trap world, or `frequency`.

    Draws are repeated until the limit binds on all answers and on the covered ones, and covered answers alone lose
    between 0.3 and 1.2 of gap: so methods differ in how they keep the limit, and only rare answers close the gap.
    """
    generator = np.random.default_rng([seed, prompts, answers, 1])
    covered = np.tile(np.arange(answers) < answers // 2, (prompts, 1))
    common = 1.0 - frequency * (answers - answers // 2)
    while True:
        reference = np.full((prompts, answers), frequency)
        reference[:, : answers // 2] = common * generator.dirichlet(3.0 * np.ones(answers // 2), prompts)
        reward = np.clip(generator.normal(size=(prompts, answers)), -2.0, 2.0)
        cost = np.clip(generator.normal(size=(prompts, answers)), -2.0, 2.0)
        oracle = Oracle(np.full(prompts, 1.0 / prompts), reference, reward, cost, beta)
        if oracle.g(oracle.policy(0.0)) <= 0.05:
            continue
        try:
            best = oracle.covered_only(covered)
        except InfeasibleError:
            continue
        gap = oracle.gap_of(best.f, best.g)
        if best.multiplier > 0.05 and 0.3 <= gap <= 1.2 and 0.1 <= oracle.optimum.multiplier <= 0.8:
            return TabularWorld(oracle, _confined(reference, covered), covered, offline_pairs=pairs)


def full_coverage(world: TabularWorld, pairs: int) -> TabularWorld:
    """The same truth with offline pairs over all answers."""
    return TabularWorld(world.oracle, world.baseline, np.ones(world.shape, dtype=bool), pairs)


def _verdict(row: OfflineRow, answer: int) -> Verdict:
    return Verdict.FIRST if answer == row.first else Verdict.SECOND


def _confined(reference: Array, covered: Mask) -> Array:
    table = np.where(covered, reference, 0.0)
    return np.asarray(table / table.sum(axis=1, keepdims=True))


def _quota(probabilities: Array, size: int) -> NDArray[np.int64]:
    """Whole numbers that sum to `size`, by the largest remainders of size * probability. [Y] -> [Y]"""
    shares = probabilities * size
    counts = np.floor(shares).astype(np.int64)
    order = np.argsort(-(shares - counts), kind="stable")
    counts[order[: size - int(counts.sum())]] += 1
    return counts
