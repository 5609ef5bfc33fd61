"""Prometheus metrics of the gateway. Labels contain no keys, and no text of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import Stats
from gateway.metrics.board import Board
from gateway.metrics.engine import EngineCollector, Latencies
from tenants.changes import ChangeListener
from tenants.types import UsageEvent

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN_LATENCIES_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10),
)
_LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REQUEST_LATENCIES_S = (0.1, 0.3, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960)


class Metrics:
    """One registry for each app, so that several apps in one process do not mix."""

    def __init__(self, shared_folder: Path | None = None) -> None:
        """``shared_folder``: where all workers of this server write their metrics; None if there is
        one process."""
        self._registry = CollectorRegistry()
        self._engine_registry = CollectorRegistry()
        """Not summed over the workers, because the engine reports the same to all."""
        self.board = None if shared_folder is None else Board(shared_folder, self._registry)
        self._responses = _by_labels(
            "sluice_http_responses",
            "Finished HTTP responses; status 499: the client left before it began.",
            ["route", "status"],
            self._registry,
        )
        self._generations = _by_labels(
            "sluice_generations",
            "Settled requests by how they ended.",
            ["status", "model"],
            self._registry,
        )
        self._tokens = _by_labels(
            "sluice_tokens",
            "Settled tokens.",
            ["kind", "model"],
            self._registry,
        )
        self._first_token = Histogram(
            "sluice_time_to_first_token_seconds",
            "From submission to the engine to the first token.",
            buckets=_LATENCIES_S,
            registry=self._registry,
        )
        self._inter_token = Latencies(
            "inter_token_latency_seconds",
            "Between two tokens of a request as they come from the engine, pauses left out.",
            _TOKEN_LATENCIES_S,
        )
        self._registry.register(self._inter_token)
        self.observe_inter_token = self._inter_token.observe
        """The callback for ``EngineClient.on_tokens``."""
        self._request = Histogram(
            "sluice_e2e_request_latency_seconds",
            "From submission to the engine to the end of the answer.",
            buckets=_REQUEST_LATENCIES_S,
            registry=self._registry,
        )
        self._lag = Histogram(
            "sluice_event_loop_lag_seconds",
            "How late a timer of the event loop runs, ten times a second.",
            buckets=_LAGS_S,
            registry=self._registry,
        )
        self.observe_lag = self._lag.observe
        """The callback for how late a timer ran, in seconds."""
        self._sockets = Gauge("sluice_websockets", "Open WebSockets.", registry=self._registry)

    def watch(self, *, running: Callable[[], int], stats: Callable[[], Stats]) -> None:
        """Call these two whenever the metrics are scraped."""
        self._registry.register(_RunningCollector(running))
        self._engine_registry.register(EngineCollector(stats))

    def watch_changes(self, listener: ChangeListener) -> None:
        """Read ``listener`` whenever the metrics are scraped."""
        self._registry.register(_ChangesCollector(listener))

    def watch_background(self, num_deaths: Callable[[], Mapping[str, int]]) -> None:
        """Likewise."""
        self._registry.register(_BackgroundCollector(num_deaths))

    def count_response(self, route: str, status: int) -> None:
        self._responses(route, str(status)).inc()

    def count_usage(self, event: UsageEvent) -> None:
        self._generations(event.status, event.model).inc()
        self._tokens("prompt", event.model).inc(event.prompt_tokens)
        self._tokens("cached", event.model).inc(event.cached_tokens)
        self._tokens("completion", event.model).inc(event.completion_tokens)

    def observe_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def observe_request(self, seconds: float) -> None:
        self._request.observe(seconds)

    def count_socket(self, change: int) -> None:
        self._sockets.inc(change)

    def render(self) -> bytes:
        """The metrics of all workers in Prometheus' text format, version 0.0.4."""
        counted: Collector = self._registry if self.board is None else self.board
        return generate_latest(counted) + generate_latest(self._engine_registry)


def _by_labels(
    name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry
) -> Callable[..., Counter]:
    """A function from the values of labels to the counter for them. ``Counter.labels`` is slow, so
    its results are cached."""
    return cache(Counter(name, documentation, labels, registry=registry).labels)


class _RunningCollector(Collector):
    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "sluice_generations_running", "Requests that are not settled yet.", self._running()
        )


class _BackgroundCollector(Collector):
    def __init__(self, num_deaths: Callable[[], Mapping[str, int]]) -> None:
        self._num_deaths = num_deaths

    def collect(self) -> Iterable[Metric]:
        deaths = CounterMetricFamily(
            "sluice_background_deaths",
            "How often work beside the requests ended by itself, and was started again.",
            labels=["work"],
        )
        for name, count in self._num_deaths().items():
            deaths.add_metric([name], count)
        yield deaths


class _ChangesCollector(Collector):
    def __init__(self, listener: ChangeListener) -> None:
        self._listener = listener

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "sluice_changes_age_seconds",
            "Time since the connection that reports revoked keys was last known to be alive.",
            self._listener.age_s,
        )
        yield CounterMetricFamily(
            "sluice_changes_connects",
            "How often that connection was made; each time all cached keys were dropped.",
            self._listener.num_connects,
        )
