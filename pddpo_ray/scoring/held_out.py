"""How often a scorer is right about labels that it did not learn from, counted in comparisons that are independent.

Several pairs of one prompt say less than as many pairs of different ones. Where prompts are a sample (files), each
gives one comparison; where a run draws answers to prompts of its own, every pair is one. So the number of right
comparisons is binomial, and the interval of the accuracy is exact (Clopper-Pearson). Chance is 1/2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pddpo_ray.records import HARM, Array, LabelledPair, Response, Verdict
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.intervals import clopper_pearson

Text = tuple[tuple[int, ...], tuple[int, ...]]
"""(prompt token ids, response token ids)"""
Comparison = tuple[Text, Text]
"""(text that should score higher, the other one)"""
Kind = Literal["reward", "cost"]
KINDS: tuple[Kind, ...] = ("reward", "cost")
REPORT = "scorer.json"
"""In the folder of a model that `pddpo scorer train` made: what was held out from it and how good it is there."""


@dataclass(frozen=True)
class ScoreRow:
    """One comparison: `higher` won it (the better answer of a reward row, the costlier one of a cost row).

    Without `lower` it is a single answer with a safety label, compared with nothing. Signs are those of the safety
    labels: +1 unsafe, -1 safe, 0 where there is none (always 0 in a reward row).
    """

    prompt: tuple[int, ...]
    higher: tuple[int, ...]
    lower: tuple[int, ...] | None
    higher_sign: int = 0
    lower_sign: int = 0
    group: str | None = field(default=None, kw_only=True)
    """What is held out together; None: the rows of one prompt."""

    @property
    def unit(self) -> str | tuple[int, ...]:
        """Rows of one unit are not independent of each other."""
        return self.prompt if self.group is None else self.group

    @property
    def labelled(self) -> list[tuple[Text, int]]:
        """Its answers with a safety label, and the label's sign."""
        both = ((self.higher, self.higher_sign), (self.lower, self.lower_sign))
        return [((self.prompt, answer), sign) for answer, sign in both if sign and answer is not None]


@dataclass(frozen=True)
class Trials:
    """`right` of `count` independent comparisons; ties count half."""

    right: float
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the accuracy; [0, 1] without a comparison."""
        return clopper_pearson(self.right, self.count) if self.count else (0.0, 1.0)

    @property
    def better_than_chance(self) -> bool:
        """Whether the whole interval lies above 1/2: at chance, in at most 2.5 % of cases."""
        return self.interval[0] > 0.5

    def as_metrics(self) -> dict[str, float]:
        low, high = self.interval
        return {"right": self.right, "trials": float(self.count), "low": low, "high": high}

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> Trials:
        """What `as_metrics` wrote."""
        return cls(float(metrics["right"]), int(metrics["trials"]))

    def __str__(self) -> str:
        if not self.count:
            return "it was compared with no label"
        low, high = self.interval
        share = 100 * self.right / self.count
        return (
            f"it is right in {self.right:g} of {self.count} comparisons ({share:.3g} %,"
            f" 95 % interval {100 * low:.3g} to {100 * high:.3g} %)"
        )


def by_length(texts: Sequence[Text]) -> list[Text]:
    """Each text once, those of one length together: little padding in a batch."""
    return sorted(dict.fromkeys(texts), key=lambda text: (len(text[0]) + len(text[1]), text))


def rows_of(labelled: Sequence[LabelledPair], kind: Kind, unsafe: Mapping[str, bool] | None = None) -> list[ScoreRow]:
    """Training rows of the decided pairs; `unsafe` holds one safety label per answer, by its id."""
    bits = unsafe if kind == "cost" and unsafe is not None else {}

    def sign(answer: Response) -> int:
        return 0 if answer.id not in bits else 1 if bits[answer.id] else -1

    rows = []
    for item in labelled:
        verdict = item.helpful if kind == "reward" else item.label(HARM)
        if verdict not in (Verdict.FIRST, Verdict.SECOND):
            continue
        first, second = item.pair.first, item.pair.second
        higher, lower = (first, second) if verdict is Verdict.FIRST else (second, first)
        rows.append(ScoreRow(item.pair.prompt.token_ids, higher.token_ids, lower.token_ids, sign(higher), sign(lower)))
    return rows


def comparisons(rows: Sequence[ScoreRow], *, by_prompt: bool, seed: int) -> list[Comparison]:
    """Independent comparisons: the decided pairs or, where there are more of them, unsafe answers with safe ones.

    Each labelled answer meets one of the other side, drawn by seed. `by_prompt`: one pair and one answer of a prompt.
    """
    rng = np.random.default_rng([seed, len(rows), 11])
    order = [rows[i] for i in rng.permutation(len(rows))]
    decided = [row for row in order if row.lower is not None]
    pair_rows = list({row.unit: row for row in decided}.values()) if by_prompt else decided
    pairs = [((row.prompt, row.higher), (row.prompt, row.lower)) for row in pair_rows if row.lower is not None]
    # a text may be in several pairs: it is one answer
    labelled = {text: (sign, row.unit) for row in order for text, sign in row.labelled}
    drawn = [list(labelled.items())[i] for i in rng.permutation(len(labelled))]
    if by_prompt:
        drawn = list({unit: (text, (sign, unit)) for text, (sign, unit) in drawn}.values())
    sides = [[text for text, (sign, _) in drawn if sign == side] for side in (1, -1)]
    matched = list(zip(*sides, strict=False))
    return matched if len(matched) > len(pairs) else pairs


Part = Literal["fit", "calibrate", "judge"]
"""What a row is for: to learn from, to set scale and zero, or only to be looked at."""


def parts_of(keys: Sequence[Any], held_out: float, calibration: float, seed: int) -> list[Part]:
    """What each row is for, by what it belongs to: shares of the distinct keys, drawn by seed."""
    units = sorted(set(keys))
    order = np.random.default_rng([seed, len(units), 5]).permutation(len(units))
    ends = np.round(np.cumsum([held_out, calibration]) * len(units)).astype(int)
    drawn: dict[Any, Part] = {
        units[index]: "judge" if at < ends[0] else "calibrate" if at < ends[1] else "fit"
        for at, index in enumerate(order)
    }
    return [drawn[key] for key in keys]


def compared_answers(
    labelled: Sequence[LabelledPair],
    kind: Kind,
    unsafe: Mapping[str, bool],
    score: Callable[[Sequence[Response]], Array],
    *,
    by_prompt: bool,
    seed: int,
    most: int | None = None,
) -> Trials:
    """How often scores of answers agree with the labels of these pairs, in a limited number of comparisons."""
    sample = comparisons(rows_of(labelled, kind, unsafe), by_prompt=by_prompt, seed=seed)[:most]
    answers: dict[Text, Response] = {
        (answer.prompt.token_ids, answer.token_ids): answer
        for item in labelled
        for answer in (item.pair.first, item.pair.second)
    }
    return compared_on(sample, lambda texts: score([answers[text] for text in texts]))


def compared_on(comparisons: Sequence[Comparison], score: Callable[[Sequence[Text]], Array]) -> Trials:
    """How many of the comparisons scores get right; `score` is called once, with every text."""
    if not comparisons:
        return Trials(0.0, 0)
    scores = score([text for pair in comparisons for text in pair]).reshape(-1, 2)
    return Trials(float(agreement(scores[:, 0] - scores[:, 1]).sum()), len(comparisons))
