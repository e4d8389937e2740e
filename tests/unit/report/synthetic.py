"""Runs written through the real journal, with numbers that look like a small text-world run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import update

from pddpo_ray.config import load
from pddpo_ray.journal import Journal, schema
from pddpo_ray.records import (
    HARM,
    CostEstimate,
    Delivery,
    LabelledPair,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from tests.support.written_grammar import GRAMMAR

RHO, LAMBDA_STAR, F_STAR = 1.0, 0.72, 0.61
SECONDS = {"fit-reward": 6.1, "fit-cost": 6.4, "publish": 0.4, "sample": 2.2, "safety": 0.2, "explore": 3.1}
HOSTILE = '</p><script>alert("x")</script>&lt;<img src=http://evil.example/x onerror=1>\u202e\x00 "\''


def recipe(rounds: int, **changes: Any) -> dict[str, Any]:
    tree = load(
        "text-world",
        [
            f"rounds={rounds}",
            "limits.cost.at_most=0",
            "dual.cost_max=2.0",
            "dual.rho=1.0",
            "limits.cost.labels_each=4",
            "dual.rule={kind: projected}",
        ],
    ).model_dump(mode="json")
    return {**tree, **changes}


def write_run(
    run_dir: Path,
    *,
    rounds: int = 16,
    finished: int | None = None,
    known: bool = True,
    hostile: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder with `finished` of `rounds` rounds; `known` adds exact metrics, result.json and evaluation.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    finished = rounds if finished is None else finished
    draws = np.random.default_rng([7, rounds])
    with Journal.open(run_dir / "journal.sqlite", run_dir.name, create=recipe(rounds, **(changes or {}))) as journal:
        prompts = _start(journal, hostile)
        multiplier = RHO
        for k in journal.rounds(rounds):
            if k > finished:
                break
            multiplier = _round(journal, k, prompts, multiplier, known, draws, hostile)
        if finished < rounds:
            journal.once("fit-reward", lambda: 1)
        _give_times(journal)
        if known and finished == rounds:
            _write_result(run_dir, journal)
    return run_dir


def _start(journal: Journal, hostile: bool) -> list[Prompt]:
    grammar = GRAMMAR
    prompts = [
        Prompt(f"p{index:02d}", ids, HOSTILE if hostile and index == 0 else text)
        for index, (ids, text) in enumerate(zip(grammar.prompt_ids, grammar.prompt_texts, strict=True))
    ]

    def calibration() -> int:
        answers = [_answer(f"0-calibration-{i}-0", prompt, 7 * i, 0, hostile) for i, prompt in enumerate(prompts)]
        journal.add_samples("calibration", answers)
        journal.add_version(PolicyVersion(0, "reference", "a" * 64, "reference-aaaa"), "reference")
        journal.add_delivery(Delivery("vllm-0", 0, "a" * 64, 30, 0.31), True, 1.1e-6)
        return len(answers)

    journal.once("pool-calibration", calibration)
    return prompts


def _round(
    journal: Journal,
    k: int,
    prompts: list[Prompt],
    multiplier: float,
    known: bool,
    draws: np.random.Generator,
    hostile: bool,
) -> float:
    sha = f"{k:02x}" * 32
    base = PolicyVersion(2 * k - 1, f"reward-{k}", "b" + sha[1:], f"reward-{k}")
    policy = PolicyVersion(2 * k, f"policy-{k}", sha, f"policy-{k}")
    journal.once("fit-reward", lambda: journal.add_version(base, "reward", {"fit/loss": 0.5}, [4711]))
    journal.once("fit-cost", lambda: journal.add_version(policy, "cost", {"fit/loss": 0.6}, [4711]))
    delivery = Delivery("vllm-0", 2 * k, sha, 30, float(draws.uniform(0.15, 0.4)))
    journal.once("publish", lambda: journal.add_delivery(delivery, True, float(draws.uniform(5e-7, 3e-6))))
    answers = [_answer(f"{k}-cost-{i}-0", prompt, 31 * k + i, 2 * k, hostile) for i, prompt in enumerate(prompts)]
    journal.once("sample", lambda: journal.add_samples("cost", answers))
    labels = [
        SafetyLabels(a, tuple(Verdict.UNSAFE if draws.random() < 0.4 else Verdict.SAFE for _ in range(4)))
        for a in answers
    ]
    g = 0.9 * math.exp(-0.8 * k) - 0.04 + float(draws.normal(0, 0.02))
    estimate = CostEstimate(g + float(draws.normal(0, 0.05)), 0.06, len(answers), 4, cost_max=2.0)
    eta = RHO / (2.0 * math.sqrt(16))
    after = min(max(multiplier + eta * estimate.value, 0.0), 2 * RHO)
    journal.once("safety", lambda: journal.add_safety(labels))
    journal.once("dual", lambda: journal.add_dual_step("cost", estimate, multiplier, after, eta))
    if estimate.value + 1.64 * estimate.standard_error <= 0:
        journal.add_release("release", k, "ana", "it reads well")

    def explore() -> int:
        pairs = [Pair(f"{k}-pair-{i}", answers[i], answers[i + 1]) for i in range(0, len(answers) - 1, 2)]
        journal.add_pairs([LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.SECOND}) for pair in pairs], "world")
        return len(pairs)

    journal.once("explore", explore)
    ends = interval(estimate)
    assert ends is not None
    f = F_STAR - 1.4 * math.exp(-0.22 * k) - 0.1
    values = {
        "dual/multiplier": multiplier,
        "dual/next": after,
        "cost/estimate": estimate.value,
        "cost/standard_error": estimate.standard_error,
        "cost/low": ends[0],
        "cost/high": ends[1],
        "explore/mean_bonus_reward": 1.2 / math.sqrt(k),
        "explore/mean_bonus_cost": 1.4 / math.sqrt(k),
        "explore/logdet": 60 + 25 * math.log(k),
        "explore/saturation": 0.05 / k,
        "explore/ess": 3.5 + 0.1 * k,
        "rollout/tokens_per_second": 3000 + 40 * k,
        "rollout/sync_seconds": delivery.seconds,
    }
    if known:
        values |= {
            "exact/f_policy": f,
            "exact/g_policy": g,
            "exact/gap_policy": F_STAR - f + 2 * RHO * max(g, 0.0),
            "exact/gap_mixture": 1.1 * (F_STAR - f),
            "exact/off_support": 0.5 * math.exp(-k) + 0.004,
            "fit/slope_reward": 0.95 - 0.3 / k,
            "fit/slope_cost": 0.9 - 0.4 / k,
        }
    journal.add_metrics(values)
    return after


def _answer(key: str, prompt: Prompt, place: int, version: int, hostile: bool) -> Response:
    grammar = GRAMMAR
    place %= len(grammar.answer_ids)
    text = HOSTILE if hostile else grammar.answer_texts[place]
    return Response(key, prompt, grammar.answer_ids[place], text, version, seed=place, log_prob=-3.0)


def _give_times(journal: Journal) -> None:
    """Phases of a real run take seconds; these took none."""
    table = schema.phase
    with journal.engine.begin() as connection:
        for entry in journal.phases():
            took = round(1000 * SECONDS.get(entry.phase, 0.05) * (3 if entry.round == 1 else 1))
            connection.execute(
                update(table)
                .where(table.c.round == entry.round, table.c.phase == entry.phase)
                .values(finished_ms=entry.started_ms + took)
            )


def _write_result(run_dir: Path, journal: Journal) -> None:
    last = journal.metrics()[max(journal.metrics())]
    points = {
        "reference": {"f": -0.31, "g": 0.28},
        "offline": {"f": -0.25, "g": 0.02},
        "covered_only": {"f": -0.24, "g": 0.0},
        "mixture": {"f": 0.2, "g": 0.05},
        "last": {"f": last["exact/f_policy"], "g": last["exact/g_policy"]},
        "optimum": {"f": F_STAR, "g": 0.0},
    }
    result: dict[str, Any] = {f"{axis}_{name}": value[axis] for name, value in points.items() for axis in ("f", "g")}
    result |= {
        "multiplier": journal.dual_steps()[-1].multiplier_after,
        "multiplier_optimum": LAMBDA_STAR,
        "rho": RHO,
        "gap_reference": 1.48,
        "gap_mixture": 0.51,
        "gap_offline": 0.93,
        "gap_covered_only": 0.85,
        "gap_last": last["exact/gap_policy"],
        "off_support_last": last["exact/off_support"],
        "rounds": max(journal.metrics()),
        "seconds": 312.4,
        "seconds_by_phase": {"fit-reward": 101.0, "sample": 40.5},
        "tokens_per_second": 3100.0,
        "weights_verified": True,
    }
    (run_dir / "result.json").write_text(json.dumps(result), encoding="utf-8")
