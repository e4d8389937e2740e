"""A bound is printed rounded away from what was shown: no digit is claimed that was not."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddpo_ray.limits.quantities import Quantity

SHARE, TOKENS = Quantity("rate", "share"), Quantity("mean", "tokens", low=0.0, high=200.0)


@pytest.mark.parametrize(
    ("number", "up", "printed"),
    [
        (0.04893, True, "4.9 %"),
        (0.04893, False, "4.89 %"),
        (0.05, True, "5 %"),
        (0.05, False, "5 %"),
        (0.0100001, True, "1.01 %"),
        (0.0, True, "0 %"),
        (1.0, True, "100 %"),
        (0.29999999999999998, True, "30 %"),
    ],
)
def test_a_share_is_rounded_to_the_side_that_was_shown(number: float, up: bool, printed: str) -> None:
    assert SHARE.text_bound(number, up=up) == printed


@given(st.floats(1e-6, 1.0), st.floats(-150.0, 150.0).filter(lambda number: abs(number) > 1e-6))
def test_what_is_printed_is_on_the_outer_side_and_near(share: float, amount: float) -> None:
    for quantity, number, scale, width in ((SHARE, share, 100, 1e-2), (TOKENS, amount, 1, 1e-3)):
        shown = Decimal(number) * scale
        low, high = (Decimal(quantity.text_bound(number, up=up).split()[0]) for up in (False, True))
        slack = abs(shown) * Decimal("1e-8")
        assert low - slack <= shown <= high + slack
        assert high - low <= abs(shown) * Decimal(width) + slack
