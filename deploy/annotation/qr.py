"""A link as a QR code that the page can draw without parsing anything as HTML."""

from __future__ import annotations

from typing import Any

import segno

QUIET = 4
"""Light modules around the code, which readers need."""


def qr_path(link: str) -> dict[str, Any]:
    """`side`: of the square, in modules; `path`: the `d` of an SVG path with a unit square per dark module."""
    rows = list(segno.make_qr(link, error="m").matrix)
    dark = [(x, y) for y, row in enumerate(rows, QUIET) for x, module in enumerate(row, QUIET) if module]
    return {"side": len(rows) + 2 * QUIET, "path": "".join(f"M{x} {y}h1v1h-1z" for x, y in dark)}
