"""One shape for every error: problem+json with a stable `code`, a sentence for people and, where it helps, a hint."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from pddpo_ray.annotation.rules import Problem, QueueError

logger = logging.getLogger("deploy.annotation")

STATUS: Mapping[Problem, int] = {
    Problem.NOT_FOUND: 404,
    Problem.NOT_YOURS: 409,
    Problem.ANSWERED_ALREADY: 409,
    Problem.KEY_REUSED: 409,
    Problem.CONFLICT: 409,
    Problem.ROUND_CLOSED: 410,
    Problem.TOO_LATE: 410,
    Problem.DAILY_CAP: 429,
    Problem.MALFORMED: 422,
    Problem.BACKLOG: 429,
}
CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
CODES |= {413: "too_large", 429: "too_many_requests", 503: "busy"}
PROBLEM_JSON = "application/problem+json"


class ApiError(HTTPException):
    """An error that the web layer finds itself: no token, wrong role, too large, too often."""

    def __init__(self, status: int, detail: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers) if headers else None)
        self.hint = hint


def problem(
    status: int, code: str, detail: str, *, hint: str = "", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = {"type": "about:blank", "title": code.replace("_", " "), "status": status, "code": code, "detail": detail}
    if hint:
        body["hint"] = hint
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=PROBLEM_JSON)


def install(app: FastAPI) -> None:
    """Handlers for everything that can go wrong; nothing internal leaves the process."""

    @app.exception_handler(QueueError)
    def refused(_request: Request, error: QueueError) -> JSONResponse:
        headers = {"Retry-After": "30"} if error.problem is Problem.BACKLOG else None
        return problem(STATUS[error.problem], error.problem.value, str(error), headers=headers)

    @app.exception_handler(HTTPException)
    def http(_request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, "error")
        hint = getattr(error, "hint", "")
        return problem(error.status_code, code, str(error.detail), hint=hint, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return problem(422, "malformed", f"{place}: {first['msg']}")

    @app.exception_handler(DBAPIError)
    @app.exception_handler(PoolTimeout)
    def database(_request: Request, error: Exception) -> JSONResponse:
        logger.warning("the database did not answer: %s", error)
        detail = "the database is busy; nothing was stored"
        return problem(503, "busy", detail, hint="send the same request again", headers={"Retry-After": "2"})

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        number = uuid.uuid4().hex[:12]
        logger.error("error %s in %s %s", number, request.method, request.url.path, exc_info=error)
        return problem(500, "internal", f"something went wrong; tell the administrator this number: {number}")
