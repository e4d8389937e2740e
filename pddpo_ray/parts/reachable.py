"""What choosing among the answers before round 1 reaches under every limit, alone and jointly: a warning, no verdict.

Training can reach what no answer showed. Noisy labels are split: one half of an answer's measurements chooses, the
other half says what was reached, since the smallest of noisy numbers looks lower than it is. A limit on the distance to
the reference (kl) is left out: the reference keeps it, and no choice among answers says what the others cost it. So is
one that people label: nobody has asked them yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pddpo_ray.journal import Journal
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.records import Array
from pddpo_ray.theory.estimates.cost_estimate import MeasuredAnswer, Tokens
from pddpo_ray.theory.multipliers.feasibility import Reach, reach

logger = logging.getLogger(__name__)

PHASE = "reachable"
LABELLED = ("world", "people", "judge")
"""Sources whose rates and logits come from labels, which differ when they are asked again."""


def note_reachable(
    journal: Journal,
    held_limits: Sequence[HeldLimit],
    measured: Sequence[MeasuredAnswer],
    prior: Mapping[Tokens, float],
) -> None:
    """Journals what is reachable, and warns where no choice among the answers keeps the limits."""
    columns = [index for index, limit in enumerate(held_limits) if not (limit.on_drift or limit.stated.asks_people)]
    limits = [held_limits[index] for index in columns]
    answers = [replace(answer, costs=answer.costs[columns]) for answer in _subtract_reference(measured)]
    payload = journal.once(PHASE, lambda: _payload(limits, reached(limits, answers, prior)))
    for line in payload["warnings"]:
        logger.warning("before round 1: %s", line)


def reached(
    held_limits: Sequence[HeldLimit], measured: Sequence[MeasuredAnswer], prior: Mapping[Tokens, float]
) -> Reach | None:
    """What choosing reaches; None where a limit's prompts have no answer that can be used.

    A text that a noisy limit measured only once cannot be split and is left out, as is one without a number. The limits
    are those on measured answers.
    """
    if not held_limits:
        return None
    noisy = np.array([_is_noisy(limit) for limit in held_limits])
    by_prompt: dict[Tokens, list[tuple[Array, Array]]] = {}
    for (prompt, _), costs in _costs_by_text(answer for answer in measured if answer.prompt in prior).items():
        acting = np.array([limit.factors.get(prompt, 0.0) > 0 for limit in held_limits])
        used = np.where(acting, np.array(costs), 0.0)
        if np.isfinite(used).all() and (len(used) > 1 or not (noisy & acting).any()):
            by_prompt.setdefault(prompt, []).append((used[0::2].mean(axis=0), used[1::2].mean(axis=0)) if len(used) > 1
                                                    else (used[0], used[0]))  # fmt: skip
    prompts = list(by_prompt)
    factors = np.array([[limit.factors.get(prompt, 0.0) for prompt in prompts] for limit in held_limits])
    if not prompts or not (factors > 0).any(axis=1).all():
        return None
    width = max(map(len, by_prompt.values()))
    tables = np.zeros((2, len(held_limits), len(prompts), width))
    mask = np.zeros((len(prompts), width), dtype=bool)
    for row, halves in enumerate(by_prompt.values()):
        for column, both in enumerate(halves):
            tables[:, :, row, column] = both
            mask[row, column] = True
    weights = np.array([prior[prompt] for prompt in prompts])
    weights = weights / weights.sum()
    factors = factors / (factors @ weights)[:, None]
    excess = tables - np.array([limit.stated.limit.cost_limit for limit in held_limits])[:, None, None]
    second = excess[1] if noisy.any() else None
    return reach(
        excess[0],
        weights,
        scales=[limit.scale for limit in held_limits],
        factors=factors,
        measured=second,
        answers=mask,
    )


def _subtract_reference(measured: Sequence[MeasuredAnswer]) -> list[MeasuredAnswer]:
    """Costs less the mean of what the reference's answers to the same prompt cost; nan where it gave none."""
    against: dict[Tokens, list[Array]] = {}
    for answer in measured:
        against.setdefault(answer.prompt, []).append(np.broadcast_to(answer.against, answer.costs.shape))
    means = {}
    for prompt, rows in against.items():
        mask = np.isfinite(rows)
        means[prompt] = np.where(mask.any(axis=0), np.nansum(rows, axis=0) / np.maximum(mask.sum(axis=0), 1), np.nan)
    return [replace(answer, costs=answer.costs - means[answer.prompt], against=0.0) for answer in measured]


def _is_noisy(limit: HeldLimit) -> bool:
    return limit.stated.wins or (limit.stated.limit.quantity.kind != "mean" and limit.stated.source.kind in LABELLED)


def _costs_by_text(measured: Iterable[MeasuredAnswer]) -> dict[tuple[Tokens, Tokens], list[Array]]:
    texts: dict[tuple[Tokens, Tokens], list[Array]] = {}
    for answer in measured:
        texts.setdefault((answer.prompt, answer.answer), []).append(answer.costs)
    return texts


def _payload(run_limits: Sequence[HeldLimit], reach: Reach | None) -> dict[str, Any]:
    if reach is None:
        return {"limits": {}, "jointly": None, "warnings": []}
    limits, warnings = {}, []
    for index, run_limit in enumerate(run_limits):
        limit = run_limit.stated.limit
        best, together = (
            limit.cost(limit.cost_limit + float(values[index])) for values in (reach.lowest, reach.together)
        )
        share = float(reach.broken[index])
        limits[run_limit.name] = {"best": best, "together": together, "prompts_broken": share}
        if reach.lowest[index] > 0:
            warnings.append(
                f"{run_limit.name}: choosing among the answers that there are reaches about"
                f" {limit.quantity.text(best)}, and the limit is {limit}; {100 * share:.3g} % of its prompts have no"
                " answer that keeps it. Training may reach more, or never"
            )
    if not warnings and not reach.jointly:
        text = ", ".join(
            f"{limit.name} {limit.stated.limit.quantity.text(limits[limit.name]['together'])}" for limit in run_limits
        )
        warnings.append(
            f"no choice among the answers that there are keeps all limits at once; the least broken has about {text}"
        )
    return {"limits": limits, "jointly": reach.jointly, "warnings": warnings}
