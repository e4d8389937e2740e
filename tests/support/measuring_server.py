"""A real HTTP server that judges and measures as a test decides: a chat endpoint and a measuring one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

Reply = tuple[int, Any]
"""Status and content: of a chat the text or its whole body, of a measurement any JSON."""
RETRY_AFTER_S = 7


def every_fifth_fails(content: Any) -> Callable[[dict[str, Any]], Reply]:
    """Replies with this content, but for every fifth, which is an error of the server."""
    replies = count()
    return lambda body: (500, "no") if next(replies) % 5 == 4 else (200, content)


class Listening(ThreadingHTTPServer):
    """Takes as many connections at a time as clients open; of more than five the others would wait a second."""

    request_queue_size = 128


class MeasuringServer:
    """`chat(body)` answers POST /v1/chat/completions, `measure(body)` POST /measure; `slow_s` delays every reply.

    With status 429 a reply says that the endpoint is busy for `RETRY_AFTER_S`.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.chat: Callable[[dict[str, Any]], Reply] = lambda body: (200, "[[yes]]")
        self.measure: Callable[[dict[str, Any]], Reply] = lambda body: (200, {"value": False})
        self.slow_s = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                outer.keys.append(self.headers.get("Authorization"))
                time.sleep(outer.slow_s)
                status, content = outer.chat(body) if self.path == "/v1/chat/completions" else outer.measure(body)
                if self.path == "/v1/chat/completions" and not isinstance(content, dict | bytes):
                    message = {"choices": [{"message": {"role": "assistant", "content": content}}]}
                    content = message if status == 200 else {"error": {"message": content}}
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", str(RETRY_AFTER_S))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:  # the client had waited long enough
                    return

        self._http = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def measuring_server() -> Iterator[MeasuringServer]:
    """A running server, closed at the end."""
    server = MeasuringServer()
    try:
        yield server
    finally:
        server.close()
