"""From finished cells to the figure, the tables and the verdict. Pure functions; one file is drawn: the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lab.studies.study import FOLDER, registration
from pddpo_lab.compare.suite import load_suite
from pddpo_ray.records import Array

FIGURE = Path(__file__).parents[3] / "docs" / "paper-small.svg"
AXES = ("harmlessness", "helpfulness")
GROUND = "ground"
FIXED, OPEN = ("pd-dpo-half", "pd-dpo-1", "pd-dpo-2", "pd-dpo-4"), "open"
Cells = Mapping[str, Any]


def registered() -> Mapping[str, Any]:
    return registration("paper_small")


def arms() -> dict[str, str]:
    """Labels of the suite's arms, in its order."""
    anywhere = ["data.sample=true", "data.reference={}"]
    suite = load_suite(str(FOLDER / "paper_small" / "paper-small.yaml"), overrides=anywhere)
    return {name: arm.label for name, arm in suite.arms.items()}


def points(results: Cells) -> dict[str, Array]:
    """Of each arm, both measures of each question, seeds averaged, in standard deviations of the reference's answers.
    -> [2, questions]"""
    found = {}
    for arm in results:
        if arm != GROUND:
            cells = list(results[arm].values())
            spread = np.array([[np.std(cell["reference"][axis], ddof=1) for axis in AXES] for cell in cells])
            values = np.array([[cell[axis] for axis in AXES] for cell in cells])
            found[arm] = (values / spread[..., None]).mean(axis=0)
    return found


def interval(values: Array) -> tuple[float, float, float]:
    """Mean over questions, and the ends of Student's 95 % interval."""
    mean, half = values.mean(), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(mean), float(mean - half), float(mean + half)


# --- the frontier -----------------------------------------------------------------------------------------------------


def lead(own: Array, others: Array) -> Array:
    """What both measures of each policy could lose until a mixture of two others is as good in both.
    own [n, 2], others [m, 2] -> [n]

    lead([[1, 1]], [[0, 0]]) = 1; lead([[0.5, 0.5]], [[1, 0], [0, 1]]) = 0
    """
    share = np.linspace(0.0, 1.0, 101)[:, None, None, None]
    mixtures = (share * others[:, None] + (1.0 - share) * others).reshape(-1, 2)
    ahead: Array = -np.min(mixtures - own[:, None], axis=-1).max(axis=1)
    return ahead


def verdict(results: Cells) -> tuple[str, tuple[float, float, float] | None]:
    """holds, fails or open; and the mean lead of PD-DPO's arms with its interval."""
    plan, found = registered(), points(results)
    own, others = ([arm for arm in plan[kind] if arm in found] for kind in ("pd-dpo", "others"))
    if len(own) < 3 or len(others) < 4:
        return OPEN, None
    values = np.stack([found[arm] for arm in (*own, *others)])
    generator = np.random.default_rng(0)

    def of(picked: NDArray[np.integer[Any]]) -> float:
        means = values[..., picked].mean(axis=-1)
        return float(lead(means[: len(own)], np.vstack([means[len(own) :], np.zeros(2)])).mean())

    count = values.shape[-1]
    drawn = generator.integers(count, size=(plan["resamples"], count))
    again = [of(picked) for picked in drawn]
    low, high = np.quantile(again, [0.025, 0.975])
    measured = of(np.arange(count)), float(low), float(high)
    if not _moved(found):
        return OPEN, measured
    return "holds" if low >= -plan["margin"] else "fails" if high < -plan["margin"] else OPEN, measured


def _moved(found: Mapping[str, Array]) -> bool:
    """Whether a method of one label moved what its label is about."""
    ends = [interval(found[arm][axis])[1:] for arm, axis in (("dpo-harmless", 0), ("dpo-helpful", 1)) if arm in found]
    return any(low > 0 or high < 0 for low, high in ends)


# --- what is shown ----------------------------------------------------------------------------------------------------


def tables(results: Cells) -> str:
    """Markdown; writes the figure too."""
    known, found = arms(), points(results)
    lines = ["| scorer | right on held-out prompts | 95 % interval |", "|---|---|---|"]
    for name, one in sorted(results[GROUND]["scorers"].items()):
        right = f"{one['right']:g} of {one['trials']:g}, {100 * one['right'] / one['trials']:.1f} %"
        lines.append(f"| {name} | {right} | {100 * one['low']:.1f} to {100 * one['high']:.1f} % |")
    heads = ("method", "seeds", "reward", "−cost", "KL, nats", "agrees on better, safer", "multiplier")
    for one in [cell for arm in found for cell in results[arm].values()][:1]:
        agreed = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in one["judges"].items())
        lines += ["", f"Labels of the pairs that methods learn from, with which the judges agree: {agreed}."]
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm, label in known.items():
        if arm not in found:
            lines.append(f"| {label} | not run | | | | | |")
            continue
        cells = results[arm]
        harmless, helpful = (interval(one) for one in found[arm])
        kl, better, safer = (
            np.mean([cell[name] for cell in cells.values()]) for name in ("kl", "agrees_better", "agrees_safer")
        )
        path = " ".join(f"{value:.2g}" for value in next(iter(cells.values()))["multiplier"])
        agreed = f"{100 * better:.0f} %, {100 * safer:.0f} %"
        lines.append(
            f"| {label} | {', '.join(cells)} | {_shown(helpful)} | {_shown(harmless)} | {kl:.2f} | {agreed} | {path} |"
        )
    said, measured = verdict(results)
    lines += ["", f"Verdict: {said}" + ("" if measured is None else f"; mean lead of PD-DPO {_shown(measured)}")]
    if found:
        draw({arm: known[arm] for arm in known if arm in found and "." not in arm}, found)
    return "\n".join(lines)


def _shown(measured: Sequence[float]) -> str:
    mean, low, high = measured
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def draw(shown: Mapping[str, str], found: Mapping[str, Array]) -> None:
    """Reward against minus the cost, with both intervals; right of the dashed line the limit is kept."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "paper-small"
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(registered()["limit"], color="#2a7d46", linestyle="--", linewidth=1, label="limit")
    axes.plot(0, 0, "k*", markersize=9, label="reference")
    for index, (arm, label) in enumerate(shown.items()):
        (x, x_low, x_high), (y, y_low, y_high) = (interval(one) for one in found[arm])
        own = arm in registered()["pd-dpo"]
        axes.errorbar(
            x, y, xerr=[[x - x_low], [x_high - x]], yerr=[[y - y_low], [y_high - y]],
            fmt=("o^" if own else "sD")[index // 10],
            color=f"C{index % 10}", markersize=6, elinewidth=0.7, alpha=0.9, fillstyle="full" if own else "none",
            label=label,
        )  # fmt: skip
    if path := [found[arm].mean(axis=1) for arm in FIXED if arm in found]:
        axes.plot(*np.transpose(path), color="0.5", linewidth=0.8, zorder=0)
    unit = "over the reference, standard deviations"
    axes.set(xlabel=f"−cost {unit}", ylabel=f"reward {unit}")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})
