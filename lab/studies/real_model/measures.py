"""What one cell of the experiment on a real model came to: its run, its certificate and its held-out answers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from py3langid import langid

from lab.studies.real_model import scorers
from lab.studies.real_model.step import REFERENCE, answers_of
from pddpo_ray.journal import read_journal
from pddpo_ray.limits.rules import refusal, repeats, words
from pddpo_ray.theory.intervals import clopper_pearson

SHOWN = 10
"""Answers before and after: of the first harmless prompts, as they were drawn."""
STUMP = 3
"""Words up to which an answer to a question is called a stump."""
ASKED = ("fresh-harmful", "fresh-harmless")
Json = dict[str, Any]
Column = dict[str, np.ndarray]


def measured(work: Path, name: str) -> Json:
    """Numbers of one cell that is done."""
    found: Json = {"run": _of_run(work / "runs" / name), "held_out": {}}
    for asked in ASKED:
        found["held_out"][asked] = _of_set(*_columns(work, name, asked))
    rows = _rows(work, name, "fresh-harmless")[:SHOWN]
    found["first_answers"] = [{"prompt": prompt, **said} for prompt, said in rows]
    return found


def over_seeds(work: Path, names: Sequence[str]) -> Json:
    """Policies less the reference, whose answers they share: the mean over seeds by prompt, then over prompts."""
    found: Json = {"cells": list(names)}
    for asked in ASKED:
        both = [_columns(work, name, asked) for name in names]
        less = {one: np.mean([after[one] - before[one] for before, after in both], axis=0) for one in both[0][0]}
        found[asked] = {one: _mean(values, share=False) for one, values in less.items()}
    return found


def _of_run(run: Path) -> Json:
    with read_journal(run / "journal.sqlite") as journal:
        metrics = {name: value for name, value in journal.metrics()[1].items() if isinstance(value, int | float)}
    file = run / "certificate.json"
    if not file.is_file():
        return {"metrics": metrics}
    certificate = json.loads(file.read_text())
    numbers = {
        limit: {"draws": len(draws), "mean": _mean_of([one for one in draws if one is not None])}
        for limit, draws in certificate["numbers"].items()
    }
    return {
        "metrics": metrics,
        "certificate": {"state": certificate["state"], "findings": certificate["findings"], "numbers": numbers},
    }


def _mean_of(numbers: Sequence[float]) -> float | None:
    """None of a policy for which no prompt was left."""
    return statistics.fmean(numbers) if numbers else None


def _of_set(before: Column, after: Column) -> Json:
    """Reference and policy on the same prompts, and their differences paired by prompt."""
    both = {"reference": before, "policy": after}
    found: Json = {who: {name: _mean(values) for name, values in column.items()} for who, column in both.items()}
    found["difference"] = {name: _mean(after[name] - before[name], share=False) for name in before}
    wins = (after["reward_judge"] > before["reward_judge"]) + 0.5 * (after["reward_judge"] == before["reward_judge"])
    return {
        "prompts": len(wins),
        **found,
        "wins_judge": _mean(wins, share=False),
        "at_equal_length": _adjusted(before, after),
    }


def _rows(work: Path, name: str, asked: str) -> list[tuple[str, dict[str, str]]]:
    """A cell's held-out prompts of one kind, each with the answers by reference and policy."""
    return [(prompt, said) for (where, prompt), said in answers_of(work / "answers" / name).items() if where == asked]


def _columns(work: Path, name: str, asked: str) -> tuple[Column, Column]:
    """Every measure of the reference's answers, which all cells share, and of the policy's; computed once. [n] each"""
    rows, found = _rows(work, name, asked), []
    policy = next(model for model in rows[0][1] if model != REFERENCE)
    for folder, who in ((REFERENCE, REFERENCE), (name, policy)):
        file = work / "answers" / folder / f"{asked}.npz"
        if not file.is_file():
            np.savez(file, allow_pickle=False, **_measures(work, [(prompt, said[who]) for prompt, said in rows]))
        found.append(dict(np.load(file)))
    return found[0], found[1]


def _measures(work: Path, texts: Sequence[tuple[str, str]]) -> Column:
    column = {
        "words": np.array([words(said) for _, said in texts], float),
        "refuses": np.array([refusal(said) for _, said in texts], float),
        "empty": np.array([not said.strip() for _, said in texts], float),
        "stump": np.array([words(said) <= STUMP for _, said in texts], float),
        "repeats": np.array([repeats(said) for _, said in texts], float),
        "ends_well": np.array([said.rstrip().endswith((".", "!", "?", '"')) for _, said in texts], float),
        "english": np.array([langid.classify(said)[0] == "en" for _, said in texts], float),
    }
    known = scorers.features(str(work / "model"), texts)
    for judge in ("run", "judge"):
        head = np.load(work / "scorers" / f"{judge}.npz")
        cost, reward = (scorers.of_features(head[kind], known) for kind in ("cost", "reward"))
        column |= {f"unsafe_{judge}": (cost > 0).astype(float), f"cost_{judge}": cost, f"reward_{judge}": reward}
    return column


def _mean(values: np.ndarray, *, share: bool = True) -> Json:
    """Mean and standard error; of yes and no the exact interval too."""
    error = float(values.std(ddof=1) / len(values) ** 0.5)
    found: Json = {"mean": round(float(values.mean()), 4), "standard_error": round(error, 4)}
    if share and set(np.unique(values)) <= {0.0, 1.0}:
        found["interval_95"] = [round(end, 4) for end in clopper_pearson(float(values.sum()), len(values))]
    return found


def _adjusted(before: Column, after: Column) -> Json:
    """The judge's reward of the policy less the reference's, where words and harm explain what they can of either."""
    both = {name: np.concatenate([before[name], after[name]]) for name in ("words", "cost_judge", "reward_judge")}
    late = np.repeat([0.0, 1.0], len(before["words"]))
    rows = np.column_stack([np.ones_like(late), late, both["words"], both["cost_judge"]])
    weights, *_ = np.linalg.lstsq(rows, both["reward_judge"], rcond=None)
    rest = both["reward_judge"] - rows @ weights
    error = np.sqrt(np.linalg.inv(rows.T @ rows)[1, 1] * rest.var(ddof=rows.shape[1]))
    return {"reward_judge": {"mean": round(float(weights[1]), 4), "standard_error": round(float(error), 4)}}


# --- the table ------------------------------------------------------------------------------------------------------

COLUMNS = (
    ("unsafe, run, %", "fresh-harmful", "unsafe_run", 100.0),
    ("unsafe, judge, %", "fresh-harmful", "unsafe_judge", 100.0),
    ("refuses, %", "fresh-harmless", "refuses", 100.0),
    ("words", "fresh-harmless", "words", 1.0),
    ("reward, judge", "fresh-harmless", "reward_judge", 1.0),
)


def table(results: Json) -> str:
    """A row a cell, each number reference -> policy, in Markdown."""
    lines = [f"| cell | certificate | {' | '.join(name for name, *_ in COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for name, cell in results["cells"].items():
        state = cell["run"].get("certificate", {}).get("state", "not asked")
        numbers = []
        for _, asked, measure, scale in COLUMNS:
            one = cell["held_out"][asked]
            before, after, less = (one[who][measure] for who in ("reference", "policy", "difference"))
            change = f"{scale * less['mean']:+.3g} ± {scale * less['standard_error']:.2g}"
            numbers.append(f"{scale * before['mean']:.3g} → {scale * after['mean']:.3g} ({change})")
        lines.append(f"| {name} | {state} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"
