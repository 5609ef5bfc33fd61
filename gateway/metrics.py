"""Prometheus metrics of the gateway. Labels hold no ids, keys or texts of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import Stats
from tenants.changes import ChangeListener
from tenants.types import UsageEvent

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One registry for each app, so that several apps in one process do not mix."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._responses = Counter(
            "sluice_http_responses",
            "Finished HTTP responses; status 499: the client left before it began.",
            ["route", "status"],
            registry=self._registry,
        )
        self._generations = Counter(
            "sluice_generations",
            "Settled requests by how they ended.",
            ["status"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "sluice_tokens",
            "Settled tokens.",
            ["kind"],
            registry=self._registry,
        )
        self._first_token = Histogram(
            "sluice_time_to_first_token_seconds",
            "From submission to the engine to the first token.",
            buckets=_LATENCIES_S,
            registry=self._registry,
        )
        self._sockets = Gauge("sluice_websockets", "Open WebSockets.", registry=self._registry)

    def watch(self, *, running: Callable[[], int], stats: Callable[[], Stats]) -> None:
        """Read these two whenever the metrics are scraped."""
        self._registry.register(_EngineCollector(running, stats))

    def watch_changes(self, listener: ChangeListener) -> None:
        """Likewise."""
        self._registry.register(_ChangesCollector(listener))

    def count_response(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def count_usage(self, event: UsageEvent) -> None:
        self._generations.labels(event.status).inc()
        self._tokens.labels("prompt").inc(event.prompt_tokens)
        self._tokens.labels("cached").inc(event.cached_tokens)
        self._tokens.labels("completion").inc(event.completion_tokens)

    def observe_first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def count_socket(self, change: int) -> None:
        self._sockets.inc(change)

    def render(self) -> bytes:
        """The exposition format, ``text/plain; version=0.0.4``."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    def __init__(self, running: Callable[[], int], stats: Callable[[], Stats]) -> None:
        self._running = running
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily(
            "sluice_generations_running", "Requests in the engine.", self._running()
        )
        for name in ("num_running", "num_waiting", "num_total_blocks", "num_free_blocks"):
            yield GaugeMetricFamily(
                f"sluice_engine_{name}", "See engine.messages.Stats.", getattr(stats, name)
            )


class _ChangesCollector(Collector):
    def __init__(self, listener: ChangeListener) -> None:
        self._listener = listener

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "sluice_changes_age_seconds",
            "Since the line that tells of revoked keys was last known to be alive.",
            self._listener.age_s,
        )
        yield CounterMetricFamily(
            "sluice_changes_connects",
            "How often that line was made; each time all keys were forgotten.",
            self._listener.num_connects,
        )
