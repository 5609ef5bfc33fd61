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

import random
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
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, SpanContext

EXPORT_TIMEOUT_S = 2.0
"""How long a batch is tried to be sent, the last one while the server shuts down."""
Attributes = Mapping[str, str | bool | int | float | list[str]]


class Stage:
    """A span of a request whose trace is recorded.

    Those below the request's are made here, whole, when they end: the SDK's own spans, which may be
    changed by several threads at any time, take four times as long.
    """

    __slots__ = ("_attributes", "_begun_at", "_context", "_epoch", "_name", "_parent", "_sink")

    def __init__(
        self,
        sink: _Sink,
        epoch: int,
        name: str,
        context: SpanContext,
        parent: SpanContext | None = None,
        begun_at: int = 0,
        attributes: Attributes | None = None,
    ) -> None:
        """epoch: by how many nanoseconds the time of day is ahead of ``time.monotonic``, the same
        for all spans of a request, so that they follow one another. begun_at: in nanoseconds since
        the epoch."""
        self._sink = sink
        self._epoch = epoch
        self._name = name
        self._context = context
        self._parent = parent
        self._begun_at = begun_at
        self._attributes = attributes or {}

    def begin(
        self, name: str, *, at: float | None = None, attributes: Attributes | None = None
    ) -> Stage:
        """Begin a span below this one. at: in seconds of ``time.monotonic``; None: now."""
        sink = self._sink
        context = sink.context_below(self._context)
        return Stage(sink, self._epoch, name, context, self._context, self._at(at), attributes)

    def add(self, name: str, begun_at: float, ended_at: float) -> None:
        """A span below this one that has ended. Times in seconds of ``time.monotonic``."""
        self.begin(name, at=begun_at).end(at=ended_at)

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        """error: the type of what went wrong, if anything did."""
        if error is not None:
            self._attributes = {**self._attributes, "error.type": error}
        self._sink.add(
            self._name,
            self._context,
            self._parent,
            times=(self._begun_at, self._at(at)),
            attributes=self._attributes,
            has_failed=error is not None,
        )

    def _at(self, monotonic_s: float | None) -> int:
        """In nanoseconds since the epoch. None: now."""
        ns = time.monotonic_ns() if monotonic_s is None else int(monotonic_s * 1e9)
        return self._epoch + ns

    def rename(self, name: str, attributes: Attributes) -> None:
        """For what is known only once the span has begun."""
        self._name = name
        self._attributes = {**self._attributes, **attributes}


class _RequestStage(Stage):
    """That of the request: a span of the SDK, which decides whether the trace is recorded."""

    __slots__ = ("_span",)

    def __init__(self, sink: _Sink, span: Span) -> None:
        epoch = time.time_ns() - time.monotonic_ns()
        super().__init__(sink, epoch, "", span.get_span_context())
        self._span = span

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end(self._at(at))

    def rename(self, name: str, attributes: Attributes) -> None:
        self._span.update_name(name)
        self._span.set_attributes(attributes)


class _Sink:
    """Takes spans that have ended."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, Status, StatusCode

        self._processor = processor
        self._resource = resource
        self._scope = InstrumentationScope("sluice", version())
        self._make, self._make_context = ReadableSpan, SpanContext
        self._good, self._bad = Status(), Status(StatusCode.ERROR)

    def context_below(self, parent: SpanContext) -> SpanContext:
        span_id = random.getrandbits(64) or 1
        return self._make_context(parent.trace_id, span_id, False, parent.trace_flags)

    def add(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        *,
        times: tuple[int, int],
        attributes: Attributes,
        has_failed: bool,
    ) -> None:
        span = self._make(
            name,
            context,
            parent,
            self._resource,
            attributes,
            status=self._bad if has_failed else self._good,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)


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
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

            from gateway.otlp import JsonExporter
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
        assert config.otlp_endpoint is not None
        processor = BatchSpanProcessor(JsonExporter(config.otlp_endpoint, EXPORT_TIMEOUT_S))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sluice", version())
        self._sink = _Sink(processor, resource)

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
        return RequestTrace(self._sink, span)

    def close(self) -> None:
        """Export what waits, and end the thread. May block for some seconds."""
        self._provider.shutdown()


class RequestTrace:
    """The span of one request. While it is entered, logs name it, and ``current`` is it if it is
    recorded."""

    def __init__(self, sink: _Sink, span: Span) -> None:
        known = span.get_span_context()
        trace_id, span_id = f"{known.trace_id:032x}", f"{known.span_id:016x}"
        self.traceparent = f"00-{trace_id}-{span_id}-{known.trace_flags:02x}"
        """The header by which others continue the trace (W3C Trace Context)."""
        self.stage: Stage = _RequestStage(sink, span)
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
