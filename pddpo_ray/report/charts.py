"""Charts for a page: matplotlib draws, the SVG is inlined, and the page's style sheet gives the colours.

A chart is 360 units wide, about the width of a phone, and scales with its column. Each point carries a `<title>`, which
browsers show as a tooltip. Importing this module imports matplotlib, so only what builds a page does.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Literal
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from matplotlib.transforms import Affine2D

from pddpo_ray.report.text import escape, short, visible

WIDTH, HEIGHT = 360.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 18.0, 14.0, 30.0
"""Size of a chart and its margins, in points; matplotlib writes SVG at 72 points an inch."""
OUTLIER = 6.0
"""A value this many times the middle half's width away from that half does not stretch the axis."""
LABEL_ROWS = 4
"""Number of rows in which values of neighbouring points outside the frame are written."""
MARKS = 60
"""Most points of a curve that have a mark with a tooltip."""
OUTSIDE = " An arrow with a number stands for a value outside the frame."
HALO = "halo"
"""Class of texts that may lie over a curve."""

STYLE = resources.files("pddpo_ray.report").joinpath("style.css").read_text(encoding="utf-8")
COLORS = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", STYLE.partition("@media")[0]))
"""Colours of the light page by name. In the SVG each becomes `var(--name)`, so that dark mode works."""
SERIES = 8
"""Colours c1 to c8 are for data."""

Xy = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve; `color` is the number of a colour. `band` holds (low, high) for each point, drawn as an interval."""

    name: str
    points: Sequence[Xy]
    color: int
    dashed: bool = False
    band: Sequence[Xy] = ()
    band_name: str = "95 % interval"


@dataclass(frozen=True)
class Level:
    """A horizontal line, e.g. a limit."""

    name: str
    y: float
    color: int


@dataclass(frozen=True)
class Dot:
    """A named point of the plane; `mark` is the sign drawn on it and repeated in the legend."""

    name: str
    x: float
    y: float
    color: int
    mark: str
    x_ends: Xy | None = None
    """Ends of a bar of error through the point, which the axes hold; None: there is none."""
    y_ends: Xy | None = None


def color_of(index: int) -> int:
    """The number of the colour of the index-th series; they begin again after the last."""
    return index % SERIES + 1


def line_chart(
    title: str,
    detail: str,
    lines: Sequence[Line],
    *,
    levels: Sequence[Level] = (),
    x_label: str = "round",
    y_label: str = "",
    include: Sequence[float] = (),
    log: bool = False,
) -> str:
    """A figure with curves over rounds (or what `x_label` says), empty if there is nothing to draw.

    `include` holds values that the y axis shows. With `log` both axes are logarithmic, and all values are above 0.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = [x for line in lines for x, _ in line.points]
    values = [y for line in lines for _, y in line.points]
    edges = [edge for line in lines for ends in line.band for edge in ends]
    always = [level.y for level in levels] + list(include)
    across, up = _frame(xs), _frame(values + edges, always, room=0.08)
    if log:
        across, up = (min(xs), max(xs)), (0.8 * min(values), 1.25 * max(values))
    with _chart(title, across, up, x_label, y_label) as chart:
        if log:
            chart.axes.set(xscale="log", yscale="log")
            chart.axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            _write_ticks(chart.axes)
        for line in lines:
            chart.band(line)
        for level in levels:
            drawn = chart.axes.axhline(level.y, color=_ink(level.color), dashes=(4, 2.5), linewidth=1.4)
            chart.tip(drawn, [f"{level.name}: {short(level.y)}"])
        for line in lines:
            chart.curve(line)
    bands = {line.band_name: (line.color, "band", line.band_name) for line in reversed(lines) if line.band}
    keys = list(bands.values())
    keys += [(line.color, "dash" if line.dashed else "line", line.name) for line in lines]
    keys += [(level.color, "dash", level.name) for level in levels]
    return figure(title, detail + chart.note, chart.svg, keys)


def plane(
    title: str,
    detail: str,
    dots: Sequence[Dot],
    path: Line | None,
    x_label: str,
    y_label: str,
    *,
    edge: float = 0.0,
    good: Literal["right", "left"] = "right",
) -> str:
    """Dots and a path in a plane; on the good side of the edge, a value of x, the limit is kept."""
    if not dots:
        return ""
    steps = list(path.points) if path else []
    xs, ys = zip(*[(dot.x, dot.y) for dot in dots], *steps, strict=True)
    xs_ends = [end for dot in dots for end in dot.x_ends or ()]
    ys_ends = [end for dot in dots for end in dot.y_ends or ()]
    across, up = _frame(xs, [edge, *xs_ends], room=0.1), _frame(ys, ys_ends, room=0.14)
    with _chart(title, across, up, x_label, y_label) as chart:
        for dot in dots:
            chart.error(dot)
        span = (edge, chart.x[1]) if good == "right" else (chart.x[0], edge)
        chart.axes.axvspan(*span, color=COLORS["good"], alpha=0.08, linewidth=0)
        chart.axes.axvline(edge, color=COLORS["good"], dashes=(3, 3), linewidth=1)
        if path:
            chart.axes.plot(*zip(*steps, strict=True), color=_ink(path.color), linewidth=1.2, alpha=0.5)
            tips = [f"{path.name}, {k} of {len(steps)}: {short(x)}, {short(y)}" for k, (x, y) in enumerate(steps, 1)]
            chart.points(steps, tips, [f"{short(x)}, {short(y)}" for x, y in steps], path.color, size=2.4)
        for dot in dots:
            chart.dot(dot)
    keys = [(dot.color, dot.mark, dot.name) for dot in dots]
    return figure(title, detail + chart.note, chart.svg, keys + ([(path.color, "line", path.name)] if path else []))


def stacked_bars(
    title: str, detail: str, rounds: Sequence[int], shares: Sequence[tuple[str, Sequence[float]]], y_label: str
) -> str:
    """One bar of seconds per round, made of named shares from the bottom up."""
    if not rounds or not shares:
        return ""
    below = [0.0] * len(rounds)
    highest = max(sum(column) for column in zip(*[values for _, values in shares], strict=True))
    across = (rounds[0] - 0.5, rounds[-1] + 0.5)
    with _chart(title, across, (0.0, 1.05 * max(highest, 1e-9)), "round", y_label) as chart:
        for index, (name, values) in enumerate(shares):
            drawn = chart.axes.bar(rounds, values, bottom=below, color=_ink(color_of(index)), linewidth=0)
            for round_, value, bar in zip(rounds, values, drawn, strict=True):
                chart.tip(bar, [f"round {round_}, {name}: {short(value)} s"])
            below = [low + value for low, value in zip(below, values, strict=True)]
    keys = [(color_of(index), "box", name) for index, (name, _) in enumerate(shares)]
    return figure(title, detail, chart.svg, keys)


def figure(title: str, detail: str, svg: str, keys: Sequence[tuple[int, str, str]]) -> str:
    """A chart with its caption and legend in HTML, where text wraps."""
    legend = "".join(f"<li>{_key(color, sign)}{escape(name)}</li>" for color, sign, name in keys)
    caption = f"<figcaption>{escape(title)}<small>{escape(detail)}</small></figcaption>"
    return f'<figure class="chart">{caption}{svg}<ul class="legend">{legend}</ul></figure>'


# --- pieces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Far:
    """A point outside the frame."""

    at: Xy
    value: str
    tip: str
    color: int


class Chart:
    """One frame that is being drawn on. A point outside it is drawn at the edge, with an arrow and its value."""

    def __init__(self, x: Xy, y: Xy, x_label: str, y_label: str) -> None:
        self.figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), facecolor="none")
        inside = (LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / HEIGHT)
        self.axes: Axes = self.figure.add_axes(inside, facecolor="none")
        self.x, self.y = x, y
        self.svg, self.note = "", ""
        self._tips: dict[str, Sequence[str]] = {}
        self._far: list[_Far] = []
        self._obstacles: list[tuple[float, float, float]] = []
        """Where values may not be written: (x, y, half a width), in points from the lower left corner."""
        _style(self.axes, x_label, y_label)
        self.axes.set(xlim=x, ylim=y)

    def tip(self, drawn: Artist, texts: Sequence[str]) -> None:
        """Tooltips of what was drawn: one for the whole, or one per point."""
        name = f"tip{len(self._tips)}"
        drawn.set_gid(name)
        self._tips[name] = texts

    def curve(self, line: Line) -> None:
        xs, ys = zip(*line.points, strict=True)
        color, style = _ink(line.color), (0, (4.5, 2)) if line.dashed else "-"
        self.axes.plot(xs, ys, color=color, linestyle=style, linewidth=1.8, solid_joinstyle="round")
        values = [short(y) for y in ys]
        tips = [f"round {x:g}, {line.name}: {value}" for x, value in zip(xs, values, strict=True)]
        last = len(xs) - 1
        even = [k / MARKS for k in range(MARKS + 1)]
        if self.axes.get_xscale() == "log":
            even = [((last + 1) ** share - 1) / max(last, 1) for share in even]
        shown = sorted({round(last * share) for share in even}) if last > MARKS else range(last + 1)
        self.points(
            [line.points[k] for k in shown], [tips[k] for k in shown], [values[k] for k in shown], line.color, size=4.4
        )

    def band(self, line: Line) -> None:
        xs = [x for x, _ in line.points]
        if len(line.band) == 1:
            self.axes.plot(2 * xs, line.band[0], color=_ink(line.color), linewidth=1.8)
        elif line.band:
            low, high = zip(*line.band, strict=True)
            self.axes.fill_between(xs, low, high, color=_ink(line.color), alpha=0.2, linewidth=0)

    def points(self, at: Sequence[Xy], tips: Sequence[str], values: Sequence[str], color: int, *, size: float) -> None:
        """Marks with tooltips."""
        inside = [index for index, point in enumerate(at) if self._nearest(*point) == point]
        if inside:
            xs, ys = zip(*[at[index] for index in inside], strict=True)
            (marks,) = self.axes.plot(xs, ys, "o", color=_ink(color), markersize=size, markeredgewidth=0, clip_on=False)
            self.tip(marks, [tips[index] for index in inside])
        self._far += [_Far(at[i], values[i], tips[i], color) for i in range(len(at)) if i not in inside]

    def error(self, dot: Dot) -> None:
        """Bars through a dot, of both its errors."""
        if dot.x_ends:
            self.axes.plot(dot.x_ends, (dot.y, dot.y), color=_ink(dot.color), linewidth=1.4)
        if dot.y_ends:
            self.axes.plot((dot.x, dot.x), dot.y_ends, color=_ink(dot.color), linewidth=1.4)

    def dot(self, dot: Dot) -> None:
        """A disc with its sign; one outside the frame stands before its arrow."""
        tip, edge = f"{dot.name}: {short(dot.x)}, {short(dot.y)}", COLORS["card"]
        x, y = at = self._nearest(dot.x, dot.y)
        if at != (dot.x, dot.y):
            self._far.append(_Far((dot.x, dot.y), f"{short(dot.x)}, {short(dot.y)}", tip, dot.color))
            x, y = self._nearest(dot.x, dot.y, margin=17.0)
        self._obstacles.append((*self._on_paper(x, y), 9.0))
        (disc,) = self.axes.plot(x, y, "o", color=_ink(dot.color), markersize=15, mec=edge, mew=1, clip_on=False)
        self.tip(disc, [tip])
        self.axes.text(x, y, dot.mark, size=9.5, weight="bold", color=edge, ha="center", va="center_baseline")

    def _draw_far(self) -> None:
        """An arrow at the edge that points to each point outside, then their values, where there is room for them."""
        spots = []
        for far in self._far:
            at, edge = self._nearest(*far.at, margin=4.0), self._nearest(*far.at)
            right, up = ((outer > inner) - (outer < inner) for outer, inner in zip(far.at, edge, strict=True))
            marker = MarkerStyle(">", transform=Affine2D().rotate(math.atan2(up, right)))
            (arrow,) = self.axes.plot(
                *at, marker=marker, color=_ink(far.color), markersize=7, markeredgewidth=0, clip_on=False
            )
            self.tip(arrow, [f"{far.tip} (outside the frame)"])
            spots.append((*self._on_paper(*at), up or 1, far.value))
        self._obstacles += [(x, y, 6.0) for x, y, *_ in spots]
        for x, y, up, value in sorted(spots, reverse=True):
            width = 5.8 * len(value)
            left = x + 7 if x + 7 + width < WIDTH else x - 7 - width
            for row in range(LABEL_ROWS):
                line = y - 11 * row * up
                clear = [abs(line - v) > 9 or u + r < left or left + width < u - r for u, v, r in self._obstacles]
                if all(clear):
                    text = self.figure.text(left / WIDTH, line / HEIGHT, value, size=9.5, va="center")
                    text.set(color=COLORS["soft"], gid=HALO)
                    self._obstacles.append((left + width / 2, line, width / 2))
                    break

    def _nearest(self, x: float, y: float, margin: float = 0.0) -> Xy:
        """The nearest point of the frame, less a margin in points."""
        (x0, x1), (y0, y1) = self.x, self.y
        dx, dy = margin * (x1 - x0) / (WIDTH - LEFT - RIGHT), margin * (y1 - y0) / (HEIGHT - TOP - BOTTOM)
        return min(max(x, x0 + dx), x1 - dx), min(max(y, y0 + dy), y1 - dy)

    def _on_paper(self, x: float, y: float) -> Xy:
        """Points from the lower left corner of the picture."""
        (x0, x1), (y0, y1) = self.x, self.y
        across, high = (WIDTH - LEFT - RIGHT) / (x1 - x0), (HEIGHT - TOP - BOTTOM) / (y1 - y0)
        return LEFT + across * (x - x0), BOTTOM + high * (y - y0)

    def finish(self, title: str) -> None:
        """Draws the picture into `svg`; `note` is set if points lie outside the frame."""
        self._draw_far()
        self.note = OUTSIDE if self._far else ""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        self.svg = _inline_svg(out.getvalue(), title, self._tips)


@contextmanager
def _chart(title: str, x: Xy, y: Xy, x_label: str, y_label: str) -> Iterator[Chart]:
    """An empty frame, and its SVG when the block has drawn on it. Ids are made of the title, so they are stable."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": title, "text.parse_math": False, "path.simplify": False}
    with matplotlib.rc_context(settings):
        chart = Chart(x, y, x_label, y_label)
        yield chart
        chart.finish(title)


def _frame(values: Sequence[float], always: Sequence[float] = (), room: float = 0.0) -> Xy:
    """Ends of an axis: the values without lone outliers, and `always`, with some room at both ends."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) > 4:
        first, third = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        reach = OUTLIER * max(third - first, (high - low) / 20)
        inliers = [value for value in ordered if first - reach <= value <= third + reach]
        low, high = inliers[0], inliers[-1]
    low, high = min([low, *always]), max([high, *always])
    if high <= low:
        return (0.0, max(2 * high, 1.0)) if room and low >= 0 else (low - 0.5, high + 0.5)
    return low - room * (high - low), high + room * (high - low)


def _style(axes: Axes, x_label: str, y_label: str) -> None:
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLORS["soft"])
    axes.tick_params(length=0, labelsize=11, labelcolor=COLORS["soft"], pad=4)
    axes.grid(axis="y", color=COLORS["grid"], linewidth=1)
    axes.set_axisbelow(True)
    whole = x_label == "round"
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    _write_ticks(axes)
    across, up = (WIDTH + LEFT - RIGHT) / (2 * WIDTH), (HEIGHT + BOTTOM - TOP) / (2 * HEIGHT)
    for x, y, label, turn in ((across, 6 / HEIGHT, x_label, 0), (7 / WIDTH, up, y_label, 90)):
        axes.figure.text(x, y, label, size=11, rotation=turn, ha="center", va="center", color=COLORS["soft"])


def _write_ticks(axes: Axes) -> None:
    """Numbers as the page writes them, at major ticks only."""
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _tick(value: float) -> str:
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}").replace("-", "−")


def _ink(color: int) -> str:
    return COLORS[f"c{color}"]


def _inline_svg(svg: str, label: str, tips: dict[str, Sequence[str]]) -> str:
    """matplotlib's file as a part of the page: colours and font of its style sheet, tooltips, no unused id."""
    root = ElementTree.fromstring(re.sub(r">\s+<", "><", svg))
    used_ids = set(re.findall(r'(?:href="|url\()#(\w+)', svg))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        texts = tips.get(element.get("id", ""), ())
        if texts:
            marks = [part for part in element.iter() if part.tag.endswith("use")] or [element]
            for part, text in zip(marks, texts, strict=True):
                part.insert(0, _title(text))
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            if value == HALO:
                element.set("class", HALO)
            elif name != "id" or value in used_ids:
                element.set(name.rpartition("}")[2], _page_style(value) if name == "style" else value)
    for part in [*root.findall("metadata"), *(part for part in root.findall("defs") if part.find("style") is not None)]:
        root.remove(part)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": visible(label)}
    return ElementTree.tostring(root, encoding="unicode")


def _page_style(style: str) -> str:
    for name, color in COLORS.items():
        style = style.replace(color, f"var(--{name})")
    return re.sub(r"font-family: [^;]*;? ?", "", style)


def _title(text: str) -> ElementTree.Element:
    title = ElementTree.Element("title")
    title.text = visible(text)
    return title


def _key(color: int, sign: str) -> str:
    if sign in ("line", "dash", "band", "box"):
        return f'<i class="key {sign} k{color}"></i>'
    return f'<i class="key dotkey k{color}">{escape(sign)}</i>'
