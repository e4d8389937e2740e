"""What is said in front of an entrance: Serve's own errors become 503 with a time to wait, the entrance's stay."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

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
