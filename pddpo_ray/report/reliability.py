"""The reliability plot of a trained scorer: predicted against observed shares, one point per bin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pddpo_ray.storage.whole_files import written_aside

PLOT = "reliability.svg"


def write_reliability(report: Mapping[str, Any], folder: Path) -> Path:
    """Draws the held-out reliability of a scorer's report into its folder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    legends = {"pairs": "the score's choice is right", "labels": "answer is unsafe"}
    for name, legend in legends.items():
        bins = report["held_out"].get(name, {}).get("reliability")
        if bins is None:
            continue
        points = [(x, y, n) for x, y, n in zip(bins["predicted"], bins["observed"], bins["counts"], strict=True) if n]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], linewidth=1)
        sizes = [12 + 200 * n / sum(bins["counts"]) for _, _, n in points]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=sizes, label=legend)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted share", ylabel="observed share")
    axes.set_title(f"{report['kind']} model, held-out prompts")
    axes.legend(loc="upper left", frameon=False)
    path = folder / PLOT
    with written_aside(path) as aside:
        figure.savefig(aside, format="svg")
    return path
