"""A scorecard's figures in words, the same in the log, on the terminal, in the report and in the model card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["share", "score", "nats", "tokens", "gain"]
REFUSAL_ACCURACY = (
    "The rule for refusals was chosen on the answers to half of XSTest's prompts; on 156 other prompts it agrees with"
    " people on 660 of 701 answers, 94.2 % (95 % interval 90.4 to 96.7 %)."
)


@dataclass(frozen=True)
class Figure:
    """One line of a scorecard."""

    title: str
    unit: Unit
    scorer: Literal["reward", "cost"] | None = None
    """The held-out scorer that it comes from."""

    def text(self, value: float | None) -> str:
        """61.2 %, 3.21 nats, 41 tokens, 0.42 sd"""
        if value is None or math.isnan(value):
            return "–"
        if self.unit == "share":
            return f"{100 * value:.3g} %"
        end = {"score": "", "nats": " nats", "tokens": " tokens", "gain": " sd"}[self.unit]
        return f"{value:.3g}{end}".replace("-", "−", 1)

    def whole(self, figure: Mapping[str, Any]) -> str:
        """The value with its 95 % interval or, where none is known, its standard error."""
        text = self.text(figure["value"])
        if figure["low"] is not None:
            return f"{text} ({self.text(figure['low'])} to {self.text(figure['high'])})"
        return text if figure["standard_error"] is None else f"{text} ± {figure['standard_error']:.2g}"


FIGURES: Mapping[str, Figure] = {
    "win_rate": Figure("wins against the reference", "share", "reward"),
    "reward_held_out": Figure("held-out reward", "score", "reward"),
    "reward_held_out_gain": Figure("held-out reward, gain over the reference", "gain", "reward"),
    "reward_own": Figure("the run's own reward", "score"),
    "reward_own_gain": Figure("the run's own reward, gain over the reference", "gain"),
    "cost_held_out": Figure("held-out cost", "score", "cost"),
    "cost_held_out_gain": Figure("held-out cost, gain over the reference", "gain", "cost"),
    "cost_own": Figure("the run's own cost", "score"),
    "cost_own_gain": Figure("the run's own cost, gain over the reference", "gain"),
    "kl": Figure("KL divergence from the reference, per answer", "nats"),
    "kl_token": Figure("KL divergence from the reference, per token", "nats"),
    "length": Figure("length of an answer", "tokens"),
    "truncated": Figure("answers cut off at the token limit", "share"),
    "refusals": Figure("refusals of harmless requests", "share"),
    "distinct_1": Figure("distinct words", "share"),
    "distinct_2": Figure("distinct pairs of words", "share"),
    "repetition": Figure("repeated runs of four words", "share"),
    "agrees_better": Figure("held-out pairs ranked as people did: better", "share"),
    "agrees_safer": Figure("held-out pairs ranked as people did: safer", "share"),
}
"""By name, in the order in which they are shown."""

BRIEF = {
    "win_rate": "wins {value}{ends}{right}",
    "reward_held_out_gain": "held-out reward {value}{right}",
    "reward_own_gain": "own {value}",
    "cost_held_out_gain": "held-out cost {value}{right}",
    "kl": "KL {value} an answer",
    "kl_token": "{value} a token",
    "length": "{value}",
    "truncated": "cut off {value}",
    "refusals": "refuses {value}",
    "distinct_2": "distinct-2 {value}",
    "repetition": "repeats {value}",
    "agrees_better": "agrees {value}{ends}",
}


def brief(metrics: Mapping[str, float]) -> str:
    """The most telling figures of a round in one line, from its metrics; empty without a scorecard.

    wins 61 % (45 % to 75 %) (scorer right in 71 % of 120), KL 3.2 nats an answer, 0.08 nats a token, 41 tokens, ...
    """
    phrases = []
    for name, form in BRIEF.items():
        value, figure = metrics.get(f"scorecard/{name}"), FIGURES[name]
        if value is None:
            continue
        low, high = (metrics.get(f"scorecard/{name}_{end}") for end in ("low", "high"))
        right, trials = (metrics.get(f"scorecard/{figure.scorer}_held_out_{key}") for key in ("right", "trials"))
        phrases.append(
            form.format(
                value=figure.text(value),
                ends="" if low is None else f" ({figure.text(low)} to {figure.text(high)})",
                right="" if right is None else f" (scorer right in {100 * right:.3g} % of {trials:g})",
            )
        )
    return ", ".join(phrases)
