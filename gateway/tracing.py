"""Traces of requests by OpenTelemetry's conventions, sent by OTLP over HTTP.

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
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from types import MappingProxyType

from gateway import logs, otlp
from gateway.config import TracingConfig
from gateway.errors import ConfigError
from gateway.otlp import Attributes, Exporter
from gateway.version import version

EXPORT_TIMEOUT_S = 2.0
"""How long a batch is tried to be sent, the last one while the server shuts down."""
TRACEPARENT = "traceparent"
_NO_ATTRIBUTES: Attributes = MappingProxyType({})
_INTERNAL, _SERVER = '"kind":1,', '"kind":2,'
"""Of work within a server, and of a request that it answers."""


class Stage:
    """A span of a request whose trace is recorded. It is written when it ends. What is done while
    it is entered belongs to it."""

    __slots__ = ("_attributes", "_before", "_begun_at", "_name", "_place", "_trace", "id")
    _before: Token[Stage | None]

    def __init__(
        self, trace: Recorded, name: str, attributes: Attributes, *, place: str, begun_at: int
    ) -> None:
        """place: members that say what is above it, each with a comma. begun_at: in nanoseconds
        since the epoch."""
        self.id = _new_id(64)
        self._trace = trace
        self._name = name
        self._attributes = attributes
        self._place = place
        self._begun_at = begun_at

    def begin(
        self, name: str, *, at: float | None = None, attributes: Attributes = _NO_ATTRIBUTES
    ) -> Stage:
        """Begin a span below this one. at: in seconds of ``time.monotonic``; None: now."""
        trace = self._trace
        place = f'"parentSpanId":"{self.id}",{_INTERNAL}'
        return Stage(trace, name, attributes, place=place, begun_at=trace.moment(at))

    def add(self, name: str, begun_at: float, ended_at: float | None = None) -> None:
        """A span below this one that has ended; None: now. Times in seconds of
        ``time.monotonic``."""
        trace = self._trace
        ids = f'"traceId":"{trace.id}","spanId":"{_new_id(64)}","parentSpanId":"{self.id}"'
        times = trace.moment(begun_at), trace.moment(ended_at)
        trace.exporter.add(otlp.span(f"{ids},{_INTERNAL}", name, times))

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        """error: the type of what went wrong, if anything did."""
        trace = self._trace
        place = f'"traceId":"{trace.id}","spanId":"{self.id}",{self._place}'
        times = self._begun_at, trace.moment(at)
        trace.exporter.add(otlp.span(place, self._name, times, self._attributes, error))

    def rename(self, name: str, attributes: Attributes) -> None:
        """For what is known only once the span has begun."""
        self._name = name
        self._attributes = {**self._attributes, **attributes}

    def __enter__(self) -> None:
        self._before = current.set(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        current.reset(self._before)
        self.end(error=None if kind is None else kind.__qualname__)


class Recorded:
    """What the spans of a trace that is recorded have in common."""

    __slots__ = ("_epoch", "exporter", "id")

    def __init__(self, exporter: Exporter, trace_id: str) -> None:
        self.exporter = exporter
        self.id = trace_id
        # All times come from one clock, so that spans follow one another.
        self._epoch = time.time_ns() - time.monotonic_ns()

    def moment(self, monotonic_s: float | None) -> int:
        """In nanoseconds since the epoch. None: now."""
        ns = time.monotonic_ns() if monotonic_s is None else int(monotonic_s * 1e9)
        return self._epoch + ns


def _new_id(bits: int) -> str:
    """In hexadecimal, and not zero, which stands for none."""
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


current: ContextVar[Stage | None] = ContextVar("trace", default=None)
"""The span that work done now belongs to; None if no trace of it is recorded."""


def stage(name: str) -> AbstractContextManager[None]:
    """A span of what is done within the block, if a trace of it is recorded."""
    above = current.get()
    return _NOT_RECORDED if above is None else above.begin(name)


_NOT_RECORDED = nullcontext()


class Tracing:
    """Begins the traces of requests. OpenTelemetry says which are recorded, what a client's headers
    mean, and of what all spans are, also by its variables, such as ``OTEL_RESOURCE_ATTRIBUTES``."""

    def __init__(self, config: TracingConfig) -> None:
        """Raises ``ConfigError`` if the packages of the extra ``otel`` are not installed."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as exc:
            raise ConfigError(
                f"tracing.otlp_endpoint needs {exc.name}; run `pip install 'sluice[otel]'`, or "
                "leave the setting out"
            ) from None
        self._bound = TraceIdRatioBased.get_bound_for_rate(config.sample_ratio)
        self._extract = TraceContextTextMapPropagator().extract
        assert config.otlp_endpoint is not None
        known = {"service.name": config.service_name, "service.version": version()}
        self._exporter = Exporter(
            config.otlp_endpoint,
            timeout_s=EXPORT_TIMEOUT_S,
            resource=Resource.create(known).attributes,
            scope={"name": "sluice", "version": version()},
        )

    def begin(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> RequestTrace:
        """Begin the span of a request, as a part of the trace that its ``traceparent`` names, if it
        has one."""
        if TRACEPARENT in headers and (above := self._above(headers)) is not None:
            trace_id, is_recorded, place = above
        else:
            trace_id = _new_id(128)
            is_recorded = int(trace_id[16:], 16) < self._bound
            place = ""
        if not is_recorded:
            return RequestTrace(trace_id, None)
        trace = Recorded(self._exporter, trace_id)
        place += _SERVER
        now = trace.moment(None)
        return RequestTrace(trace_id, Stage(trace, name, attributes, place=place, begun_at=now))

    def _above(self, headers: Mapping[str, str]) -> tuple[str, bool, str] | None:
        """The trace that a client's headers name, whether it is recorded, and the place in it."""
        from opentelemetry.trace import get_current_span

        known = get_current_span(self._extract(headers)).get_span_context()
        if not known.is_valid:
            return None
        place = f'"parentSpanId":"{known.span_id:016x}",'
        if known.trace_state:
            place += f'"traceState":{otlp.quoted(known.trace_state.to_header())},'
        return f"{known.trace_id:032x}", known.trace_flags.sampled, place

    def close(self) -> None:
        """Send what waits, and end the thread. May block for some seconds."""
        self._exporter.close()


class RequestTrace:
    """The trace of one request. While it is entered, logs name it, and ``current`` is its span, if
    it is recorded."""

    __slots__ = ("_before", "_ids", "stage", "traceparent")

    def __init__(self, trace_id: str, stage: Stage | None) -> None:
        span_id = _new_id(64) if stage is None else stage.id
        self.stage = stage
        """The request's span; None if the trace is not recorded."""
        self.traceparent = f"00-{trace_id}-{span_id}-{'00' if stage is None else '01'}"
        """The header by which others continue the trace (W3C Trace Context)."""
        self._ids = {"trace_id": trace_id, "span_id": span_id}
        self._before: tuple[Token[Stage | None], Token[Mapping[str, str]]] | None = None

    def __enter__(self) -> RequestTrace:
        self._before = current.set(self.stage), logs.trace_ids.set(self._ids)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._before is not None
        current.reset(self._before[0])
        logs.trace_ids.reset(self._before[1])
