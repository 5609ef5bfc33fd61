from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from engine.bench.overload import ModelledRunner
from engine.core import EngineCore
from engine.messages import QUEUE_TIME_BUCKETS_S, GenerateRequest, Stats
from engine.messages import TenantStats as Tenant
from engine.sampling_params import SamplingParams
from gateway.metrics.engine import (
    COUNTERS,
    GAUGES,
    TENANT_COUNTERS,
    TENANT_DRAFT_COUNTERS,
    EngineCollector,
    Latencies,
)
from tests.engine.scheduler.harness import config


def samples(collector: EngineCollector | Latencies) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(collector)

    def key(sample: Sample) -> tuple[str, ...]:
        return (sample.name.removeprefix("sluice_"), *sample.labels.values())

    return {key(sample): sample.value for m in registry.collect() for sample in m.samples}


def test_every_figure_of_the_engine_is_published() -> None:
    special = {"queue_time_counts", "queue_time_sum_s", "tenants"}
    special |= {"spec_decode_num_accepted_tokens_per_pos"}
    assert {field.name for field in msgspec.structs.fields(Stats)} == {*GAUGES, *COUNTERS, *special}
    special = {"fair_key", "num_running", "num_queued", "queued_tokens"}
    special |= {"num_admitted", "queue_time_sum_s", "num_accepted_tokens_per_pos"}
    fields = {field.name for field in msgspec.structs.fields(Tenant)}
    assert fields == {*TENANT_COUNTERS, *TENANT_DRAFT_COUNTERS, *special}


def test_gauges_and_counters() -> None:
    got = samples(
        EngineCollector(
            Stats(
                num_running=3,
                num_swapped=2,
                num_total_blocks=100,
                num_free_blocks=25,
                num_preemptions=7,
                prefix_cache_hits=40,
                swapped_out_blocks=5,
                spec_decode_num_accepted_tokens_per_pos=[9, 4],
                fairness_gap=12.5,
            )
        )
    )
    assert got["num_requests_running",] == 3
    assert got["num_requests_swapped",] == 2
    assert got["kv_cache_usage_perc",] == 0.75
    assert got["num_preemptions_total",] == 7
    assert got["prefix_cache_hits_total",] == 40
    assert got["swapped_out_blocks_total",] == 5
    assert got["fairness_gap",] == 12.5
    per_pos = "spec_decode_num_accepted_tokens_per_pos_total"
    assert [got[per_pos, position] for position in ("0", "1")] == [9, 4]


def test_before_the_first_word_all_is_zero() -> None:
    got = samples(EngineCollector(Stats()))
    assert got["request_queue_time_seconds_count",] == 0
    assert got["kv_cache_usage_perc",] == 0


def test_queue_times_are_cumulative() -> None:
    counts = [0] * (len(QUEUE_TIME_BUCKETS_S) + 1)
    counts[0], counts[2], counts[-1] = 4, 3, 1
    got = samples(EngineCollector(Stats(queue_time_counts=counts, queue_time_sum_s=9000.0)))
    name = "request_queue_time_seconds"
    assert [got[f"{name}_bucket", edge] for edge in ("0.005", "0.01", "0.025", "7680.0")] == [
        *(4, 4, 7, 7)
    ]
    assert got[f"{name}_bucket", "+Inf"] == got[f"{name}_count",] == 8
    assert got[f"{name}_sum",] == 9000.0


def test_tenants_have_a_label() -> None:
    tenant = Tenant(
        "acme",
        num_running=1,
        num_queued=2,
        queued_tokens=30,
        computed_tokens=10,
        cached_tokens=20,
        generation_tokens=5,
        preemptions_caused=1,
        num_admitted=4,
        queue_time_sum_s=0.5,
        num_drafts=7,
        num_draft_tokens=21,
        num_accepted_tokens=9,
        num_accepted_tokens_per_pos=[6, 2, 1],
    )
    got = samples(EngineCollector(Stats(tenants=[tenant, Tenant("others")])))
    assert got["tenant_requests_running", "acme"] == 1
    assert got["tenant_requests_queued", "acme"] == 2
    assert got["tenant_queued_tokens", "acme"] == 30
    assert [got["service_tokens_total", "acme", k] for k in ("computed", "cached")] == [10, 20]
    assert got["service_tokens_total", "acme", "generation"] == 5
    assert got["tenant_preemptions_total", "acme", "caused"] == 1
    assert got["tenant_queue_time_seconds_count", "acme"] == 4
    assert got["tenant_queue_time_seconds_sum", "acme"] == 0.5
    assert got["service_tokens_total", "others", "computed"] == 0
    assert got["tenant_spec_decode_num_drafts_total", "acme"] == 7
    assert got["tenant_spec_decode_num_draft_tokens_total", "acme"] == 21
    assert got["tenant_spec_decode_num_accepted_tokens_total", "acme"] == 9
    per_pos = "tenant_spec_decode_num_accepted_tokens_per_pos_total"
    assert [got[per_pos, "acme", place] for place in "012"] == [6, 2, 1]
    assert got["tenant_spec_decode_num_drafts_total", "others"] == 0


def test_latencies_are_a_histogram() -> None:
    latencies = Latencies("inter_token_latency_seconds", "help", (0.01, 0.1))
    latencies.observe(8.0, [7.995, 7.95, 7.95, 7.95])
    latencies.observe(9.0, [])
    latencies.observe(10.0, [3.0])
    got = samples(latencies)
    name = "inter_token_latency_seconds"
    assert [got[f"{name}_bucket", edge] for edge in ("0.01", "0.1", "+Inf")] == [1, 4, 5]
    assert got[f"{name}_sum",] == pytest.approx(7.155)


def test_the_real_engine_fills_them() -> None:
    runner = ModelledRunner(64)
    core = EngineCore(config(), runner, max_model_len=100, clock=lambda: runner.now)
    for i, tenant in enumerate(["one", "one", "two"]):
        core.add_request(
            GenerateRequest(
                request_id=str(i),
                prompt_token_ids=[i] * 40,
                params=SamplingParams(max_tokens=3),
                fair_key=tenant,
            )
        )
    queued = samples(EngineCollector(core.stats()))
    assert queued["tenant_requests_queued", "one"] == 2, "known before it was ever served"
    assert queued["num_queued_tokens",] == 120
    while core.has_unfinished:
        core.step()
    got = samples(EngineCollector(core.stats()))
    assert got["request_queue_time_seconds_count",] == 3
    assert got["generation_tokens_total",] == 9
    assert got["service_tokens_total", "one", "computed"] == 80
    assert got["tenant_queue_time_seconds_count", "two"] == 1
