"""Does a price on the score of harm itself move SmolLM2, where one on the yes or no of a limit did not?

One fit without a reward on the reference's own draws in the run of a cell, as `own_draws` fits them, squares of
h + a c - mean: h = log policy/reference in nats, c the run's score of harm over its spread within a prompt, or that and
the words over theirs. Before and after: two answers to each of 48 prompts that no fit saw, by run's scorer and judge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.studies.real_model import own_draws, scorers
from lab.studies.real_model.own_draws import Drawn, Model, Trial
from pddpo_ray.driver.offline_setup import calibration_answers
from pddpo_ray.journal import read_journal
from pddpo_ray.limits.rules import refusal, words
from pddpo_ray.records import Array, Response, by_prompt

OWN = "o-pd-dpo-0"
"""The cell whose draws teach."""
NATS = 5.0
"""Price of one standard deviation of a measure within a prompt."""
FRESH, ASKED = 1300, 48
"""From there on neither rounds nor certificates reach the prompts of `harmful.jsonl`; ASKED of them are asked."""


@dataclass(frozen=True)
class Fit:
    lengths: bool
    """Whether words have a price too."""
    passes: float
    seed: int = 0


FITS = {
    "score": Fit(lengths=False, passes=1.0),
    "score-and-words": Fit(lengths=True, passes=1.5),
}


def fitted(work: Path, name: str) -> dict[str, Any]:
    """Curve, answers before and after, and what they measure."""
    settings = FITS[name]
    trial = Trial(rate=5e-4, price=1.0, longest=96, draws=4, seed=settings.seed)
    with read_journal(work / "runs" / OWN / "journal.sqlite") as journal:
        drawn = [answers for answers in by_prompt(calibration_answers(journal)).values() if len(answers) == trial.draws]
    model = Model(trial, work / "model")
    rows = _priced(work, model, drawn, settings)
    lines = (work / "inputs" / "harmful.jsonl").read_text().splitlines()[FRESH + ASKED * settings.seed :]
    fresh = [json.loads(line)["prompt"] for line in lines[:ASKED]]
    before = _said(model, fresh, 99 - 2 * settings.seed)
    generator, count = np.random.default_rng(settings.seed), round(settings.passes * len(rows))
    order = np.concatenate([generator.permutation(len(rows)) for _ in range(int(np.ceil(settings.passes)))])[:count]
    optimizer = torch.optim.AdamW(model.trained, lr=trial.rate, betas=(0.9, 0.99), weight_decay=0.0)
    curve = own_draws.fit(model, optimizer, [rows[index] for index in order])
    return {"curve": curve, "answers": [before, _said(model, fresh, 98 - 2 * settings.seed)]}


def _priced(work: Path, model: Model, drawn: list[list[Response]], settings: Fit) -> list[Drawn]:
    texts = [(one[0].prompt.messages[-1].content, model.text(answer.token_ids)) for one in drawn for answer in one]
    head = np.load(work / "scorers" / "run.npz")["cost"]
    price = _spread_out(scorers.scored(str(work / "model"), head, texts).reshape(len(drawn), -1))
    if settings.lengths:
        price = price + _spread_out(np.array([words(said) for _, said in texts], float).reshape(len(drawn), -1))
    prompts = [tuple(one[0].prompt.token_ids) for one in drawn]
    answers = [[tuple(answer.token_ids) for answer in one] for one in drawn]
    both = [(prompt, answer) for prompt, one in zip(prompts, answers, strict=True) for answer in one]
    reference = model.of_reference(both).reshape(len(drawn), -1)
    return [Drawn(*one) for one in zip(prompts, answers, price, reference, strict=True)]


def _spread_out(costs: Array) -> Array:
    """In nats. [prompts, n]"""
    return NATS * costs / np.sqrt(costs.var(axis=1, ddof=1).mean())


def _said(model: Model, asked: list[str], seed: int) -> list[tuple[str, str]]:
    drawn = model.draw([model.prompt(one.removesuffix(scorers.SUFFIX)) for one in asked], 2, seed)
    return [(prompt, model.text(answer)) for prompt, row in zip(asked, drawn, strict=True) for answer in row]


def compared(work: Path, answers: list[list[tuple[str, str]]]) -> dict[str, Any]:
    """Reference, policy, their difference and its standard error over prompts."""
    known = [scorers.features(str(work / "model"), [(one[0], one[1]) for one in said]) for said in answers]
    columns: dict[str, list[Array]] = {
        "words": [np.array([words(said) for _, said in one], float) for one in answers],
        "refuses": [np.array([refusal(said) for _, said in one], float) for one in answers],
    }
    for who in ("run", "judge"):
        heads = np.load(work / "scorers" / f"{who}.npz")
        for kind in ("cost", "reward"):
            columns[f"{kind}_{who}"] = [scorers.of_features(heads[kind], one) for one in known]
        columns[f"unsafe_{who}"] = [(one > 0).astype(float) for one in columns[f"cost_{who}"]]
    found = {}
    for name, (before, after) in columns.items():
        less = (after - before).reshape(-1, 2).mean(axis=1)
        numbers = before.mean(), after.mean(), less.mean(), less.std(ddof=1) / len(less) ** 0.5
        found[name] = [round(float(number), 4) for number in numbers]
    return found
