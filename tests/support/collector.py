"""A collector of traces: OTLP over HTTP, read with OpenTelemetry's own message definitions."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """`spans` as they arrive: service, name, trace, span and parent (hex) and attributes."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                data = gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data
                outer.spans += _spans(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"


@contextmanager
def collector() -> Iterator[Collector]:
    one = Collector()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def _spans(request: Any) -> list[dict[str, Any]]:
    found = []
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes).get("service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                ids = {"trace": span.trace_id.hex(), "span": span.span_id.hex(), "parent": span.parent_span_id.hex()}
                about = {"service": service, "name": span.name, "error": span.status.code == 2}
                found.append({**about, **ids, "attributes": _values(span.attributes)})
    return found


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
