"""Errors of both servers: one set of handlers, and each server's own form of the body. Nothing internal goes out."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

logger = logging.getLogger("deploy.web")


@dataclass(frozen=True)
class Failure:
    """An error as clients see it. `code` is for programs (empty: by the status), `hint` says what helps."""

    status: int
    detail: str
    code: str = ""
    hint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Form = Callable[[Failure], JSONResponse]
"""How a server writes a failure down."""


class ApiError(HTTPException):
    """An error that the web layer finds itself: no token, wrong role, too large, too often."""

    def __init__(self, status: int, detail: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.hint = hint


def install(
    app: FastAPI,
    form: Form,
    failures: Mapping[type[Exception], Callable[[Any], Failure]],
    *,
    malformed: int,
    busy: str,
) -> None:
    """Handlers for everything that can go wrong. `failures` are those of the server's own parts, `malformed` is the
    status of a request that does not fit its description, `busy` what is said when the database does not answer."""

    def http(error: HTTPException) -> Failure:
        return Failure(error.status_code, str(error.detail), "", getattr(error, "hint", ""), error.headers or {})

    def invalid(error: RequestValidationError) -> Failure:
        first = error.errors()[0]
        return Failure(malformed, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

    def database(error: Exception) -> Failure:
        logger.warning("the database did not answer: %s", error)
        return Failure(503, busy, "", "send the same request again", {"Retry-After": "2"})

    def handle(kind: type[Exception], failure: Callable[[Any], Failure]) -> None:
        # Not a coroutine function: FastAPI runs it in a thread, as it does the routes that wait for the database.
        app.add_exception_handler(kind, lambda _request, error: form(failure(error)))

    for kind, failure in failures.items():
        handle(kind, failure)
    handle(HTTPException, http)
    handle(RequestValidationError, invalid)
    handle(DBAPIError, database)
    handle(PoolTimeout, database)

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        return form(Failure(500, hidden(f"{request.method} {request.url.path}", error), "internal"))


def hidden(place: str, error: object) -> str:
    """Logs what went wrong under a number and returns the sentence that the client gets instead."""
    number = uuid.uuid4().hex[:12]
    cause = error if isinstance(error, Exception) else None
    logger.error("error %s in %s: %s", number, place, error, exc_info=cause, extra={"error_number": number})
    return f"something went wrong; tell the administrator this number: {number}"
