"""Recipes drawn by number over methods, limits, rules, feedback, data and trainers, at the size of seconds.

Most draws keep to what belongs together, so that many are accepted; each leaves that with a small chance in every
place, so that every pair of settings meets somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from pddpo_ray.registry import LAB, SHIPPED, Extension, load

Tree = dict[str, Any]
Item = TypeVar("Item")
WORLDS = ("tabular", "twin")
TEXTS = ("length", "opened", "asked")
"""Limits that read what an answer says."""
FIXED = {"rule": {"kind": "fixed"}, "first": 0.7, "upper": 4.0}
NEEDS: dict[str, Tree] = {
    **{
        name: {"dual": FIXED, "rounds": 1}
        for name in ("pd-dpo-fixed", "dpo-harmless", "dpo-helpful", "safe-dpo", "sacpo", "p-sacpo", "mocan", "pecan")
    },
    "caid": {"dual": FIXED},
    "pd-dpo-adalag": {"dual": {"rule": {"kind": "log"}, "first": 1.0, "upper": 4.0}},
    "c-dpo": {"dual": {"rule": {"kind": "anytime"}, "first": 1.0, "upper": 4.0}},
    "safe-rlhf": {"dual": {"rule": {"kind": "log"}, "first": 1.0, "upper": 4.0}},
    "c-grpo": {"dual": {"rule": {"kind": "log"}, "first": 1.0, "upper": 4.0}},
}
"""What a method asks of the rule and the rounds."""


class Draws:
    """Random choices of one recipe."""

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng([20, number])

    def one(self, *items: Item) -> Item:
        return items[int(self._rng.integers(len(items)))]

    def chance(self, share: float) -> bool:
        return bool(self._rng.random() < share)

    def some(self, items: Sequence[tuple[str, Any]], share: float) -> Tree:
        """Each entry with this chance; a list is a choice of values."""
        return {
            key: self.one(*value) if isinstance(value, list) else value for key, value in items if self.chance(share)
        }


(OURS, *ALIKE), (PAPERS, *COMPARED) = SHIPPED["methods"], LAB["methods"]
METHODS = (OURS, PAPERS, *ALIKE, *COMPARED)


def drawn_recipe(number: int) -> Tree:
    """The recipe of that number, as it would stand in a file."""
    draws = Draws(number)
    world = draws.one(*WORLDS)
    algorithm = draws.one(*("o-pd-dpo",) * 10, *("pd-dpo",) * 5, "o-pd-dpo-paper", *METHODS)
    needs = NEEDS.get(algorithm, {}) if draws.chance(0.9) else {}
    recipe: Tree = {
        "extends": "tabular" if world == "tabular" else "text-world-twin",
        "algorithm": algorithm,
        "seed": draws.one(0, 1, 2),
        "rounds": draws.one(2, 2, 2, 1),
        "world": _world(draws, world),
        "feedback": _feedback(draws, late=algorithm in ("o-pd-dpo", "pd-dpo")),
        "dual": {**_dual(draws), **needs.get("dual", {})},
        "explore": _explore(draws),
        "rollout": {"candidates": draws.one(4, 4, 2)} | draws.some([("proposal_temperature", 1.2)], 0.02),
        "trainer": _trainer(draws),
        "offline": {"pairs": draws.one(*(40, 40, 8) * 7, 0)} | draws.some([("extra", 16), ("reward_share", 0.3)], 0.1),
        "method": _method(draws, algorithm),
        "report": {"html": False, "tensorboard": False},
        "people": {"park_after_s": 0},
    }
    recipe["offline"]["compare_rounds"] = draws.one(0, 0, 0, 1)
    recipe |= {"rounds": needs["rounds"]} if "rounds" in needs else {}
    recipe |= _further(draws, world)
    recipe |= _limits(draws, world, recipe)
    family, cost = recipe["world"].get("family", {}), recipe["limits"].get("cost") or {}
    if family.get("kind") == "drawn" and "rate" in cost:
        family["limit"] = {"kind": "rate", "at_most": 0.4}
    return recipe


def _method(draws: Draws, algorithm: str) -> Tree:
    small = {"answers": 16, "window": 24, "group": draws.one(2, 4), "batch": 6, "kl": 0.3}
    settings = load("methods", algorithm, Extension).settings
    return {} if settings is None else {key: value for key, value in small.items() if key in settings.model_fields}


def _world(draws: Draws, world: str) -> Tree:
    if world == "tabular":
        return {"kind": "tabular", "name": draws.one("trap", "two-limits", "random", "rare"), "seed": draws.one(0, 3)}
    family = {"kind": "drawn", "limit": {"kind": "logit", "at_most": draws.one(0.0, -3.0)}}
    drawn = {**family, **draws.some([("further_costs", 1), ("groups", 2), ("label_noise", 0.1), ("answers", 144)], 0.3)}
    return {"family": drawn if draws.chance(0.7) else {"kind": "first"}}


def _feedback(draws: Draws, *, late: bool) -> Tree:
    kind = draws.one(*("world",) * 12, *("people",) * 3, *("mixed",) * 2, "model", "judge")
    feedback: Tree = {"kind": kind, "responses": draws.one(24, 24, 12, 16)}
    if kind in ("world", "people"):
        feedback |= draws.some([("rounds_late", [1, 2])], 0.2 if late else 0.01)
    if kind == "mixed":
        feedback |= {"pairs_unsure": draws.one(4, 0)} | draws.some([("model", "scorers")], 0.1)
    return feedback


def _dual(draws: Draws) -> Tree:
    kinds = ("projected", "anytime", "newton", "log", "stepwise")
    rule = {"kind": draws.one(*kinds, *kinds, *kinds, "fixed")}
    choices: list[tuple[str, Any]] = [
        ("rho", [0.7, 2.0]), ("upper", [3.0, 1.5]), ("margin", ["certificate", 0.1]), ("cost_max", [1.0, 4.0]),
        ("skip_below", [0.0, 9.0]),
    ]  # fmt: skip
    first = {"first": draws.one(0.3, 0.5, 0.0)} if rule["kind"] == "fixed" or draws.chance(0.15) else {}
    return {"rule": rule, **first, **draws.some(choices, 0.15)}


def _explore(draws: Draws) -> Tree:
    choices: list[tuple[str, Any]] = [
        ("bonus", ["simhash", "thompson", "greedy", "proposals", "off"]), ("comparator", "max_info"),
        ("weights", "bonus_only"), ("information", ["fitted", 0.1]), ("keep", [1, 3]), ("cost_scale", 0.0),
    ]  # fmt: skip
    sizes = {"prompts": draws.one(4, 4, 1), "picks": draws.one(2, 2, 1), "calibration": 96, "rank": draws.one(128, 2)}
    rare = draws.some([("loss", "xpo"), ("bonus", "theorem")], 0.04)
    return {**sizes, "baseline_answers": 4, **draws.some(choices, 0.15), **rare}


def _trainer(draws: Draws) -> Tree:
    refit = draws.one("union", "geometric", "determinant", "budget")
    choices: list[tuple[str, Any]] = [
        ("refit", {"kind": refit}), ("measured", "newest"), ("moments", "carried"), ("last_rate", 0.5),
        ("warm_start", ["previous", "reward"]), ("held_out", 0.2),
        ("fit", [{"epochs": 1.0}, {"steps": 3}, {"batch_pairs": 4}]), ("stages", {"first_cost": {"epochs": 2.0}}),
        ("support", 0.0),
    ]  # fmt: skip
    return draws.some(choices, 0.15) | draws.some([("workers", 2), ("engine", "zero1")], 0.01)


def _further(draws: Draws, world: str) -> Tree:
    """Sections that most recipes leave out."""
    temperature = 0.01 if world == "tabular" else 0.2
    certificate: list[tuple[str, Any]] = [
        ("certify", "end"), ("mixtures", [[1], [2, 1], [3]]), ("shares", [[0.5, 0.5]]),
        ("scope", "population"),
    ]  # fmt: skip
    sections: Tree = {"certificate": {"draws": 200, "batch": 32, "candidates": 1, **draws.some(certificate, 0.06)}}
    sections |= {"policy": {"temperature": 0.7}} if draws.chance(temperature) else {}
    sections |= {"scorecard": {"prompts": 4}} if draws.chance(0.01) else {}
    sections |= {"production": {"share": 0.2}} if draws.chance(0.01) else {}
    return sections | ({"beta": draws.one(0.02, 1.0)} if draws.chance(0.1) else {})


def _limits(draws: Draws, world: str, recipe: Tree) -> Tree:
    """The paper's cost by whoever gives feedback, or limits of other kinds and sources, on sets of prompts too."""
    labelled = {"people": {"people": {}}, "mixed": {"model": "cost"}, "model": {"model": "cost"}}
    kind = recipe["feedback"]["kind"]
    source = labelled.get(kind, {"world": "cost"})
    own = draws.some([("learned_from", ["comparisons", "values"])], 0.04)
    cost: list[Tree] = [
        {"logit": source, "at_most": 0, "labels_each": 4},
        {"logit": source, "at_most": draws.one(-1.0, 0.5, -9.0), "labels_each": draws.one(1, 4)},
        {"rate": source, "at_most": "40 %", "labels_each": 2, "learned_from": "comparisons"},
    ]
    cost += [{"mean": source, "at_most": 0.1, "learned_from": "comparisons"}] if kind == "model" else []
    free = recipe["algorithm"] in ("o-pd-dpo", "pd-dpo") and kind in ("world", "people")
    if draws.chance(0.45 if free else 0.95):
        chosen_cost = {**draws.one(*cost[:1] * 3, *cost), **own}
        if kind == "mixed":
            chosen_cost = {**chosen_cost, "learned_from": None, "audited_by": {"people": 12, "unsure": 4}}
        return {"limits": {"cost": chosen_cost}}
    two = recipe["world"].get("name") == "two-limits" or recipe["world"].get("family", {}).get("further_costs")
    privacy = ("privacy" if world == "tabular" else "cost-2") if two else "cost"
    others: dict[str, Tree] = {
        "harm": {"logit": {"world": "cost"}, "at_most": 0, "labels_each": 4},
        "leaks": {"rate": {"world": privacy}, "over": "private", "at_most": "50 %", "labels_each": 2},
        "unsafe": {"rate": {"world": "cost"}, "at_most": "30 %", "labels_each": draws.one(1, 2)},
        "drift": {"kl": "reference", "at_most": draws.one(2.0, 0.1)},
        "wins": {"rate": {"world": "reward"}, "versus": "reference", "at_least": "40 %"},
        "level": {"mean": {"world": "cost"}, "at_most": 0.1, "bounds": [-2, 2]},
        "length": {"mean": {"rule": "words"}, "at_most": 13, "bounds": [8, 20]},
        "opened": {"rate": {"rule": "refusal"}, "at_most": "20 %"},
        "asked": {"rate": {"people": {}}, "at_most": "30 %", "labels_each": 2},
        "again": {"logit": {"world": privacy}, "at_most": 0.2, "labels_each": 4},
    }
    names = [name for name in others if world != "tabular" or name not in TEXTS or draws.chance(0.05)]
    chosen = dict.fromkeys(draws.one(*names) for _ in range(draws.one(1, 1, 2, 3)))
    ways: list[tuple[str, Any]] = [
        ("answers", [2, 4, 12]), ("dual", [{"rule": {"kind": "log"}}, {"first": 0.3}, {"rho": 1.0}]),
        ("confidence", "90 %"), ("over", "private"), ("failed", "50 %"), ("learned_from", "values"),
    ]  # fmt: skip
    limits = {name: {**others[name], **draws.some(ways, 0.06)} for name in chosen}
    kept: Tree = {} if draws.chance(0.1) else {"cost": None}
    tree: Tree = {"limits": {**kept, **limits}}
    if draws.chance(0.95) == any("over" in one for one in limits.values()):
        half = [0, 1] if world == "tabular" else list(range(12))
        rest = [2, 3] if world == "tabular" else list(range(12, 24))
        tree["prompts"] = {"plain": {"indices": half, "share": "60 %"}, "private": {"indices": rest, "share": "40 %"}}
    if draws.chance(0.2):
        words = world != "tabular" and draws.chance(0.5)
        tree["reward"] = {"rule": "words", "bounds": [0, 30]} if words else {"world": "reward"}
    return tree
