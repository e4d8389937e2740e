"""Numbers for reading, and what stands where in a chart, read from its SVG."""

from __future__ import annotations

import html
import math
import re

import pytest

from pddpo_ray.report.charts import Dot, Level, Line, line_chart, plane, stacked_bars
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


def marks(drawn: str) -> dict[str, tuple[float, float]]:
    """Where each tooltip's mark stands in the picture, from its upper left corner."""
    found = re.findall(r'<use [^>]*x="([-0-9.]+)" y="([-0-9.]+)"[^>]*><title>([^<]+)</title>', drawn)
    return {html.unescape(title): (float(x), float(y)) for x, y, title in found}


def test_a_curve_passes_through_its_points() -> None:
    """Three rounds from edge to edge, and equal steps in value are equal steps on paper, upwards."""
    drawn = line_chart("t", "d", [Line("a", [(1, 0.0), (2, 1.0), (3, 2.0)], 1)])
    at = [marks(drawn)[f"round {k}, a: {value}"] for k, value in ((1, "0"), (2, "1"), (3, "2"))]
    assert [x for x, _ in at] == pytest.approx([58, 200, 342])
    assert at[0][1] - at[1][1] == pytest.approx(at[1][1] - at[2][1])
    assert at[0][1] - at[1][1] > 50
    (path,) = re.findall(r'<path d="M ([^"]*)"[^>]*stroke: var\(--c1\)', drawn)
    assert [float(number) for number in re.findall(r"[-0-9.]+", path)] == pytest.approx([xy for p in at for xy in p])


def test_marks_of_a_long_curve_stand_evenly_on_a_logarithmic_axis() -> None:
    """All rounds of the first tenfold and twenty of each other; evenly by round it would be one in the first."""
    at = marks(line_chart("t", "d", [Line("a", [(k, 1.0 / k) for k in range(1, 1001)], 1)], log=True))
    rounds = [int(re.findall(r"\d+", tip)[0]) for tip in at]
    assert [sum(low <= one < 10 * low for one in rounds) for low in (1, 10, 100)] == [9, 20, 20]


def test_a_wild_start_does_not_flatten_the_rest() -> None:
    """40 is an arrow with its value at the upper edge, above its round; the later rounds use the whole frame."""
    values = [40.0, *[0.5 - 0.01 * k for k in range(15)]]
    drawn = line_chart("t", "d.", [Line("gap", list(enumerate(values, 1)), 1)])
    at = marks(drawn)
    x, y = at["round 1, gap: 40 (outside the frame)"]
    assert (x, y) == pytest.approx((58, 14), abs=5)
    assert "An arrow with a number stands for a value outside the frame." in drawn
    assert re.search(r'class="halo"><text[^>]*>40</text>', drawn)
    assert at["round 16, gap: 0.360"][1] - at["round 2, gap: 0.500"][1] > 100
    assert "outside" not in line_chart("t", "d.", [Line("gap", list(enumerate(values[1:], 1)), 1)])


def test_values_of_points_outside_do_not_cover_each_other() -> None:
    values = [9.0, 8.0, 7.0, *[0.5 - 0.01 * k for k in range(29)]]
    drawn = line_chart("t", "d.", [Line("gap", list(enumerate(values, 1)), 1)])
    texts = re.findall(r'class="halo"><text[^>]*x="([0-9.]+)" y="([0-9.]+)"[^>]*>([^<]+)</text>', drawn)
    assert {value for _, _, value in texts} == {"9", "8", "7"}
    assert len({y for _, y, _ in texts}) == 3


def test_a_dot_outside_the_plane_is_drawn_at_the_edge_with_its_true_place() -> None:
    near = [Dot(f"p{k}", 0.1 * k, 0.1 * k, 1, str(k)) for k in range(5)]
    drawn = plane("t", "d", [*near, Dot("broken <x>", -90.0, -4000.0, 4, "O")], None, "x", "y")
    at = marks(drawn)
    x, y = at["broken <x>: −90, −4,000 (outside the frame)"]
    assert (x, y) == pytest.approx((58, 190), abs=5), "the arrow is in the lower left corner"
    disc = at["broken <x>: −90, −4,000"]
    assert x < disc[0] < x + 25
    assert y > disc[1] > y - 25
    assert re.search(r'class="halo"><text[^>]*>−90, −4,000</text>', drawn)
    assert all(0 <= x <= 360 and 0 <= y <= 220 for x, y in at.values())


def test_nothing_to_draw_is_no_picture() -> None:
    assert line_chart("t", "d", [Line("a", [], 1)], levels=[Level("limit", 0.0, 2)]) == ""
    assert plane("t", "d", [], None, "x", "y") == ""
    assert stacked_bars("t", "d", [], [], "s") == ""


def test_bars_are_as_high_as_their_seconds() -> None:
    drawn = stacked_bars("t", "d", [1, 2], [("fit", [6.0, 3.0]), ("sample", [2.0, 1.0])], "s")
    bars = re.findall(r'<title>([^<]+) s</title><path d="([^"]+)"[^>]*fill: (var\(--c\d\))', drawn)
    heights = {}
    for title, path, color in bars:
        ys = [float(y) for y in re.findall(r"[-0-9.]+", path)][1::2]
        heights[title, color] = max(ys) - min(ys)
    fit, half = heights["round 1, fit: 6", "var(--c1)"], heights["round 2, fit: 3", "var(--c1)"]
    assert fit == pytest.approx(2 * half, abs=0.01)
    assert fit == pytest.approx(3 * heights["round 1, sample: 2", "var(--c2)"], abs=0.01)


def test_a_picture_is_the_same_every_time_and_its_ids_are_its_own() -> None:
    lines = [Line("a", [(1, 0.0), (2, 1.0)], 1, band=[(-1.0, 1.0), (0.0, 2.0)])]
    first, again, other = (line_chart(title, "d", lines) for title in ("one", "one", "two"))
    assert first == again
    ids = [set(re.findall(r' id="([^"]+)"', drawn)) for drawn in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for drawn, own in zip((first, other), ids, strict=True):
        assert {*re.findall(r'href="#([^"]+)"', drawn), *re.findall(r"url\(#([^)]+)\)", drawn)} == own


def test_colours_come_from_the_page() -> None:
    """No colour of its own: in dark mode every line, text and interval follows the style sheet."""
    lines = [Line("a", [(1, 0.0), (2, 1.0)], 1, band=[(-1.0, 1.0), (0.0, 2.0)])]
    drawn = line_chart("t", "d", lines, levels=[Level("limit", 0.5, 4)], y_label="y")
    assert not re.search(r": #[0-9a-f]{3,8}\b", drawn)
    assert {"c1", "c4", "soft", "grid"} <= set(re.findall(r"var\(--(\w+)\)", drawn))


def test_names_in_a_picture_are_text() -> None:
    drawn = line_chart("t", "d", [Line("<b>$x$\u202e", [(1, 0.0), (2, 1.0)], 1)], y_label="$y$")
    page = Page(drawn)
    assert "round 1, <b>$x$\N{REPLACEMENT CHARACTER}: 0" in page.titles
    assert "$y$" in page.text
    assert "b" not in {tag for tag, _ in page.elements}
