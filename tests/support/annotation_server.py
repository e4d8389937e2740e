"""The annotation service on a real port of this machine, in a thread.

PDDPO_REPLY_DELAY_S=0.5 holds every reply of the API back for so long, after the server has done what it was asked: a
test of a page that rests on a quick server fails then.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

REPLY_DELAY_S = float(os.environ.get("PDDPO_REPLY_DELAY_S", "0"))


def replying_late(app: Any) -> Any:
    """The application whose API does at once what it is asked and says so `REPLY_DELAY_S` later."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        async def later(message: Any) -> None:
            if message["type"] == "http.response.start" and "/api/v1/" in scope["path"]:
                await asyncio.sleep(REPLY_DELAY_S)
            await send(message)

        await app(scope, receive, later)

    return call


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an application; yields its URL."""
    if REPLY_DELAY_S:
        app = replying_late(app)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
