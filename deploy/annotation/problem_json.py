"""Errors of the annotation service: problem+json with a stable `code`, a sentence for people and perhaps a hint."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from deploy.web.http_errors import Failure
from pddpo_ray.annotation.queue_rules import Problem, QueueError

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
CODES |= {413: "too_large", 422: "malformed", 429: "too_many_requests", 503: "busy"}
PROBLEM_JSON = "application/problem+json"


def problem(failure: Failure) -> JSONResponse:
    code = failure.code or CODES.get(failure.status, "error")
    body = {"type": "about:blank", "title": code.replace("_", " "), "status": failure.status, "code": code}
    body |= {"detail": failure.detail} | ({"hint": failure.hint} if failure.hint else {})
    return JSONResponse(body, failure.status, headers=dict(failure.headers), media_type=PROBLEM_JSON)


def refused(error: QueueError) -> Failure:
    headers = {"Retry-After": "30"} if error.problem is Problem.BACKLOG else {}
    return Failure(STATUS[error.problem], str(error), error.problem.value, headers=headers)
