"""The shell of both servers: an application with errors, limits and headers, still without routes; and who calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.web.http_errors import Failure, Form, install
from deploy.web.request_limits import BodyLimit
from pddpo_ray import __version__

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class SecurityHeaders:
    """Adds the headers to every answer, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def web_app(
    title: str,
    form: Form,
    failures: Mapping[type[Exception], Callable[[Any], Failure]],
    *,
    malformed: int,
    busy: str,
    body_bytes: Callable[[str], int],
    **settings: Any,
) -> FastAPI:
    """`form`, `failures`, `malformed`, `busy`: see `install`. `body_bytes` gives the largest body by path; `settings`
    are further ones of FastAPI."""
    app = FastAPI(title=title, version=__version__, openapi_url=None, docs_url=None, redoc_url=None, **settings)
    install(app, form, failures, malformed=malformed, busy=busy)
    app.add_middleware(BodyLimit, limit_of=body_bytes, form=form)
    app.add_middleware(SecurityHeaders)
    return app


def healthy() -> dict[str, bool]:
    """The process answers."""
    return {"ok": True}


def bearer_token(request: Request) -> str | None:
    """The token of `Authorization: Bearer TOKEN`; None where the request shows none in this way."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
