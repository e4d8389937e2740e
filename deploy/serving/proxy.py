"""What Serve's HTTP proxies say where the entrance has died: 503 with `Retry-After`, where Serve says a bare 500.

Serve calls `middlewares` in every proxy whose environment has RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=CALLBACK.
"""

from __future__ import annotations

import json

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.serving.requests import error_body
from deploy.serving.traffic import ELSEWHERE_S

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = "deploy.serving.proxy:middlewares"


def middlewares() -> list[Middleware]:
    return [Middleware(SaysToWait)]


class SaysToWait:
    """Answers where Serve gives no answer, as after the death of an entrance, or an error of its own.

    Serve's own errors are plain text and end a request that the entrance never answered; the entrance's are JSON.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = replaced = False

        async def tell(message: Message) -> None:
            nonlocal begun, replaced
            if message["type"] == "http.response.start" and message["status"] in (500, 503):
                replaced = Headers(raw=message["headers"]).get("content-type", "").startswith("text/plain")
                if replaced:
                    await _say(send)
            begun = True
            if not replaced:
                await send(message)

        await self._app(scope, receive, tell)
        if scope["type"] == "http" and not begun:
            await _say(send)


async def _say(send: Send) -> None:
    text = f"the entrance is gone, another one is being started; try again in {ELSEWHERE_S} s"
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(ELSEWHERE_S).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error_body(503, text)).encode()})
