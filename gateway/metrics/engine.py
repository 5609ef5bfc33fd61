"""The engine's statistics as Prometheus metrics.

Names as in vLLM wherever it has one. The tenant label is the scheduler's fair key, which is the
tenant's id. The engine keeps a bounded number of tenants apart, and reports the others' sums as
``others``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from engine.messages import QUEUE_TIME_BUCKETS_S, Stats, TenantStats

PREFIX = "sluice_"

GAUGES: dict[str, tuple[str, str]] = {
    "num_running": ("num_requests_running", "Requests in the batch."),
    "num_waiting": ("num_requests_waiting", "Requests that wait for the batch."),
    "num_parked": ("num_requests_parked", "Requests set aside because their readers stall."),
    "num_swapped": ("num_requests_swapped", "Waiting requests with their work in host memory."),
    "num_queued_reqs": ("num_requests_queued", "Requests that wait for their first admission."),
    "num_queued_tokens": ("num_queued_tokens", "Prompt tokens of those."),
    "num_total_blocks": ("num_kv_cache_blocks", "Blocks of the KV cache."),
    "num_free_blocks": ("num_free_kv_cache_blocks", "Blocks that no request holds."),
    "num_cached_blocks": ("num_cached_blocks", "Blocks whose content the prefix cache knows."),
    "num_total_swap_blocks": ("num_swap_blocks", "Blocks of host memory for swapped requests."),
    "num_free_swap_blocks": ("num_free_swap_blocks", "Those that are free."),
    "num_loaded_adapters": ("num_loaded_adapters", "LoRA adapters in host memory."),
    "fairness_gap": (
        "fairness_gap",
        "Largest difference in weighted service between two tenants with backlog.",
    ),
}
"""Field of ``Stats`` to (name, help)."""

COUNTERS: dict[str, tuple[str, str]] = {
    "num_steps": ("engine_steps", "Steps of the engine."),
    "num_preemptions": ("num_preemptions", "Requests that had to leave the batch."),
    "scheduled_tokens": ("scheduled_tokens", "Tokens computed, prompt and generated."),
    "recomputed_tokens": ("recomputed_tokens", "Of these, computed again after a preemption."),
    "swapped_out_blocks": ("swapped_out_blocks", "Blocks copied to host memory."),
    "swapped_in_blocks": ("swapped_in_blocks", "Blocks copied back."),
    "num_adapter_reads": ("adapter_reads", "Times that an adapter's files were read."),
    "num_adapter_swaps": ("adapter_swaps", "Times that an adapter was copied to the device."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "generation_tokens": ("generation_tokens", "Generated tokens."),
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens found there."),
    "spec_decode_num_drafts": ("spec_decode_num_drafts", "Times that drafts were checked."),
    "spec_decode_num_draft_tokens": ("spec_decode_num_draft_tokens", "Draft tokens."),
    "spec_decode_num_accepted_tokens": (
        "spec_decode_num_accepted_tokens",
        "Those that were right.",
    ),
    "prefix_cache_evictions": ("prefix_cache_evictions", "Blocks whose content was given up."),
}

TENANT_COUNTERS: dict[str, tuple[str, str, str]] = {
    "computed_tokens": ("service_tokens", "kind", "computed"),
    "cached_tokens": ("service_tokens", "kind", "cached"),
    "generation_tokens": ("service_tokens", "kind", "generation"),
    "preemptions_caused": ("tenant_preemptions", "role", "caused"),
    "preemptions_suffered": ("tenant_preemptions", "role", "suffered"),
}
"""Field of ``TenantStats`` to (name, label, value)."""

TENANT_DRAFT_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
"""Fields of ``TenantStats``; of ``Stats`` with ``spec_decode_`` before."""

PER_POS = (
    "spec_decode_num_accepted_tokens_per_pos",
    "Draft tokens that were right, by their place in the draft.",
)

_TENANT_HELP = {
    "service_tokens": "Tokens a tenant was served: prompts computed or cached, and generated.",
    "tenant_preemptions": "Preemptions by the tenant in whose favour, and by whose request.",
}


class EngineCollector(Collector):
    def __init__(self, stats: Stats, *, is_ready: bool = True) -> None:
        self._stats = stats
        self._is_ready = is_ready

    def collect(self) -> Iterable[Metric]:
        stats = self._stats
        yield GaugeMetricFamily(
            PREFIX + "engine_ready",
            "1 while the engine serves; 0 while it loads, restarts or is gone.",
            float(self._is_ready),
        )
        for field, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, getattr(stats, field))
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + name, text, getattr(stats, field))
        yield GaugeMetricFamily(
            PREFIX + "kv_cache_usage_perc",
            "Share of the KV cache's blocks that requests hold, in [0, 1].",
            (stats.num_total_blocks - stats.num_free_blocks) / max(stats.num_total_blocks, 1),
        )
        yield histogram(
            "request_queue_time_seconds",
            "From a request's arrival at the engine to its first admission.",
            QUEUE_TIME_BUCKETS_S,
            stats.queue_time_counts or [0] * (len(QUEUE_TIME_BUCKETS_S) + 1),
            stats.queue_time_sum_s,
        )
        accepted = CounterMetricFamily(PREFIX + PER_POS[0], PER_POS[1], labels=["position"])
        for position, count in enumerate(stats.spec_decode_num_accepted_tokens_per_pos):
            accepted.add_metric([str(position)], count)
        yield accepted
        yield from _by_tenant(stats.tenants)
        yield from _drafts_by_tenant(stats.tenants)


class FleetCollector(Collector):
    """The metrics of several engines, with the labels ``model`` and ``engine``; of a lone one
    without them."""

    def __init__(self, engines: Callable[[], Mapping[tuple[str, str], EngineCollector]]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        engines = self._engines()
        if len(engines) == 1:
            (engine,) = engines.values()
            yield from engine.collect()
            return
        families: dict[str, Metric] = {}
        for (model, name), engine in engines.items():
            for metric in engine.collect():
                family = families.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type)
                )
                family.samples += [
                    sample._replace(labels={"model": model, "engine": name, **sample.labels})
                    for sample in metric.samples
                ]
        yield from families.values()


def _by_tenant(tenants: Sequence[TenantStats]) -> Iterable[Metric]:
    running = GaugeMetricFamily(
        PREFIX + "tenant_requests_running", "Requests in the batch.", labels=["tenant"]
    )
    queued = GaugeMetricFamily(
        PREFIX + "tenant_requests_queued",
        "Requests that wait for their first admission.",
        labels=["tenant"],
    )
    queued_tokens = GaugeMetricFamily(
        PREFIX + "tenant_queued_tokens", "Prompt tokens of those.", labels=["tenant"]
    )
    waited = SummaryMetricFamily(
        PREFIX + "tenant_queue_time_seconds",
        "From a request's arrival at the engine to its first admission.",
        labels=["tenant"],
    )
    totals = {
        name: CounterMetricFamily(PREFIX + name, _TENANT_HELP[name], labels=["tenant", label])
        for name, label, _ in TENANT_COUNTERS.values()
    }
    for tenant in tenants:
        label = [tenant.fair_key]
        running.add_metric(label, tenant.num_running)
        queued.add_metric(label, tenant.num_queued)
        queued_tokens.add_metric(label, tenant.queued_tokens)
        waited.add_metric(label, tenant.num_admitted, tenant.queue_time_sum_s)
        for field, (name, _, value) in TENANT_COUNTERS.items():
            totals[name].add_metric([tenant.fair_key, value], getattr(tenant, field))
    return (running, queued, queued_tokens, waited, *totals.values())


def _drafts_by_tenant(tenants: Sequence[TenantStats]) -> Iterable[Metric]:
    """The counters of speculative decoding under names of their own, so that sums over the labels
    count nothing twice."""
    for field in TENANT_DRAFT_COUNTERS:
        name, text = COUNTERS[f"spec_decode_{field}"]
        total = CounterMetricFamily(f"{PREFIX}tenant_{name}", text, labels=["tenant"])
        for tenant in tenants:
            total.add_metric([tenant.fair_key], getattr(tenant, field))
        yield total
    labels = ["tenant", "position"]
    accepted = CounterMetricFamily(f"{PREFIX}tenant_{PER_POS[0]}", PER_POS[1], labels=labels)
    for tenant in tenants:
        for position, count in enumerate(tenant.num_accepted_tokens_per_pos):
            accepted.add_metric([tenant.fair_key, str(position)], count)
    yield accepted


class Latencies(Collector):
    """A histogram that is cheap enough to be updated at every token."""

    def __init__(self, name: str, text: str, buckets_s: Sequence[float]) -> None:
        self._name, self._text, self._buckets_s = name, text, buckets_s
        self._counts = [0] * (len(buckets_s) + 1)
        self._sum_s = 0.0

    def observe(self, now: float, since: Iterable[float]) -> None:
        """Record intervals that end ``now``, given their beginnings, in seconds of
        ``time.monotonic``. Consecutive equal ones, such as those of one step, are counted at
        once."""
        counts, buckets_s = self._counts, self._buckets_s
        for begun_at, together in groupby(since):
            seconds, count = now - begun_at, len(list(together))
            counts[bisect_left(buckets_s, seconds)] += count
            self._sum_s += seconds * count

    def collect(self) -> Iterable[Metric]:
        yield histogram(self._name, self._text, self._buckets_s, self._counts, self._sum_s)


def histogram(
    name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> Metric:
    """counts: for each bound, the observations up to it and above the one before; then those above
    all bounds."""
    assert len(counts) == len(bounds) + 1, (len(counts), len(bounds))
    edges = [*(f"{float(bound)}" for bound in bounds), "+Inf"]
    buckets = [(edge, float(count)) for edge, count in zip(edges, accumulate(counts), strict=True)]
    return HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=total)
