"""The OpenAPI description: how to sign in, and every error that a route answers with, in its one shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from deploy.annotation.access import PUBLIC
from deploy.annotation.queue_service import QueueService

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "A stable word for programs."},
        "detail": {"type": "string", "description": "What is wrong, for people."},
        "hint": {"type": "string"},
    },
}
EVERYWHERE = {413: "Larger than a request may be", 422: "Not as described", 429: "Too often, or enough for today"}
SIGNED_IN = {401: "Not signed in", 403: "Not for this role, or not from the page itself", 503: "The database is busy"}
WITH_BODY = {400: "No JSON"}
CHANGES = {
    404: "It does not exist, or is not yours",
    409: "It does not fit what is stored: another's, answered already, changed meanwhile, or not agreed to the notice",
    410: "Too late, or the batch is closed",
}


def describe(app: FastAPI, service: QueueService) -> None:
    """Replaces FastAPI's description by the complete one."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app, service)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _description(app: FastAPI, service: QueueService) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    parts = schema.setdefault("components", {})
    parts["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": service.cookie},
        "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
    }
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete(operation, method.upper(), path)
    return schema


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    """Adds to one operation who may call it, and its errors."""
    public = (method, path) in PUBLIC
    # A browser's session shows its CSRF token too, where it changes something.
    session: dict[str, list[str]] = {"session": []} if method == "GET" else {"session": [], "csrf": []}
    operation["security"] = [] if public else [{"token": []}, session]
    errors = dict(EVERYWHERE)
    if not public:
        errors |= SIGNED_IN
    elif path.endswith("/session"):
        errors |= {status: SIGNED_IN[status] for status in (401, 503)}
    if "requestBody" in operation:
        errors |= WITH_BODY
    if not public and (method != "GET" or "{" in path):
        errors |= CHANGES if method != "GET" else {404: CHANGES[404]}
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, meaning in sorted(errors.items()):
        operation["responses"][str(status)] = {"description": meaning, "content": content}
