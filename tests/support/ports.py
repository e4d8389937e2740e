"""Ports for processes that tests start."""

from __future__ import annotations

import random
import socket

LOW, HIGH = 20_000, 32_000
"""Below the ports that a system hands out by itself (Linux: 32768 and above), so that nobody gets one in between."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    draws = random.SystemRandom()
    while True:
        port = draws.randrange(LOW, HIGH)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
