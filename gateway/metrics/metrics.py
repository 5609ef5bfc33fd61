"""Prometheus metrics of the gateway. Labels contain no keys, and no text of clients."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.client.fleets import Fleets
from gateway.metrics.engine import EngineCollector, FleetCollector, Latencies
from gateway.metrics.times import Times
from gateway.metrics.worker_metrics import WorkerMetrics
from gateway.version import commit, version
from tenants.changes import ChangeListener
from tenants.types import UsageEvent
from tenants.usage import Ledger
from tenants.webhooks import Backlog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKEN_LATENCIES_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10),
)
_LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REQUEST_LATENCIES_S = (0.1, 0.3, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960)


class Metrics:
    """One registry for each app, so that several apps in one process do not mix."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where all workers of this server write their metrics; None if there is
        one process."""
        self._registry = CollectorRegistry()
        self._engine_registry = CollectorRegistry()
        """Not summed over the workers, because the engine reports the same to all."""
        self.worker_metrics = None if folder is None else WorkerMetrics(folder, self._registry)
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
        self._refusals = _by_labels(
            "sluice_refusals",
            "Requests that were refused, by the code of the error.",
            ["code"],
            self._registry,
        )
        self._batch_lines = _by_labels(
            "sluice_batch_lines",
            "Lines of batches that this server has done, by outcome.",
            ["outcome"],
            self._registry,
        )
        self._first_token = _histogram(
            "sluice_time_to_first_token_seconds",
            "From submission to the engine to the first token.",
            _LATENCIES_S,
            self._registry,
        )
        self._per_token = _histogram(
            "sluice_time_per_output_token_seconds",
            "Of an answer with several tokens: from its first token to its end, by those after it.",
            _TOKEN_LATENCIES_S,
            self._registry,
        )
        self._inter_token = Latencies(
            "inter_token_latency_seconds",
            "Between two tokens of a request as they come from the engine, pauses left out.",
            _TOKEN_LATENCIES_S,
        )
        self._registry.register(self._inter_token)
        self.observe_inter_token = self._inter_token.observe
        """The callback for ``EngineClient.on_tokens``."""
        self._request = _histogram(
            "sluice_e2e_request_latency_seconds",
            "From submission to the engine to the end of the answer.",
            _REQUEST_LATENCIES_S,
            self._registry,
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
        build = Gauge(
            "sluice_build_info",
            "Always 1; its labels say which Sluice this is.",
            ["version", "commit", "python"],
            registry=self._registry,
        )
        build.labels(version(), commit(), platform.python_version()).set(1)
        ProcessCollector(registry=self._registry)

    def watch(
        self,
        *,
        running: Callable[[], int],
        engines: Callable[[], Mapping[tuple[str, str], EngineCollector]],
    ) -> None:
        """Call these whenever the metrics are scraped. ``engines``: by model and name."""
        text = "Requests that are not settled yet."
        self._show("sluice_generations_running", text, running)
        self._engine_registry.register(FleetCollector(engines))

    def watch_moves(self, fleets: Fleets, refused: Mapping[str, int]) -> None:
        """Read these whenever the metrics are scraped. ``refused``: engines, by the cause."""
        self._registry.register(_Collected(_moves_metrics, fleets, refused))

    def watch_changes(self, listener: ChangeListener) -> None:
        """Read ``listener`` whenever the metrics are scraped."""
        self._show(
            "sluice_changes_age_seconds",
            "Time since the connection that reports revoked keys was last known to be alive.",
            lambda: listener.age_s,
        )
        text = "How often that connection was made; each time all cached keys were dropped."
        made = partial(CounterMetricFamily, "sluice_changes_connects", text)
        self._registry.register(_Collected(lambda: [made(listener.num_connects)]))

    def watch_background(self, num_deaths: Callable[[], Mapping[str, int]]) -> None:
        """Likewise."""
        text = "How often work beside the requests ended by itself, and was started again."
        self._count("sluice_background_deaths", text, "work", num_deaths)

    def count_response(self, route: str, status: int) -> None:
        self._responses(route, str(status)).inc()

    def count_usage(self, event: UsageEvent) -> None:
        self._generations(event.status, event.model).inc()
        self._tokens("prompt", event.model).inc(event.prompt_tokens)
        self._tokens("cached", event.model).inc(event.cached_tokens)
        self._tokens("completion", event.model).inc(event.completion_tokens)

    def watch_ledger(self, ledger: Ledger) -> None:
        """Likewise."""
        text = "Settled requests whose usage has not reached PostgreSQL yet."
        self._show("sluice_ledger_pending", text, lambda: ledger.num_pending)
        text = "How long the oldest of these has waited."
        self._show("sluice_ledger_lag_seconds", text, lambda: ledger.lag_s)

    def watch_batches(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Likewise; all workers report the same that wait."""
        self._show("sluice_batch_lines_running", "Lines of batches that run.", running)
        text = "Lines of the batches of all tenants that have no result yet."
        self._show("sluice_batch_lines_waiting", text, waiting, is_shared=True)

    def watch_webhooks(self, attempts: Mapping[str, int], backlog: Callable[[], Backlog]) -> None:
        """Likewise. ``attempts``: by how they ended; all workers report the same ``backlog``."""
        self._count(
            "sluice_webhook_attempts",
            "Attempts to send an event to a webhook, by how they ended; failed: the event is given "
            "up.",
            "outcome",
            lambda: attempts,
        )
        text = "Events that wait for the receivers of webhooks, of the whole deployment."
        pending = "sluice_webhook_events_pending"
        self._show(pending, text, lambda: backlog().num_pending, is_shared=True)
        oldest, text = (
            "sluice_webhook_oldest_pending_seconds",
            "How long the oldest of these has waited.",
        )
        self._show(oldest, text, lambda: backlog().oldest_s, is_shared=True)

    def _show(
        self, name: str, text: str, read: Callable[[], float], *, is_shared: bool = False
    ) -> None:
        """A gauge that is read whenever the metrics are scraped. is_shared: all workers report the
        same."""
        registry = self._engine_registry if is_shared else self._registry
        registry.register(_Collected(lambda: [GaugeMetricFamily(name, text, read())]))

    def _count(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, int]]
    ) -> None:
        """Likewise counters, by the values of a label."""
        self._registry.register(_Collected(lambda: [_counter(name, text, label, read())]))

    def count_batch_line(self, outcome: str) -> None:
        """``completed``, ``failed``, or ``lost`` to another worker."""
        self._batch_lines(outcome).inc()

    def count_refusal(self, code: str) -> None:
        self._refusals(code).inc()

    def observe_first_token(self, seconds: float, model: str, endpoint: str) -> None:
        self._first_token(model, endpoint).observe(seconds)

    def observe_request(
        self, times: Times, num_generated_tokens: int, model: str, endpoint: str
    ) -> None:
        """A request has ended: ``times.ended_at`` is known."""
        assert times.ended_at is not None
        self._request(model, endpoint).observe(times.ended_at - times.began_at)
        if times.first_token_at is not None and num_generated_tokens > 1:
            seconds = (times.ended_at - times.first_token_at) / (num_generated_tokens - 1)
            self._per_token(model, endpoint).observe(seconds)

    def count_socket(self, change: int) -> None:
        self._sockets.inc(change)

    @property
    def registries(self) -> tuple[CollectorRegistry, CollectorRegistry]:
        """The metrics of this worker, and those of the engine."""
        return self._registry, self._engine_registry

    def render(self) -> bytes:
        """The metrics of all workers in Prometheus' text format, version 0.0.4."""
        counted: Collector = self._registry if self.worker_metrics is None else self.worker_metrics
        return generate_latest(counted) + generate_latest(self._engine_registry)


def _by_labels(
    name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry
) -> Callable[..., Counter]:
    """A function from the values of labels to the counter for them. ``Counter.labels`` is slow, so
    its results are cached."""
    return cache(Counter(name, documentation, labels, registry=registry).labels)


def _histogram(
    name: str, documentation: str, buckets_s: Sequence[float], registry: CollectorRegistry
) -> Callable[..., Histogram]:
    """As ``_by_labels``, of latencies by model and endpoint."""
    labels = ["model", "endpoint"]
    found = Histogram(name, documentation, labels, buckets=buckets_s, registry=registry)
    return cache(found.labels)


class _Collected(Collector):
    """Calls a function for its metrics whenever they are scraped."""

    def __init__(self, metrics: Callable[..., Iterable[Metric]], *arguments: object) -> None:
        self._metrics = partial(metrics, *arguments)

    def collect(self) -> Iterable[Metric]:
        return self._metrics()


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    found = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        found.add_metric([value], count)
    return found


def _moves_metrics(fleets: Fleets, refused: Mapping[str, int]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily(
        "sluice_requests_without_engine",
        "Requests that have lost their engine, and wait for another one.",
        labels=["model"],
    )
    moved = CounterMetricFamily(
        "sluice_request_moves",
        "Times that a request went on at another engine, or at the same after its restart.",
        labels=["model"],
    )
    lost = CounterMetricFamily(
        "sluice_requests_lost",
        "Requests that failed with their engine: no other came in time, or it was their doing.",
        labels=["model"],
    )
    sent = CounterMetricFamily(
        "sluice_requests_routed",
        "Requests by the engine that took them, those that moved there included.",
        labels=["model", "engine"],
    )
    found = CounterMetricFamily(
        "sluice_router_hits",
        "Requests that found all that the router expected of their prompt in the engine's cache, or"
        " less; with fleet.router = d2lpm.",
        labels=["model", "found"],
    )
    for model, fleet in fleets.items():
        for engine, number in fleet.num_sent.items():
            sent.add_metric([model, engine], number)
        for is_hit, number in fleet.router_hits.items():
            found.add_metric([model, "all" if is_hit else "less"], number)
        waiting.add_metric([model], len(fleet.moves))
        moved.add_metric([model], fleet.moves.num_moved)
        lost.add_metric([model], fleet.moves.num_failed)
    yield from (waiting, moved, lost, sent, found)
    yield _counter(
        "sluice_engines_refused",
        "Engines of the registry that are not used, by the cause; epoch: one that was given up"
        " answered.",
        "cause",
        refused,
    )
