"""Tabular worlds: finitely many prompts and answers, everything known (files of `pddpo verify --world`).

A world file is JSON:

    {"prior": [X], "reference": [X][Y], "reward": [X][Y], "cost": [X][Y], "baseline": [X][Y],
     "beta": 0.1, "reward_max": 2, "cost_max": 2, "threshold": 0,
     "offline": {"covered": [X][Y] of booleans, "pairs": 400}}

or with the offline pairs themselves, whose labels are drawn from the truth where they are not given:

    "offline": {"rows": [{"prompt": 0, "answers": [1, 3], "better": 1, "costlier": 3}, ...]}

A world may hold further measures of its answers, which limits name (a rate lies in [0, 1]):

    "measures": {"refuses": [X][Y], "length": [X][Y]}

A world may limit further costs, each by its name:

    "further": {"privacy": {"cost": [X][Y], "threshold": 0}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.config import TabularWorldConfig
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array, LabelledPair, Pair, Prompt, Response, Verdict
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle
from pddpo_ray.worlds.truth_labeller import Score, WorldLabeller

Mask = NDArray[np.bool_]

TABLES = ("reference", "reward", "cost", "baseline")
NUMBERS = ("beta", "reward_max", "cost_max", "threshold")
KEYS = ("prior", *TABLES, *NUMBERS, "offline")
FURTHER, MEASURES = "further", "measures"


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
        """The world's truth as a source of labels: safety of the first cost, comparisons under all."""
        return WorldLabeller(self.reward, self.cost, {limit.name: self._score(limit) for limit in self.oracle.further})

    def further_labellers(self) -> dict[str, WorldLabeller]:
        """The truth about each further cost, by its name."""
        return {limit.name: WorldLabeller(self.reward, self._score(limit)) for limit in self.oracle.further}

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
                item.harmful if row.costlier is None else _verdict(row, row.costlier),
                item.further,
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
    and 5 are bad: who stays with the covered answers 0-3 loses 0.464 for ever.
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


def rare_world(seed: int, *, prompts: int = 4, answers: int = 8, beta: float = 0.1, pairs: int = 400) -> TabularWorld:
    """A random world whose uncovered answers have 2 % each under the reference, as in the trap world.

    Draws are repeated until the limit binds on all answers and on the covered ones, and covered answers alone lose
    between 0.3 and 1.2 of gap: so methods differ in how they keep the limit, and only rare answers close the gap.
    """
    generator = np.random.default_rng([seed, prompts, answers, 1])
    covered = np.tile(np.arange(answers) < answers // 2, (prompts, 1))
    common = 1.0 - 0.02 * (answers - answers // 2)
    while True:
        reference = np.full((prompts, answers), 0.02)
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


def tabular_world(settings: TabularWorldConfig) -> TabularWorld:
    """The world file if there is one, else the named world."""
    if settings.path is not None:
        return load_world(settings.path)
    if settings.name == "random":
        return random_world(settings.seed)
    if settings.name == "rare":
        return rare_world(settings.seed)
    return two_limits_world() if settings.name == "two-limits" else trap_world()


def full_coverage(world: TabularWorld, pairs: int) -> TabularWorld:
    """The same truth with offline pairs over all answers."""
    return TabularWorld(world.oracle, world.baseline, np.ones(world.shape, dtype=bool), pairs)


def load_world(path: str | Path) -> TabularWorld:
    """World of a file. Raises UserError that names file, key and remedy."""
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"world file {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"world file {file} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"world file {file} is not JSON: line {error.lineno}: {error.msg}") from None
    return world_of(content, str(file))


def world_of(content: Any, where: str = "world") -> TabularWorld:
    """World of parsed JSON. Raises UserError; `where` names the source in its message."""
    if not isinstance(content, Mapping):
        raise UserError(f"{where}: expected an object with the keys {', '.join(KEYS)}")
    for key in content:
        if key not in (*KEYS, FURTHER, MEASURES):
            near = get_close_matches(str(key), (*KEYS, FURTHER, MEASURES), 1)
            raise UserError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    for key in KEYS:
        if key not in content:
            raise UserError(f"{where}: key {key!r} is missing")
    prior = _numbers(content["prior"], where, "prior", 1)
    tables = {key: _numbers(content[key], where, key, 2) for key in TABLES}
    beta, reward_max, cost_max, threshold = (_number(content[key], where, key) for key in NUMBERS)
    _check_tables(prior, tables, where)
    _check_scales(tables, beta, reward_max, cost_max, where)
    further = _further(content.get(FURTHER, {}), tables["reference"].shape, cost_max, where)
    oracle = Oracle(
        prior, tables["reference"], tables["reward"], tables["cost"], beta, threshold, reward_max, cost_max,
        further=further,
    )  # fmt: skip
    covered, pairs, rows = _offline(content["offline"], tables["reference"], where)
    try:
        oracle.best()
    except InfeasibleError as error:
        raise UserError(f"{where}: {error}; raise 'threshold' or give the world a cheaper answer") from None
    measures = _measures(content.get(MEASURES, {}), tables["reference"].shape, where)
    return TabularWorld(oracle, tables["baseline"], covered, pairs, rows, measures)


def world_json(world: TabularWorld) -> dict[str, Any]:
    """The world in the format of a world file."""
    oracle = world.oracle
    rows = [
        {"prompt": r.prompt, "answers": [r.first, r.second]}
        | {key: value for key, value in (("better", r.better), ("costlier", r.costlier)) if value is not None}
        for r in world.offline_rows
    ]
    return (
        {
            "prior": oracle.prior.tolist(),
            **{key: getattr(oracle, key).tolist() for key in ("reference", "reward", "cost")},
            "baseline": world.baseline.tolist(),
            **{key: getattr(oracle, key) for key in NUMBERS},
            "offline": {"rows": rows} if rows else {"covered": world.covered.tolist(), "pairs": world.offline_pairs},
        }
        | (
            {FURTHER: {one.name: {"cost": one.cost.tolist(), "threshold": one.threshold} for one in oracle.further}}
            if oracle.further
            else {}
        )
        | ({MEASURES: {name: table.tolist() for name, table in world.measures.items()}} if world.measures else {})
    )


# --- validation --------------------------------------------------------------------------------------------------


def _numbers(value: Any, where: str, key: str, dimensions: int) -> Array:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(())
    if array.ndim != dimensions or array.size == 0:
        shape = "a list of numbers" if dimensions == 1 else "a list of equally long rows of numbers"
        raise UserError(f"{where}: {key!r} must be {shape}")
    if not np.isfinite(array).all():
        raise UserError(f"{where}: {key!r} holds a value that is not finite")
    return array


def _number(value: Any, where: str, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise UserError(f"{where}: {key!r} must be a finite number, got {value!r}")
    return float(value)


def _check_tables(prior: Array, tables: Mapping[str, Array], where: str) -> None:
    expected = (len(prior), tables["reference"].shape[1])
    for key, table in tables.items():
        if table.shape != expected:
            raise UserError(
                f"{where}: {key!r} has shape {list(table.shape)}, expected {list(expected)} "
                "(length of 'prior' x answers of 'reference')"
            )
    for key, rows in {"prior": prior[None], "reference": tables["reference"], "baseline": tables["baseline"]}.items():
        if (rows < 0).any() or np.abs(rows.sum(axis=1) - 1.0).max() > 1e-6:
            raise UserError(f"{where}: every row of {key!r} must be probabilities that sum to 1")
    outside = (tables["baseline"] > 0) & (tables["reference"] == 0)
    if outside.any():
        x, y = np.argwhere(outside)[0]
        raise UserError(f"{where}: 'baseline' gives answer {y} of prompt {x} mass where 'reference' has none")


def _check_scales(tables: Mapping[str, Array], beta: float, reward_max: float, cost_max: float, where: str) -> None:
    for key, value in (("beta", beta), ("reward_max", reward_max), ("cost_max", cost_max)):
        if value <= 0:
            raise UserError(f"{where}: {key!r} must be above 0, got {value}")
    for key, bound in (("reward", reward_max), ("cost", cost_max)):
        largest = float(np.abs(tables[key]).max())
        if largest > bound:
            raise UserError(
                f"{where}: {key!r} reaches {largest:.4g}, beyond '{key}_max' = {bound:.4g}; raise that bound"
            )


def _further(value: Any, shape: tuple[int, ...], cost_max: float, where: str) -> tuple[Limit, ...]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: {FURTHER!r} must hold a cost by its name, each with 'cost' and 'threshold'")
    limits = []
    for name, entry in value.items():
        key_of = f"{FURTHER}.{name}"
        if name == "cost" or not isinstance(entry, Mapping) or set(entry) != {"cost", "threshold"}:
            raise UserError(f"{where}: {key_of!r} must hold 'cost' and 'threshold' and be called other than 'cost'")
        table = _numbers(entry["cost"], where, f"{key_of}.cost", 2)
        if table.shape != tuple(shape):
            raise UserError(f"{where}: '{key_of}.cost' has shape {list(table.shape)}, expected {list(shape)}")
        if float(np.abs(table).max()) > cost_max:
            raise UserError(f"{where}: '{key_of}.cost' goes beyond 'cost_max' = {cost_max:.4g}; raise that bound")
        limits.append(Limit(str(name), table, _number(entry["threshold"], where, f"{key_of}.threshold")))
    return tuple(limits)


def _measures(value: Any, shape: tuple[int, ...], where: str) -> dict[str, Array]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: {MEASURES!r} must hold a table of numbers by its name")
    tables = {str(name): _numbers(table, where, f"{MEASURES}.{name}", 2) for name, table in value.items()}
    for name, table in tables.items():
        if table.shape != tuple(shape):
            raise UserError(f"{where}: '{MEASURES}.{name}' has shape {list(table.shape)}, expected {list(shape)}")
    return tables


def _offline(value: Any, reference: Array, where: str) -> tuple[Mask, int, tuple[OfflineRow, ...]]:
    if isinstance(value, Mapping) and set(value) == {"rows"}:
        rows = _offline_rows(value["rows"], reference.shape, where)
        covered = np.zeros(reference.shape, dtype=bool)
        for row in rows:
            covered[row.prompt, [row.first, row.second]] = True
        return covered, len(rows), rows
    if not isinstance(value, Mapping) or set(value) != {"covered", "pairs"}:
        raise UserError(f"{where}: 'offline' must hold either 'rows', or 'covered' and 'pairs'")
    pairs = value["pairs"]
    if isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < 0:
        raise UserError(f"{where}: 'offline.pairs' must be a whole number of at least 0, got {pairs!r}")
    covered = _mask(value["covered"], reference, where)
    return covered, pairs, ()


def _mask(value: Any, reference: Array, where: str) -> Mask:
    try:
        mask = np.array(value)
    except ValueError:
        mask = np.empty(())
    if mask.shape != reference.shape or mask.dtype != np.bool_:
        raise UserError(f"{where}: 'offline.covered' must be true or false for every answer, {list(reference.shape)}")
    empty = np.flatnonzero((np.where(mask, reference, 0.0)).sum(axis=1) == 0)
    if empty.size:
        raise UserError(f"{where}: 'offline.covered' leaves prompt {empty[0]} no answer that 'reference' can give")
    return mask


def _offline_rows(value: Any, shape: tuple[int, ...], where: str) -> tuple[OfflineRow, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: 'offline.rows' must be a list with at least one pair")
    return tuple(_offline_row(row, index, shape, where) for index, row in enumerate(value))


def _offline_row(row: Any, index: int, shape: tuple[int, ...], where: str) -> OfflineRow:
    key_of = f"{where}: offline.rows[{index}]"
    if not isinstance(row, Mapping) or not {"prompt", "answers"} <= set(row) <= {
        "prompt",
        "answers",
        "better",
        "costlier",
    }:
        raise UserError(f"{key_of} must hold 'prompt', 'answers' and, if labelled, 'better' and 'costlier'")
    prompt, answers = row["prompt"], row["answers"]
    whole = isinstance(prompt, int) and isinstance(answers, list) and len(answers) == 2
    if not whole or not all(isinstance(y, int) and 0 <= y < shape[1] for y in answers) or not 0 <= prompt < shape[0]:
        raise UserError(f"{key_of}: 'prompt' must lie in 0..{shape[0] - 1} and 'answers' be two of 0..{shape[1] - 1}")
    for key in ("better", "costlier"):
        if row.get(key) is not None and row[key] not in answers:
            raise UserError(f"{key_of}: {key!r} must be one of the two answers {answers}, got {row[key]!r}")
    return OfflineRow(prompt, answers[0], answers[1], row.get("better"), row.get("costlier"))


# --- small parts -------------------------------------------------------------------------------------------------


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
