"""Numbers and durations for reading, in lines, pages and messages."""

from __future__ import annotations

import math

MISSING = "–"
NOTHING = 1e-12
"""Sums of float64 that should be 0 differ from it by less."""


def short(value: float | None, digits: int = 3) -> str:
    """A number for reading: three decimals below 10, thousands separated, a real minus sign; `–` where there is none.

    short(0.0449) = 0.045, short(-12.34) = −12.3, short(3120.4) = 3,120, short(2e-5) = 2.0e-05
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size < NOTHING:
        return "0"
    if value == int(value) and size < 1e15:
        text = f"{int(value):,}"
    elif size >= 100:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size >= 10**-digits:
        text = f"{value:.{digits}f}"
    else:
        text = f"{value:.1e}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def seconds(value: float | None) -> str:
    """A duration for reading: 0.16 s, 8.4 s, 3 min 20 s, 2 h 5 min."""
    if value is None or math.isnan(value):
        return MISSING
    if value < 1:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
