"""What choosing among the answers before round 1 reaches under every limit, alone and jointly: a warning, no verdict.

Training can reach what no answer showed. Noisy labels are split: one half of an answer's measurements chooses, the
other half says what was reached, since the smallest of noisy numbers looks lower than it is. A limit on the distance to
the reference (kl) is left out: the reference keeps it, and no choice among answers says what the others cost it. So is
one about people's labels, whom nobody asked yet.
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
    journal: Journal, held: Sequence[HeldLimit], measured: Sequence[MeasuredAnswer], prior: Mapping[Tokens, float]
) -> None:
    """Keeps what is reachable in the journal, and warns where the answers show no way to keep the limits."""
    columns = [index for index, one in enumerate(held) if not (one.on_drift or one.stated.asks_people)]
    of_answers = [held[index] for index in columns]
    known = [replace(one, costs=one.costs[columns]) for one in _less_reference(measured)]
    payload = journal.once(PHASE, lambda: _payload(of_answers, reached(of_answers, known, prior)))
    for line in payload["warnings"]:
        logger.warning("before round 1: %s", line)


def reached(
    held: Sequence[HeldLimit], measured: Sequence[MeasuredAnswer], prior: Mapping[Tokens, float]
) -> Reach | None:
    """What choosing reaches; None where a limit's prompts have no answer that can be used.

    A text that a noisy limit measured only once cannot be split and is left out, as is one without a number. `held` are
    limits on measured answers.
    """
    if not held:
        return None
    noisy = np.array([_noisy(one) for one in held])
    by_prompt: dict[Tokens, list[tuple[Array, Array]]] = {}
    for (prompt, _), costs in _by_text(one for one in measured if one.prompt in prior).items():
        acting = np.array([one.factors.get(prompt, 0.0) > 0 for one in held])
        used = np.where(acting, np.array(costs), 0.0)
        if np.isfinite(used).all() and (len(used) > 1 or not (noisy & acting).any()):
            by_prompt.setdefault(prompt, []).append((used[0::2].mean(axis=0), used[1::2].mean(axis=0)) if len(used) > 1
                                                    else (used[0], used[0]))  # fmt: skip
    prompts = list(by_prompt)
    factors = np.array([[one.factors.get(prompt, 0.0) for prompt in prompts] for one in held])
    if not prompts or not (factors > 0).any(axis=1).all():
        return None
    width = max(map(len, by_prompt.values()))
    tables = np.zeros((2, len(held), len(prompts), width))
    there = np.zeros((len(prompts), width), dtype=bool)
    for row, halves in enumerate(by_prompt.values()):
        for column, both in enumerate(halves):
            tables[:, :, row, column] = both
            there[row, column] = True
    weights = np.array([prior[prompt] for prompt in prompts])
    weights = weights / weights.sum()
    factors = factors / (factors @ weights)[:, None]
    excess = tables - np.array([one.stated.limit.cost_limit for one in held])[:, None, None]
    second = excess[1] if noisy.any() else None
    return reach(
        excess[0], weights, scales=[one.scale for one in held], factors=factors, measured=second, answers=there
    )


def _less_reference(measured: Sequence[MeasuredAnswer]) -> list[MeasuredAnswer]:
    """Costs less the mean of what the reference's answers to the same prompt cost; nan where it gave none."""
    against: dict[Tokens, list[Array]] = {}
    for one in measured:
        against.setdefault(one.prompt, []).append(np.broadcast_to(one.against, one.costs.shape))
    means = {}
    for prompt, rows in against.items():
        known = np.isfinite(rows)
        means[prompt] = np.where(known.any(axis=0), np.nansum(rows, axis=0) / np.maximum(known.sum(axis=0), 1), np.nan)
    return [replace(one, costs=one.costs - means[one.prompt], against=0.0) for one in measured]


def _noisy(one: HeldLimit) -> bool:
    return one.stated.wins or (one.stated.limit.quantity.kind != "mean" and one.stated.source.kind in LABELLED)


def _by_text(measured: Iterable[MeasuredAnswer]) -> dict[tuple[Tokens, Tokens], list[Array]]:
    texts: dict[tuple[Tokens, Tokens], list[Array]] = {}
    for one in measured:
        texts.setdefault((one.prompt, one.answer), []).append(one.costs)
    return texts


def _payload(held: Sequence[HeldLimit], reach: Reach | None) -> dict[str, Any]:
    if reach is None:
        return {"limits": {}, "jointly": None, "warnings": []}
    limits, warnings = {}, []
    for index, one in enumerate(held):
        limit = one.stated.limit
        best, together = (
            limit.cost(limit.cost_limit + float(values[index])) for values in (reach.lowest, reach.together)
        )
        share = float(reach.broken[index])
        limits[one.name] = {"best": best, "together": together, "prompts_broken": share}
        if reach.lowest[index] > 0:
            warnings.append(
                f"{one.name}: choosing among the answers that there are reaches about {limit.quantity.text(best)}, and"
                f" the limit is {limit}; {100 * share:.3g} % of its prompts have no answer that keeps it. Training may"
                " reach more, or never"
            )
    if not warnings and not reach.jointly:
        each = ", ".join(f"{one.name} {one.stated.limit.quantity.text(limits[one.name]['together'])}" for one in held)
        warnings.append(
            f"no choice among the answers that there are keeps all limits at once; the least broken has about {each}"
        )
    return {"limits": limits, "jointly": reach.jointly, "warnings": warnings}
