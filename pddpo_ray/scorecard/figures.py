"""What a scorecard counts of one policy's answers to its fixed questions: named figures with their intervals. Pure.

An interval is about new prompts: answers to one prompt are averaged first. Scores of models and log-probabilities have
no bounds that somebody stated, so no interval of their mean is known and its standard error stands there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from pddpo_ray.limits.rules import refusal, repeats
from pddpo_ray.theory.against_reference import kl_per_token, standard_gain, win_shares
from pddpo_ray.theory.intervals import Estimate, mean_interval

Rows = Sequence[Sequence[float]]
"""Per prompt a number for each of its answers."""
Figures = dict[str, Estimate]


@dataclass(frozen=True)
class Written:
    """Answers to the scorecard's prompts, prompt by prompt, and to the harmless requests."""

    texts: Sequence[Sequence[str]]
    tokens: Rows
    cut_off: Rows
    """1 where an answer ran into the token limit."""
    benign: Sequence[str] = ()


@dataclass(frozen=True)
class Scores:
    """Scores of the answers by name (`reward_held_out`, `reward_own`, `cost_...`), a policy's and the reference's."""

    own: Mapping[str, Rows] = field(default_factory=dict)
    reference: Mapping[str, Rows] = field(default_factory=dict)


def figures_of_texts(written: Written, longest: int) -> Figures:
    """Length, share cut off, refusals of harmless requests, distinct words and pairs of words, repetition."""
    figures: dict[str, Estimate | None] = {
        "length": _over_prompts(written.tokens, (0.0, float(longest))),
        "truncated": _over_prompts(written.cut_off, (0.0, 1.0)),
        "refusals": mean_interval([float(refusal(text)) for text in written.benign], bounds=(0.0, 1.0)),
        "repetition": _over_prompts([[repeats(text) for text in row] for row in written.texts], (0.0, 1.0)),
    }
    words = [text.lower().split() for row in written.texts for text in row]
    for n in (1, 2):
        figures[f"distinct_{n}"] = _plain(distinct(words, n), len(written.texts))
    return _known_figures(figures)


def figures_of_scores(scores: Scores) -> Figures:
    """Mean of each score, its gain over the reference in the reference's spread, and wins by the held-out reward."""
    figures: dict[str, Estimate | None] = {name: _over_prompts(rows) for name, rows in scores.own.items()}
    for name in [name for name in scores.own if name in scores.reference]:
        gain = standard_gain(scores.own[name], scores.reference[name])
        figures[f"{name}_gain"] = _plain(gain, len(scores.own[name]))
    if "reward_held_out" in scores.reference:
        shares = win_shares(scores.own["reward_held_out"], scores.reference["reward_held_out"])
        figures["win_rate"] = mean_interval(shares, bounds=(0.0, 1.0))
    return _known_figures(figures)


def figures_of_divergence(log_ratios: Rows, tokens: Rows) -> Figures:
    """KL divergence from the reference in nats, per answer and per token: means of log pi/pi_ref over own answers."""
    ratios, counts = ([value for row in rows for value in row] for rows in (log_ratios, tokens))
    per_token = _plain(kl_per_token(ratios, counts), len(log_ratios))
    return _known_figures({"kl": _over_prompts(log_ratios), "kl_token": per_token})


def figures_of_pairs(agreed: Mapping[str, tuple[ArrayLike, Sequence[str]]]) -> Figures:
    """Share of held-out pairs ranked as people did, by question (better, safer). `agreed`: 1, 0 or 1/2, and prompts."""
    return _known_figures(
        {f"agrees_{name}": mean_interval(values, prompts, (0.0, 1.0)) for name, (values, prompts) in agreed.items()}
    )


def _over_prompts(rows: Rows, bounds: tuple[float, float] | None = None) -> Estimate | None:
    groups = [index for index, row in enumerate(rows) for _ in row]
    return mean_interval(np.array([value for row in rows for value in row]), groups, bounds)


def _plain(value: float | None, count: int) -> Estimate | None:
    return None if value is None else Estimate(value, None, None, count)


def _known_figures(figures: Mapping[str, Estimate | None]) -> Figures:
    return {name: figure for name, figure in figures.items() if figure is not None}


def distinct(texts: Iterable[Sequence[Hashable]], n: int) -> float | None:
    """Different runs of n words over all runs, of all texts together (Li et al. 2016, distinct-n); None without a run.

    distinct([["a", "b", "a"], ["a", "b"]], 1) = 2/5; with n = 2: {ab, ba} of ab, ba, ab = 2/3
    """
    runs = [tuple(text[start : start + n]) for text in texts for start in range(len(text) - n + 1)]
    return len(set(runs)) / len(runs) if runs else None
