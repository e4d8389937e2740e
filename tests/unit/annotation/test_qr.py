"""The QR code of an invitation's link holds the link."""

from __future__ import annotations

import re

import segno

from deploy.annotation.rendering import QUIET, qr_path

LINK = "http://127.0.0.1:8790/#invite=pddpo_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"


def test_the_path_has_a_square_for_every_dark_module_and_light_ones_around() -> None:
    made, code = qr_path(LINK), segno.make_qr(LINK, error="m")
    squares = {(int(x), int(y)) for x, y in re.findall(r"M(\d+) (\d+)h1v1h-1z", made["path"])}
    rows = list(code.matrix)
    assert made["side"] == len(rows) + 2 * QUIET
    dark = {(x + QUIET, y + QUIET) for y, row in enumerate(rows) for x, module in enumerate(row) if module}
    assert squares == dark
