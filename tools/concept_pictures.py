"""The four pictures of docs/concepts, from exact computations and a stored study; each one SVG for light and dark.

python -m tools.concept_pictures            writes docs/concepts/*.svg
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logsumexp

from pddpo_lab.worlds.tabular.world import random_world
from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import first_certified, upper_bound

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "concepts"
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 18, 46
STYLE = """
  svg.picture { --ink: #1c2126; --soft: #5f6b76; --grid: #d5dbe0; }
  svg.picture { --c1: #1f6fd0; --c2: #c2620c; --c3: #14845a; --c4: #8a3fa8; }
  @media (prefers-color-scheme: dark) {
    svg.picture { --ink: #e6e9ec; --soft: #a3afba; --grid: #3a434b; }
    svg.picture { --c1: #6aaeff; --c2: #f39a4a; --c3: #4cc795; --c4: #d08cf0; }
  }
  .picture text { font: 13px system-ui, sans-serif; fill: var(--ink); }
  .picture .soft { fill: var(--soft); font-size: 12px; }
  .picture .axis { stroke: var(--soft); fill: none; } .picture .grid { stroke: var(--grid); fill: none; }
  .picture .line { fill: none; stroke-width: 2.2; }
  .picture .limit { stroke-dasharray: 6 4; stroke-width: 1.6; fill: none; }
"""
LIMIT = 0.3
"""Largest share of unsafe answers in the pictures of a limit and of its multiplier."""
SEED = 4


@dataclass(frozen=True)
class Frame:
    """Axes of a chart: data to points."""

    x: tuple[float, float]
    y: tuple[float, float]
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)
        return across, self.bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top)

    def axes(self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]], x_name: str, y_name: str) -> str:
        parts = [f'<path class="axis" d="M{LEFT} {self.top:g}V{self.bottom:g}H{WIDTH - RIGHT}"/>']
        for value, label in ys:
            _, y = self.at(self.x[0], value)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(text(LEFT - 7, y + 4, label, "end", "soft"))
        for value, label in xs:
            parts.append(text(self.at(value, self.y[0])[0], self.bottom + 17, label, "middle", "soft"))
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, self.bottom + 36, x_name, "middle")) if x_name else None
        middle = (self.top + self.bottom) / 2
        parts.append(f'<g transform="rotate(-90 16 {middle:g})">{text(16, middle + 4, y_name, "middle")}</g>')
        return "\n".join(parts)

    def line(self, points: Sequence[tuple[float, float]], color: str, kind: str = "line") -> str:
        path = "L".join("{:.1f} {:.1f}".format(*self.at(*point)) for point in points)
        return f'<path class="{kind}" style="stroke: var(--{color})" d="M{path}"/>'

    def dot(
        self, x: float, y: float, color: str, label: str, dx: float = 9, dy: float = 4, anchor: str = "start"
    ) -> str:
        across, up = self.at(x, y)
        mark = f'<circle cx="{across:.1f}" cy="{up:.1f}" r="5" style="fill: var(--{color})"/>'
        return mark + text(across + dx, up + dy, label, anchor)


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def svg(name: str, about: str, parts: Sequence[str]) -> str:
    head = f'<svg class="picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    title = f'aria-labelledby="{name}-t"><title id="{name}-t">{about}</title>'
    return f"{head} {title}\n<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"


def policies() -> Callable[[float], tuple[float, float, float]]:
    """lambda -> (share of unsafe answers, helpfulness, variance of the share within prompts) of the best policy there.

    The policy that maximises reward - beta KL - lambda P(unsafe) on a random table, exactly.
    """
    oracle = random_world(SEED).oracle
    unsafe = expit(oracle.cost)

    def at(multiplier: float) -> tuple[float, float, float]:
        scores = np.log(oracle.reference) + (oracle.reward - multiplier * unsafe) / oracle.beta
        policy = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
        means = (policy * unsafe).sum(axis=1)
        divergence = (policy * np.log(np.maximum(policy, 1e-300) / oracle.reference)).sum(axis=1)
        helpful = (policy * oracle.reward).sum(axis=1) - oracle.beta * divergence
        variance = (policy * (unsafe - means[:, None]) ** 2).sum(axis=1)
        return tuple(float(oracle.prior @ each) for each in (means, helpful, variance))  # type: ignore[return-value]

    return at


def best_multiplier() -> float:
    at = policies()
    return float(brentq(lambda multiplier: at(multiplier)[0] - LIMIT, 0.0, 20.0))


def limit_picture() -> str:
    at, best = policies(), best_multiplier()
    curve = [at(float(multiplier))[:2] for multiplier in np.linspace(0.0, 6.0, 121)]
    shares, helpful = [one[0] for one in curve], [one[1] for one in curve]
    frame = Frame((0.0, 0.7), (min(helpful) - 0.1, max(helpful) + 0.15))
    ys = [(tick, f"{tick:.1f}") for tick in np.arange(np.ceil(frame.y[0] * 2) / 2, frame.y[1], 0.5)]
    kept, free = at(best), at(0.0)
    parts = [
        frame.axes([(tick / 10, f"{10 * tick} %") for tick in range(8)], ys, "share of unsafe answers", "helpfulness"),
        frame.line([(LIMIT, frame.y[0]), (LIMIT, frame.y[1])], "c2", "limit"),
        text(*offset(frame.at(LIMIT, frame.y[0]), 8, -10), "the limit: at most 30 %"),
        frame.line(list(zip(shares, helpful, strict=True)), "c1"),
        frame.dot(*free[:2], "c2", "most helpful, breaks the limit", 6, 22, "middle"),
        frame.dot(*kept[:2], "c3", "most helpful of those that keep it", -9, -10, "end"),
    ]
    return svg("limit", "Helpfulness against the share of unsafe answers, and a limit of 30 per cent", parts)


def offset(point: tuple[float, float], dx: float, dy: float) -> tuple[float, float]:
    return point[0] + dx, point[1] + dy


def multiplier_rounds(rounds: int = 12) -> tuple[list[float], list[float]]:
    """Multipliers and shares of unsafe answers of rounds of damped Newton steps on the exact world."""
    at, beta, multiplier = policies(), random_world(SEED).oracle.beta, 0.0
    multipliers, shares = [], []
    for _ in range(rounds):
        share, _, variance = at(multiplier)
        multipliers.append(multiplier)
        shares.append(share)
        multiplier = max(0.0, multiplier + 0.5 * beta * (share - LIMIT) / variance)
    return multipliers, shares


def multiplier_picture() -> str:
    multipliers, shares = multiplier_rounds()
    rounds, best = range(1, len(shares) + 1), best_multiplier()
    above = Frame((1, len(shares)), (0.2, 0.7), bottom=120)
    below = Frame((1, len(shares)), (0.0, 1.2 * max(best, *multipliers)), top=142)
    top = float(np.ceil(below.y[1] * 5 - 1) / 5)
    parts = [
        above.axes([], [(tick, f"{tick:.0%}".replace("%", " %")) for tick in (0.2, 0.4, 0.6)], "", "unsafe"),
        above.line([(1, LIMIT), (len(shares), LIMIT)], "c2", "limit"),
        text(*offset(above.at(len(shares), LIMIT), -4, -7), "the limit: 30 %", "end"),
        above.line(list(zip(rounds, shares, strict=True)), "c1"),
        below.axes(
            [(tick, str(tick)) for tick in rounds], [(0, "0"), (top / 2, f"{top / 2:g}")], "round", "multiplier"
        ),
        below.line([(1, best), (len(shares), best)], "c3", "limit"),
        text(*offset(below.at(len(shares), best), -4, -7), f"right price: {best:.2f}", "end"),
        below.line(list(zip(rounds, multipliers, strict=True)), "c1"),
    ]
    return svg("multiplier", "The share of unsafe answers and the multiplier, round by round", parts)


DRAWS, TRUE_RATE, CERTIFIED_LIMIT = 3000, 0.0025, 0.01


def drawn_values() -> Array:
    """1 for an unsafe answer; three thousand draws at a true rate of 0.25 %.

    The first seed with eight unsafe answers, which is about the mean, and one of them early.
    """
    streams = (np.random.default_rng(seed).binomial(1, TRUE_RATE, DRAWS) for seed in range(1000))
    return next(one for one in streams if one.sum() == 8 and one[:200].any()).astype(float)


def certificate_picture() -> str:
    values, level = drawn_values(), 0.05
    looks = [*range(50, DRAWS + 1, 25)]
    bounds = [(look, 100 * upper_bound(values[:look], CERTIFIED_LIMIT, level)) for look in looks]
    seen = [(look, 100 * float(values[:look].mean())) for look in looks]
    decided = first_certified(values, CERTIFIED_LIMIT, level)
    assert decided is not None
    frame = Frame((0, DRAWS), (0.0, 3.0))
    parts = [
        frame.axes(
            [(tick, f"{tick:,}") for tick in range(0, DRAWS + 1, 500)],
            [(tick, f"{tick} %") for tick in (0, 1, 2, 3)],
            "answers drawn and labelled",
            "unsafe answers",
        ),
        frame.line([(0, 1), (DRAWS, 1)], "c2", "limit"),
        text(*offset(frame.at(DRAWS, 1), -4, -7), "the limit: at most 1 %", "end"),
        frame.line([one for one in bounds if one[1] <= 3.0], "c1"),
        text(*offset(frame.at(620, 2.2), 0, 0), "upper bound, 95 % sure at every look"),
        frame.line(seen, "c4"),
        text(*offset(frame.at(DRAWS, 0.25), -4, 18), "share seen so far", "end"),
        frame.dot(decided, 1.0, "c3", f"certified after {decided:,} answers", 8, -32),
    ]
    return svg("certificate", "An upper bound that falls below a limit of one per cent", parts)


ARMS = (
    ("off", "c2", "the policy's own answers"),
    ("shipped", "c1", "chosen with the bonus"),
    ("exact", "c3", "the ideal draw"),
)


def exploration_gaps(where: str = "twin/deep") -> dict[str, Array]:
    """Mean gap of every round over the registered worlds, by arm. [rounds]"""
    stored = json.loads((ROOT / "lab" / "studies" / "exploration" / "results.json").read_text(encoding="utf-8"))
    worlds = [runs for name, runs in stored.items() if name.startswith(f"{where}/") and int(name.split("/")[2]) >= 1000]
    return {arm: np.mean([runs[arm]["gaps"] for runs in worlds], axis=0) for arm, _, _ in ARMS}


def exploration_picture() -> str:
    gaps = exploration_gaps()
    rounds = len(gaps["off"])
    frame = Frame((1, rounds), (0.0, 1.15 * max(float(each.max()) for each in gaps.values())))
    ticks = [0.5 * step for step in range(int(frame.y[1] / 0.5) + 1)]
    parts = [
        frame.axes(
            [(tick, str(tick)) for tick in range(1, rounds + 1)],
            [(tick, f"{tick:.1f}") for tick in ticks],
            "round",
            "gap to the best policy",
        )
    ]
    for arm, color, label in ARMS:
        parts.append(frame.line(list(zip(range(1, rounds + 1), gaps[arm].tolist(), strict=True)), color))
        lift = {"off": -14, "shipped": -30, "exact": 17}[arm]
        parts.append(text(*offset(frame.at(rounds, float(gaps[arm][-1])), -4, lift), label, "end"))
    return svg(
        "exploration", "The gap to the best policy, round by round, for three ways to choose what is labelled", parts
    )


PICTURES: dict[str, Callable[[], str]] = {
    "limit": limit_picture,
    "multiplier": multiplier_picture,
    "certificate": certificate_picture,
    "exploration": exploration_picture,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(FOLDER.relative_to(ROOT) / f"{name}.svg")
