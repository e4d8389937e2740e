"""The plane of `pddpo evaluate` has bars of error, and axes that hold them."""

from __future__ import annotations

import re

import pytest

from pddpo_ray.evaluate.page import ends_of
from pddpo_ray.report.charts import Dot, plane


def ticks(svg: str) -> list[float]:
    return [float(text.replace("−", "-")) for text in re.findall(r">([−-]?[\d.]+)</text>", svg)]


def test_an_estimate_has_its_interval_or_one_error_to_each_side() -> None:
    assert ends_of({"value": 0.5, "low": 0.25, "high": 1.0, "standard_error": 0.1}) == (0.25, 1.0)
    assert ends_of({"value": 0.5, "low": None, "high": None, "standard_error": 0.25}) == (0.25, 0.75)
    assert ends_of({"value": 0.5, "low": None, "high": None}) is None


@pytest.mark.parametrize("end", [5.0, 50.0])
def test_the_axes_hold_the_ends_of_the_bars(end: float) -> None:
    def drawn(*ends: tuple[float, float] | None) -> str:
        return plane("t", "d", [Dot("a", 1.0, 1.0, 1, "1", *ends), Dot("b", 2.0, 2.0, 2, "2")], None, "x", "y")

    bars, plain = drawn((-end, end), (0.5, end)), drawn()
    assert max(ticks(plain)) < 4 < end <= 1.3 * max(ticks(bars))
    assert bars.count("<path") > plain.count("<path")
