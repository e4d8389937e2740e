"""Spans of the entrance, as a collector gets them; the engine's own are in tests/serve."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from deploy.serving.tracing import checked_address
from pddpo_ray.errors import UserError
from pddpo_ray.serving.keys import Scope
from tests.support.collector import Collector, collector
from tests.unit.serving.test_app import Caller

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def arrived(spans: Collector, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(spans.spans) < count:
        assert time.monotonic() < deadline, "the collector got no spans"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_request_is_a_span_that_continues_the_clients_trace(tmp_path: Path) -> None:
    with collector() as spans:
        caller = Caller(tmp_path, traces=spans.url)
        try:
            reply = caller.post("/v1/chat/completions", {"model": "released", "messages": []} | said("secret words"),
                                Scope.CHAT, traceparent=PARENT)  # fmt: skip
            assert reply.status_code == 200
            caller.engine.fault = fail
            assert caller.chat().status_code == 500
            arrived(spans, 2)
        finally:
            caller.close()
    first, second = spans.spans
    assert (first["service"], first["name"], first["parent"]) == ("pddpo-serving", "chat", PARENT.split("-")[2])
    assert first["trace"] == PARENT.split("-")[1]
    assert caller.engine.traces[0] == f"00-{first['trace']}-{first['span']}-01"
    assert first["attributes"]["http.response.status_code"] == 200
    assert (first["attributes"]["gen_ai.request.model"], first["attributes"]["pddpo.round"]) == ("released", 1)
    assert (first["error"], second["error"], second["parent"]) == (False, True, "")
    assert "secret words" not in json.dumps(spans.spans)


def said(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 5}


async def fail() -> None:
    raise RuntimeError("broken")


@pytest.mark.slow
def test_without_a_collector_nothing_is_traced(tmp_path: Path) -> None:
    caller = Caller(tmp_path)
    try:
        assert caller.chat().status_code == 200
        assert caller.engine.traces == [""]
    finally:
        caller.close()


@pytest.mark.parametrize(
    "url", ["collector:4317", "ftp://host/v1/traces", "http://", "http://me:secret@host/v1/traces"]
)
def test_an_address_is_http_without_a_password(url: str) -> None:
    with pytest.raises(UserError, match="write a collector's address"):
        checked_address(url)
