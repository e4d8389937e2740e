"""Numbers and untrusted text as HTML.

Every number of the page goes through `number`, which keeps the full value beside the rounded one, so that a test (or a
reader's script) can compare the page with the journal. Everything else goes through `escape`.
"""

from __future__ import annotations

import html
import math
import unicodedata

from pddpo_ray.report.readable import MISSING, short


def escape(text: object) -> str:
    """Text that cannot become markup: HTML's special characters, and control and direction marks made visible."""
    return html.escape(visible(text), quote=True)


def visible(text: object) -> str:
    """Text whose control and direction marks show as a replacement character."""
    return "".join(_visible(character) for character in str(text))


def number(value: float | None, key: str = "", round_: int | None = None, shown: str | None = None) -> str:
    """`<data>` with the exact value, the metric's name and its round, showing the rounded value."""
    if value is None or math.isnan(value):
        return f"<span class=none>{MISSING}</span>"
    named = f' data-key="{escape(key)}"' if key else ""
    placed = "" if round_ is None else f' data-round="{round_}"'
    return f'<data value="{float(value)!r}"{named}{placed}>{escape(short(value) if shown is None else shown)}</data>'


def table(headings: list[str], rows: list[list[str]], *, kind: str = "") -> str:
    """A table of ready HTML cells that scrolls inside itself on a narrow screen."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    # control (Cc), format (Cf: direction overrides, zero width) and lone surrogates (Cs) would be invisible or worse
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
