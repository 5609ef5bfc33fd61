"""Traces of requests, made with OpenTelemetry and sent by OTLP over HTTP.

``middleware.traces`` begins a request's span; what happens within it is a span below that one:

    POST /v1/chat/completions
    ├ admission                 checks, template, tokens, grammar
    │ └ limits                  the reservation
    └ chat MODEL                by the semantic conventions for generative AI
      ├ queue, prefill, decode  from times that the engine reports with the first token
      └ settle                  the ledger

Nothing that a client or the model wrote is ever in a span. Without ``tracing.otlp_endpoint``
OpenTelemetry is not imported, and each place that could record something looks at one variable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from gateway import logs
from gateway.config import TracingConfig
from gateway.errors import ConfigError
from gateway.version import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

EXPORT_TIMEOUT_S = 2.0
"""How long a batch is tried to be sent, the last one while the server shuts down."""
Attributes = Mapping[str, str | bool | int | float | list[str]]


class Stage:
    """A span of a request whose trace is recorded."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def begin(
        self, name: str, *, at: float | None = None, attributes: Attributes | None = None
    ) -> Stage:
        """Begin a span below this one. at: in seconds of ``time.monotonic``; None: now."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._span),
            start_time=None if at is None else _since_the_epoch_ns(at),
            attributes=attributes,
        )
        return Stage(self._tracer, span)

    def add(self, name: str, begun_at: float, ended_at: float) -> None:
        """A span below this one that has ended. Times in seconds of ``time.monotonic``."""
        self.begin(name, at=begun_at).end(at=ended_at)

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        """error: the type of what went wrong, if anything did."""
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end(None if at is None else _since_the_epoch_ns(at))

    def rename(self, name: str, attributes: Attributes) -> None:
        """For what is known only once the span has begun."""
        self._span.update_name(name)
        self._span.set_attributes(attributes)


current: ContextVar[Stage | None] = ContextVar("trace", default=None)
"""The span that work done now belongs to; None if no trace of it is recorded."""


def stage(name: str) -> AbstractContextManager[None]:
    """A span of what is done within the block, if a trace of it is recorded."""
    above = current.get()
    return _NOT_RECORDED if above is None else _stage(above, name)


_NOT_RECORDED = nullcontext()


@contextmanager
def _stage(above: Stage, name: str) -> Iterator[None]:
    own = above.begin(name)
    before = current.set(own)
    error = None
    try:
        yield
    except BaseException as exc:
        error = type(exc).__qualname__
        raise
    finally:
        current.reset(before)
        own.end(error=error)


class Tracing:
    """Makes the spans of requests, and exports them in a thread of its own. At most 2,048 spans
    wait to be exported; while the collector is away or too slow, further ones are dropped."""

    def __init__(self, config: TracingConfig) -> None:
        """Raises ``ConfigError`` if the packages of the extra ``otel`` are not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ModuleNotFoundError as exc:
            raise ConfigError(
                f"tracing.otlp_endpoint needs {exc.name}; run `pip install 'sluice[otel]'`, or "
                "leave the setting out"
            ) from None
        resource = Resource.create(
            {"service.name": config.service_name, "service.version": version()}
        )
        self._provider: TracerProvider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sluice", version())

    def begin(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> RequestTrace:
        """Begin the span of a request, as a part of the trace that its ``traceparent`` names, if it
        has one."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        span = self._tracer.start_span(
            name,
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return RequestTrace(self._tracer, span)

    def close(self) -> None:
        """Export what waits, and end the thread. May block for some seconds."""
        self._provider.shutdown()


class RequestTrace:
    """The span of one request. While it is entered, logs name it, and ``current`` is it if it is
    recorded."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        known = span.get_span_context()
        trace_id, span_id = f"{known.trace_id:032x}", f"{known.span_id:016x}"
        self.traceparent = f"00-{trace_id}-{span_id}-{known.trace_flags:02x}"
        """The header by which others continue the trace (W3C Trace Context)."""
        self.stage = Stage(tracer, span)
        self.is_recorded = span.is_recording()
        self._ids = {"trace_id": trace_id, "span_id": span_id}
        self._before: tuple[Token[Stage | None], Token[Mapping[str, str]]] | None = None

    def __enter__(self) -> RequestTrace:
        recorded = self.stage if self.is_recorded else None
        self._before = current.set(recorded), logs.trace_ids.set(self._ids)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        current.reset(self._before[0])
        logs.trace_ids.reset(self._before[1])


def _since_the_epoch_ns(monotonic_s: float) -> int:
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)
