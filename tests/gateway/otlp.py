"""A collector: it takes spans by OTLP over HTTP, as JSON, and keeps them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)
    service_names: set[str] = field(default_factory=set)
    headers: dict[str, str] = field(default_factory=dict)
    """Of the last request."""
    refuses: int = 0
    """How many requests it answers 503."""

    def named(self, name: str) -> Span:
        """The one span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def below(self, span: Span) -> list[str]:
        """Names of the spans below one, by their begin."""
        children = [one for one in self.spans if one.parent_span_id == span.span_id]
        return [one.name for one in sorted(children, key=lambda one: one.start_time_unix_nano)]

    def take(self, body: bytes) -> None:
        """Fails for what OTLP does not know. Ids are in hexadecimal there, unlike other bytes."""
        document = json.loads(body, object_hook=_with_plain_ids)
        request = json_format.ParseDict(document, ExportTraceServiceRequest())
        for resource in request.resource_spans:
            self.service_names.add(_attributes(resource.resource)["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans


def _with_plain_ids(value: dict[str, Any]) -> dict[str, Any]:
    for name in {"traceId", "spanId", "parentSpanId"} & set(value):
        value[name] = base64.b64encode(bytes.fromhex(value[name])).decode()
    return value


def attributes(span: Span) -> dict[str, Any]:
    return _attributes(span)


def _attributes(holder: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port."""
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/json"
            taken.headers = dict(self.headers)
            if taken.refuses:
                taken.refuses -= 1
                self.send_error(503)
                return
            taken.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests look at what was taken."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    taken.endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield taken
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
