"""Flags about people, with a stated error rate however often a lead looks. Pure: no database.

A flag is a bet. It starts at 1; under the flag's null, which honest people fulfil, each answer multiplies it by a
number whose mean is at most 1. So by Ville's inequality the chance that it ever reaches 1/alpha is at most alpha. The
four alphas add up to one in a hundred: a person who fulfils all four nulls is flagged in at most one run of a hundred,
whatever the number of answers or of looks.

| flag | null | a trial |
|---|---|---|
| controls | one errs on at most one control question in four | a control question |
| agreement | the same, and labels are exchangeable | that, or a question that has all its labels |
| side | one takes neither side more than two times in three, whichever answer stands there | a pair without a tie |
| speed | one sends at most one answer in five before it can have been read | an answer |
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CHANCES = {"agreement": 0.0085, "controls": 0.0005, "side": 0.0005, "speed": 0.0005}
"""Chance of a false flag about one person in one run. Agreement gets the most: with few labels per question it learns
least from an answer, while the other flags need some ten answers at any of these chances."""
BARS = {name: -math.log(chance) for name, chance in CHANCES.items()}
"""A bet whose logarithm is higher raises its flag."""

CONTROL_ERROR, CONTROL_STAKES = 0.25, (0.5, 0.75, 0.95)
SIDE_SHARE, SIDE_STAKES = 2 / 3, (0.95,)
HASTY_SHARE, HASTY_STAKES = 0.2, (0.5, 0.9)
OUTLIER = 2.5
"""Of the agreement bet: an answer that differs from all others multiplies its label's stake by exp(2.5)."""
CHARACTERS_A_SECOND = 150.0
"""Nobody reads faster than this, some 25 words; a second is the least for any answer."""

Labels = Mapping[str, Mapping[str, Hashable]]
"""Labels of one question, by person: each person's answers by field."""


@dataclass(frozen=True)
class Flag:
    """Something about a person's answers that a lead should look at, with its evidence in words."""

    name: str
    evidence: str


@dataclass(frozen=True)
class Record:
    """What one person's flags rest on."""

    questions: Sequence[Labels] = ()
    """Questions that this person labelled, with all the labels that they wanted."""
    controls: tuple[int, int] = (0, 0)
    """Wrong, and all."""
    left: tuple[int, int] = (0, 0)
    """Answers on the left taken as the more helpful ones, and all pairs without a tie."""
    hasty: tuple[int, int] = (0, 0)
    """Answers sent before they can have been read, and all."""


def flags(person: str, record: Record) -> list[Flag]:
    """The flags that are up, in the order of `CHANCES`."""
    (wrong, controls), (left, sides), (hasty, answers) = record.controls, record.left, record.hasty
    differs, expected, shared = disagreement(record.questions, person)
    control_bet = share_bet(wrong, controls, CONTROL_ERROR, CONTROL_STAKES)
    control_text = f"{wrong} of {controls} controls wrong" if controls else "no controls yet"
    bets = {
        "agreement": (
            # different answers: under both nulls the product of two bets is a bet
            control_bet + sum(agreement_bet(labels, person) for labels in record.questions),
            f"differs from the others in {100 * differs:.0f} % on {shared} questions, where people differ in"
            f" {100 * expected:.0f} %; {control_text}",
        ),
        "controls": (control_bet, control_text),
        "side": (
            _log_mean(share_bet(n, sides, SIDE_SHARE, SIDE_STAKES) for n in (left, sides - left)),
            f"{max(left, sides - left)} of {sides} times the {'left' if 2 * left >= sides else 'right'} answer",
        ),
        "speed": (
            share_bet(hasty, answers, HASTY_SHARE, HASTY_STAKES),
            f"{hasty} of {answers} answers sent before they can have been read",
        ),
    }  # fmt: skip
    return [Flag(name, bets[name][1]) for name, bar in BARS.items() if bets[name][0] >= bar]


def share_bet(successes: int, trials: int, null: float, stakes: Sequence[float]) -> float:
    """Logarithm of the mean likelihood ratio of `stakes` against `null`, after each of the trials. -> []

    Where the true share is at most `null`, each trial multiplies the ratio by at most 1 in the mean: stakes are higher
    than `null`.
    """
    gains = [successes * math.log(p / null) + (trials - successes) * math.log((1 - p) / (1 - null)) for p in stakes]
    return _log_mean(gains)


def _log_mean(bets: Iterable[float]) -> float:
    """Logarithm of the mean of bets, each given by its logarithm."""
    logs = np.array(list(bets))
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))


def agreement_bet(labels: Labels, person: str) -> float:
    """Logarithm of one question's factor: n q, q the stake on this person's place among the n labels. -> []

    Exchangeable labels give each place the chance 1/n, and the stakes of a question's places add up to 1, so the mean
    factor is 1. The stake grows with the number of answers in which a label differs from the others'. Two labels that
    differ say nothing about who is wrong: their factors are 1.
    """
    if person not in labels or len(labels) < 2:
        return 0.0
    weights = {author: math.exp(OUTLIER * len(answer) * _differs(labels, author)) for author, answer in labels.items()}
    return math.log(len(labels) * weights[person] / sum(weights.values()))


def disagreement(questions: Sequence[Labels], person: str) -> tuple[float, float, int]:
    """Mean share of the others' answers that a person's labels differ from; the same of an average label of those
    questions; and how many questions they are."""
    shared_items = [labels for labels in questions if person in labels and len(labels) > 1]
    if not shared_items:
        return 0.0, 0.0, 0
    own_share = float(np.mean([_differs(labels, person) for labels in shared_items]))
    average = float(np.mean([np.mean([_differs(labels, other) for other in labels]) for labels in shared_items]))
    return own_share, average, len(shared_items)


def _differs(labels: Labels, person: str) -> float:
    """Share of what the others said that this person's label differs from. -> [0, 1]"""
    own_answers = labels[person]
    differing = sum(answers[name] != own_answers[name] for answers in labels.values() for name in own_answers)
    return differing / ((len(labels) - 1) * len(own_answers))


def too_fast(seconds: float, characters: int) -> bool:
    """Whether this number of characters is more than anyone can have read in this number of seconds."""
    return seconds < max(1.0, characters / CHARACTERS_A_SECOND)
