"""A message to somebody else's server when something happened that a person should hear of."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import httpx

logger = logging.getLogger("pddpo_ray.annotation")

TRIES, BETWEEN_S, ANSWER_S = 3, 2.0, 10.0


def send(url: str, event: str, data: Mapping[str, Any]) -> bool:
    """POST {"event", "text", ...} as JSON; `text` is what chat services show. Whether it was taken; never raises."""
    return post(url, {"event": event, **data})


def post(url: str, body: Mapping[str, Any]) -> bool:
    """POST these JSON fields and nothing else. Whether it was taken; never raises."""
    for number in range(TRIES):
        try:
            httpx.post(url, json=dict(body), timeout=ANSWER_S).raise_for_status()
            return True
        except httpx.HTTPError as error:
            # the address may hold a secret of its own: the log names the host alone
            logger.error("webhook at %s: %s", httpx.URL(url).host, type(error).__name__)
            time.sleep(BETWEEN_S if number + 1 < TRIES else 0)
    return False
