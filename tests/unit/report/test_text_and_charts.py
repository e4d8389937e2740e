"""Numbers for reading, and the geometry of charts."""

from __future__ import annotations

import math
import re

import pytest

from pddpo_ray.report.charts import Dot, Frame, Level, Line, line_chart, plane, stacked_bars, ticks
from pddpo_ray.report.text import escape, number, seconds, short
from tests.unit.report.page import Page


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0449, "0.045"),
        (-0.0449, "−0.045"),
        (-12.34, "−12.3"),
        (3120.4, "3,120"),
        (192.0, "192"),
        (1536, "1,536"),
        (0.00002, "2.0e-05"),
        (-0.0005, "−5.0e-04"),
        (0.0, "0"),
        (-1.7e-16, "0"),
        (math.inf, "∞"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_short_numbers(value: float | None, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.16, "0.16 s"),
        (8.44, "8.4 s"),
        (59.99, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
        (None, "–"),
    ],
)
def test_durations(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


def test_a_number_keeps_its_exact_value() -> None:
    value = 1 / 3
    item = Page(number(value, "dual/multiplier", 4)).numbers[0]
    assert (item.key, item.round, item.value, item.shown) == ("dual/multiplier", 4, value, "0.333")


def test_escaping_reaches_attributes_too() -> None:
    assert escape("<a href='x' id=\"y\">&") == "&lt;a href=&#x27;x&#x27; id=&quot;y&quot;&gt;&amp;"
    assert escape("line\nbreak\u200b\ud800") == "line\nbreak\ufffd\ufffd"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.11, 0.12, [-0.1, -0.05, 0.0, 0.05, 0.1]),
        (1.0, 16.0, [5.0, 10.0, 15.0]),
        (3.0, 3.0, [3.0]),
    ],
)
def test_ticks_are_round_numbers_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_curve_passes_through_its_points() -> None:
    """The frame maps corners to corners: (x0, y0) is bottom left."""
    frame = Frame(0.0, 10.0, -1.0, 1.0)
    assert (frame.x(0.0), frame.y(-1.0)) == (52.0, 190.0)
    assert (frame.x(10.0), frame.y(1.0)) == (350.0, 8.0)
    drawn = line_chart("t", "d", [Line("a", [(1, 0.0), (2, 1.0)], 1)])
    (points,) = re.findall(r'polyline class="l1" points="([^"]+)"', drawn)
    (x1, y1), (x2, y2) = (map(float, place.split(",")) for place in points.split())
    assert (x1, x2) == (52.0, 350.0)
    # 6 % of room above and below
    assert y1 == pytest.approx(190 - 182 * 0.06 / 1.12, abs=0.01)
    assert y2 == pytest.approx(8 + 182 * 0.06 / 1.12, abs=0.01)


def test_a_wild_start_does_not_flatten_the_rest() -> None:
    values = [40.0, 3.0, *[0.5 - 0.01 * k for k in range(14)]]
    line = Line("gap", list(enumerate(values, 1)), 1)
    tame = line_chart("t", "d.", [line], robust=True)
    assert "early rounds lie outside" in tame
    assert "early rounds" not in line_chart("t", "d.", [line])
    assert "early rounds" not in line_chart("t", "d.", [Line("m", line.points[4:], 1)], robust=True)


def test_nothing_to_draw_is_no_picture() -> None:
    assert line_chart("t", "d", [Line("a", [], 1)], levels=[Level("limit", 0.0, 2)]) == ""
    assert plane("t", "d", [], [], "x", "y") == ""
    assert stacked_bars("t", "d", [], [], "s") == ""


def test_far_dots_are_drawn_at_the_edge_with_their_true_place() -> None:
    near = [Dot(f"p{k}", 0.1 * k, 0.1 * k, 1, str(k)) for k in range(5)]
    drawn = plane("t", "d", [*near, Dot("broken", -90.0, -4000.0, 4, "O")], [], "x", "y")
    assert "broken: −90, −4,000 (outside the frame)" in Page(drawn).titles
    assert all(0 <= float(x) <= 360 for x in re.findall(r'c[xy]="([-0-9.]+)"', drawn))


def test_bars_are_as_high_as_their_seconds() -> None:
    drawn = stacked_bars("t", "d", [1, 2], [("fit", [6.0, 3.0]), ("sample", [2.0, 0.0])], "s")
    heights = {
        (int(color), title.partition(",")[0]): float(height)
        for color, height, title in re.findall(
            r'<rect class="f(\d)"[^>]*height="([0-9.]+)"><title>([^<]+)</title>', drawn
        )
    }
    assert set(heights) == {(1, "round 1"), (2, "round 1"), (1, "round 2")}
    assert heights[1, "round 1"] == pytest.approx(2 * heights[1, "round 2"], abs=0.02)
    assert heights[1, "round 1"] == pytest.approx(3 * heights[2, "round 1"], abs=0.03)
