"""Traces: one span for each request at the entrance, continued by vLLM's own span in the engine.

They go to an OpenTelemetry collector by OTLP over HTTP. Spans name model, round, version, status, tokens and the
request's id; never a prompt, an answer, a key or a conversation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pddpo_ray.errors import UserError

TRACEPARENT = "traceparent"
SERVICE = "pddpo-serving"


def checked_address(url: str) -> str:
    """The address of a collector's traces. Raises UserError for anything else than http(s) without a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password or parts.username:
        raise UserError(f"--traces {url}: write a collector's address, e.g. http://127.0.0.1:4318/v1/traces")
    return url


def let_engine_trace(service: str) -> None:
    """Sets how vLLM in this process sends its traces; call it before vLLM starts."""
    os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    os.environ.setdefault("OTEL_SERVICE_NAME", service)


class Span:
    """One request."""

    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """What the engine continues, in the W3C's form; empty where nothing is traced."""
        if self._span is None:
            return ""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def end(self, **attributes: Any) -> None:
        """Once; an HTTP status from 500 is an error."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if attributes["http.response.status_code"] >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class Traces:
    """The spans of one entrance. Without an address it makes none, and OpenTelemetry is not imported."""

    def __init__(self, address: str | None, run: str) -> None:
        self._tracer: Any = None
        if address is None:
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=Resource.create({"service.name": SERVICE, "pddpo.run": run}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
        self._tracer = provider.get_tracer("deploy.serving")

    def begin(self, kind: str, headers: Mapping[str, str]) -> Span:
        """A span of one request; it continues the client's trace where the client sends one."""
        if self._tracer is None:
            return Span(None)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({TRACEPARENT: headers.get(TRACEPARENT, "")})
        return Span(self._tracer.start_span(kind, context=context, kind=SpanKind.SERVER))
