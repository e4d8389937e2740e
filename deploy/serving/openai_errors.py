"""Errors in the form that OpenAI clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi.responses import JSONResponse

from deploy.web.http_errors import Failure
from pddpo_ray.errors import UserError
from pddpo_ray.serving.catalog import NotServed

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

KNOWN: Mapping[type[Exception], Callable[[Any], Failure]] = {
    NotServed: lambda error: Failure(error.status, str(error), error.code),
    UserError: lambda error: Failure(409, str(error), "conflict"),
}


def error_body(status: int, message: str, code: str = "") -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or kind}}


def error_reply(failure: Failure) -> JSONResponse:
    message = f"{failure.detail}; {failure.hint}" if failure.hint else failure.detail
    return JSONResponse(
        error_body(failure.status, message, failure.code), failure.status, headers=dict(failure.headers)
    )
