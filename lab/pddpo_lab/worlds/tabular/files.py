"""Files of tabular worlds (`pddpo verify --world`), read with every mistake named, and written.

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
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_lab.worlds.tabular.world import (
    Mask,
    OfflineRow,
    TabularWorld,
    random_world,
    rare_world,
    trap_world,
    two_limits_world,
)
from pddpo_ray.config import TabularWorldConfig
from pddpo_ray.errors import UserError, nearest
from pddpo_ray.records import Array
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle

TABLES = ("reference", "reward", "cost", "baseline")
NUMBERS = ("beta", "reward_max", "cost_max", "threshold")
KEYS = ("prior", *TABLES, *NUMBERS, "offline")
FURTHER, MEASURES = "further", "measures"


def tabular_world(settings: TabularWorldConfig) -> TabularWorld:
    """The world file if there is one, else the named world."""
    if settings.path is not None:
        return load_world(settings.path)
    if settings.name == "random":
        return random_world(settings.seed)
    if settings.name == "rare":
        return rare_world(settings.seed)
    return two_limits_world() if settings.name == "two-limits" else trap_world()


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
            raise UserError(f"{where}: unknown key `{key}`{nearest(str(key), (*KEYS, FURTHER, MEASURES))}")
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
