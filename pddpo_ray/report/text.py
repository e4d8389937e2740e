"""Numbers and durations for reading; numbers and untrusted text as HTML.

Every number of a page goes through `number`, which keeps the full value beside the rounded one, so that a test (or a
reader's script) can compare the page with the journal. Everything else goes through `escape`.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Callable, Sequence

from pddpo_ray.limits.quantities import NOTHING

MISSING = "–"


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


def escape(text: object) -> str:
    """Text that cannot become markup: HTML's special characters, and control and direction marks made visible."""
    return html.escape(visible(text), quote=True)


def prose(text: object) -> str:
    """Escaped text whose `code` between backticks is shown as code; a line never ends between a number and its %."""
    parts = re.sub(r"(?<=\d) %", "&nbsp;%", escape(text)).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def visible(text: object) -> str:
    """Text whose control and direction marks show as a replacement character."""
    return "".join(_visible(character) for character in str(text))


def number(value: float | None, key: str = "", round_: int | None = None, shown: str | None = None) -> str:
    """`<data>` with the exact value, the metric's name and its round, showing the rounded value."""
    if value is None or math.isnan(value):
        return f"<span class=none>{MISSING}</span>"
    key_attr = f' data-key="{escape(key)}"' if key else ""
    placed = "" if round_ is None else f' data-round="{round_}"'
    return f'<data value="{float(value)!r}"{key_attr}{placed}>{escape(short(value) if shown is None else shown)}</data>'


def ends(interval: tuple[float, float] | None, key: str = "", round_: int | None = None) -> str:
    """`<data> to <data>` of an interval, named `key`/low and /high; or why there is none."""
    if interval is None:
        return "no interval: bounds unknown"
    names = (f"{key}/low", f"{key}/high") if key else ("", "")
    return " to ".join(number(value, name, round_) for value, name in zip(interval, names, strict=True))


def both_ends(
    interval: Sequence[float | None],
    written: Callable[[float], str],
    key: str,
    round_: int | None = None,
    none: str = "no interval: bounds unknown",
) -> str:
    """Both ends of a limit's interval in its own unit, named `key`/low and /high; or `none`, why there is none."""
    low, high = interval
    if low is None or high is None:
        return none
    bounds = (("low", low), ("high", high))
    return " to ".join(number(end, f"{key}/{name}", round_, written(end)) for name, end in bounds)


def table(headings: list[str], rows: list[list[str]], *, kind: str = "") -> str:
    """A table of ready HTML cells. One of three columns or more stacks on a phone, each cell beside its heading."""
    stacks = kind == "" and len(headings) > 2
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    names = [f' data-head="{re.sub("<[^>]*>", "", heading)}"' if stacks else "" for heading in headings]
    lines = ("".join(f"<td{name}>{cell}</td>" for name, cell in zip(names, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = kind or ("stacks" if stacks else "")
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    # control (Cc), format (Cf: direction overrides, zero width) and lone surrogates (Cs) would be invisible or worse
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
