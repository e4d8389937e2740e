"""verify.html: every check in words, the gaps of all methods beside the theorem's bound, and what the symbols mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pddpo_lab.verify.checks import gap_bound
from pddpo_lab.verify.experiments import Curve
from pddpo_lab.verify.methods import PICTURES
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.report.charts import Line, color_of, line_chart
from pddpo_ray.report.shell import page
from pddpo_ray.report.text import escape, number, table

SMALLEST = 1e-4
"""The logarithmic axis shows no gap below this one."""
BOUND = 6
"""The colour of the theorem's bound, grey."""
ABOUT = (
    "Each claim is tested on a made-up world whose answers' helpfulness and harm are known: against a second solver, a"
    " closed form or finite differences, or in many simulated runs. Two worlds drawn at random repeat six of them. The"
    " equations are in docs/paper.md."
)
WORDS = {
    "gap": "how far from the best policy that keeps the limit: (f* − f) + 2ρ max(g, 0). 0 is the best",
    "f, f*": "helpfulness, less β times the divergence from the reference; f* is that of the best policy, π* or pi*",
    "g": "violation: the expected cost less the limit. Above 0 the limit is broken",
    "λ, lambda, lambda_1": "the multiplier: the price of the limit; lambda* at the optimum, lambda_1 in round 1",
    "ρ, rho": "half of the largest multiplier that is allowed. Slater's condition bounds lambda* by it",
    "β, beta": "the weight of staying near the reference, as in DPO",
    "D, D', D''": "the dual: the best value where cost is charged at the multiplier; its first and second derivative",
    "pi_r": "the reward policy, which is trained for helpfulness alone",
    "mixture": "draw one of the rounds evenly, then an answer of its policy. Marginal: as one table of probabilities",
    "covered": "answers that occur in the offline pairs; the covered-only gap is that of the best policy on them alone",
    "optimistic policy": "the policy with a bonus for what is uncertain; it chooses the pairs that get labelled",
    "resampled, n": "runs draw from n candidates, each weighed by its bonus; the exact draw is from all answers",
    "proposals only": "half of the first answers of pairs by the policy, half by the reference, and no bonus",
    "split": "the policy without bonus is estimated, mixed and released, as in runs",
    "paper mode": "the optimistic policy itself is estimated, mixed and released",
    "J, E_pi, E_mu, b": "J: the expected score of a policy, reward less λ times cost, less β times its divergence. b:"
    " how wrong the score of an answer may be; its mean under the policy (E_pi), and where pairs are collected (E_mu)",
    "scale": "the size of the bonus: twice the number of standard deviations of what is uncertain",
    "uncentred": "features as they are; centred: less their mean over the prompt. The bonus follows their norm",
    "printed": "the cost loss as the paper prints it (erratum 1). Errata are counted in docs/paper.md",
    "theory bonus": "the paper's bonus with its own constants, clipped at twice the bound z of a score",
    "free policy": "a policy with a number of its own for every answer",
    "L_base": "the paper's condition on the baseline, the distribution that a pair's other answer comes from",
    "K, M, Y": "rounds; labels of one answer; answers to one prompt",
    "C": "the bound of a cost that is estimated from labels",
    "unsafe_rate, logit_labels": "what is averaged over answers: the share of unsafe labels, or its logit",
    "MLE, L-BFGS-B": "maximum likelihood, here with scores in a box; a solver of scipy's",
    "TV": "total variation: half of the summed differences of two distributions",
    "SACPO": "a method of others; MoCAN too. docs/methods.md has both",
    "Var": "variance",
}
"""What stands in claims, pictures and measurements and is no everyday English."""


def render(world: TabularWorld, curves: Mapping[str, Curve], checks: Sequence[Mapping[str, Any]]) -> str:
    """The page as text."""
    verdict = {True: '<span class="good">holds</span>', False: '<span class="bad">fails</span>'}
    rows = [
        [
            f"{escape(check['in_words'])}<small>{escape(check['claim'])}</small>",
            number(check["value"], check["claim"]),
            escape(check["reference"].replace("<=", "≤").replace(">=", "≥")),
            verdict[check["passed"]],
        ]
        for check in checks
    ]
    held = sum(check["passed"] for check in checks)
    lede = f"{held} of {len(checks)} claims hold."
    header = f"<h1>Formulas and guarantees</h1><p class=lede>{lede}</p><p>{escape(ABOUT)}</p>"
    pictures = [
        gap_chart(world, {one.name: curves[one.name] for one in methods if one.name in curves}, title, told)
        for title, told, methods in PICTURES
    ]
    checked = table(["claim, and what was measured", "value", "must be", "result"], rows, kind="claims")
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS.items())
    sections = [
        ("gaps", "Gaps", f'<div class="charts">{"".join(pictures)}</div>'),
        ("checks", "Claims", checked),
        ("words", "Words and symbols", f"<dl class=terms>{words}</dl>"),
    ]
    return page("pddpo verify", "pddpo verify", header, sections, "verify.json")


def gap_chart(world: TabularWorld, curves: Mapping[str, Curve], title: str, told: str) -> str:
    """Gap of the mixture over the rounds, mean over seeds with two standard errors, and the bound of paper.md §11.

    Empty where there is no curve.
    """
    lines = []
    for index, curve in enumerate(curves.values()):
        mean = curve.gap.mean(axis=0)
        error = curve.gap.std(axis=0, ddof=1) / np.sqrt(len(curve.gap)) if len(curve.gap) > 1 else 0.0 * mean
        low, high = (np.maximum(edge, SMALLEST).tolist() for edge in (mean - 2 * error, mean + 2 * error))
        band = list(zip(low, high, strict=True)) if len(curve.gap) > 1 else []
        points = list(enumerate(np.maximum(mean, SMALLEST).tolist(), 1))
        lines.append(
            Line(curve.method.name, points, color_of(index), band=band, band_name="mean ± 2 standard errors over seeds")
        )
    if not lines:
        return ""
    horizon = np.unique(np.geomspace(5, max(len(line.points) for line in lines), 60).astype(int)).tolist()
    bound = [(k, gap_bound(world.oracle, first=world.oracle.rho, rounds=k)) for k in horizon]
    lines.append(Line("the theorem's bound for exact fits", bound, BOUND, dashed=True))
    detail = f"{told} Gap of the mixture of all rounds so far. Both axes are logarithmic; bands may extend below."
    return line_chart(title, detail, lines, y_label="gap", log=True)
