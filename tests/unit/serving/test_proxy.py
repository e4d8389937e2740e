"""What is said in front of an entrance: Serve's own errors become 503 with a time to wait, the entrance's stay."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from deploy.serving.proxy import CALLBACK


def replies(response: Response) -> TestClient:
    async def answer(_request: Request) -> Response:
        return response

    # As a proxy does it.
    return TestClient(Starlette(routes=[Route("/", answer)], middleware=resolve_name(CALLBACK)()))


@pytest.mark.parametrize("status", [500, 503])
def test_an_error_of_serves_own_says_when_to_try_again(status: int) -> None:
    reply = replies(PlainTextResponse("Internal Server Error", status)).get("/")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert "try again in 5 s" in reply.json()["error"]["message"]


def test_a_request_that_nobody_answers_is_told_when_to_try_again() -> None:
    """As Serve's proxy leaves it where the entrance died under it; its server would say a bare 500."""

    async def silent(_scope: Scope, _receive: Receive, _send: Send) -> None:
        return

    (middleware,) = resolve_name(CALLBACK)()
    reply = TestClient(middleware.cls(silent)).get("/")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    "response",
    [
        JSONResponse({"error": "7"}, 500),
        JSONResponse({"error": "wait"}, 503, headers={"retry-after": "1"}),
        PlainTextResponse("metrics"),
    ],
)
def test_what_the_entrance_says_stays(response: Response) -> None:
    reply = replies(response).get("/")
    assert (reply.status_code, reply.content) == (response.status_code, response.body)
    assert reply.headers.get("retry-after") == response.headers.get("retry-after")
