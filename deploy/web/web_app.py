"""The shell of both servers: an application with errors, limits and headers, still without routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI

from deploy.web.headers import SecurityHeaders
from deploy.web.http_errors import Failure, Form, install
from deploy.web.request_limits import BodyLimit
from pddpo_ray import __version__


def web_app(
    title: str,
    form: Form,
    known: Mapping[type[Exception], Callable[[Any], Failure]],
    *,
    malformed: int,
    busy: str,
    body_bytes: Callable[[str], int],
    **settings: Any,
) -> FastAPI:
    """`form`, `known`, `malformed`, `busy`: see `install`. `body_bytes` gives the largest body by path; `settings` are
    further ones of FastAPI."""
    app = FastAPI(title=title, version=__version__, openapi_url=None, docs_url=None, redoc_url=None, **settings)
    install(app, form, known, malformed=malformed, busy=busy)
    app.add_middleware(BodyLimit, limit_of=body_bytes, form=form)
    app.add_middleware(SecurityHeaders)
    return app


def healthy() -> dict[str, bool]:
    """The process answers."""
    return {"ok": True}
