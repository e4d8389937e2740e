"""Plots of `pddpo verify`, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np

from pddpo_ray.verify.checks import gap_bound
from pddpo_ray.verify.experiments import Curve
from pddpo_ray.worlds.tabular import TabularWorld


def plot_gaps(world: TabularWorld, curves: Mapping[str, Curve], file: Path) -> None:
    """Gap of the mixture against rounds, mean over seeds with a band of two standard errors, and A11's bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6.5), layout="constrained")
    # methods that stay stuck lie on one line: dash patterns keep each of them visible
    for found, style in zip(curves.values(), cycle(("-", (0, (6, 3)), "-.", (0, (2, 2)))), strict=False):
        mean = found.gap.mean(axis=0)
        error = found.gap.std(axis=0, ddof=1) / np.sqrt(len(found.gap)) if len(found.gap) > 1 else 0.0 * mean
        rounds = np.arange(1, len(mean) + 1)
        (line,) = axes.plot(rounds, mean, label=found.method.name, linewidth=1.6, linestyle=style)
        axes.fill_between(
            rounds,
            np.maximum(mean - 2 * error, 1e-4),
            mean + 2 * error,
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )
    longest = max(found.gap.shape[1] for found in curves.values())
    horizon = np.unique(np.geomspace(5, longest, 60).astype(int))
    bound = [gap_bound(world.oracle, first=world.oracle.rho, rounds=k) for k in horizon]
    axes.plot(horizon, bound, color="black", linestyle="--", linewidth=1.2, label="bound of A11 (exact fits)")
    axes.set(xscale="log", yscale="log", xlabel="round", ylabel="gap of the mixture: (f* - f) + 2 rho [g]+")
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    figure.legend(fontsize=8, ncols=3, loc="outside lower center")
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
