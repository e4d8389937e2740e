"""Times as people write them on the command line: 30min, 2h, 3d."""

from __future__ import annotations

import re

from pddpo_ray.errors import UserError

UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h|d)")


def milliseconds(option: str, text: str, also: str = "") -> int:
    """Above 0. `also` ends the message of what else could be written. Raises UserError."""
    written = DURATION.fullmatch(text.strip())
    if written is None or float(written[1]) <= 0:
        raise UserError(f"{option} {text}: write a time such as 30min, 2h or 3d{also}")
    return int(float(written[1]) * UNITS[written[2]] * 1000)
