"""Figures of what streams saw: arithmetic alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.failures import Failure, FailureCount
from gateway.bench.figures import percentile, summarize
from gateway.bench.process import SERVER, Window
from gateway.bench.stream import Reader, Sample


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(1, 100))
def test_a_percentile_is_a_measured_value_with_its_share_below(
    values: list[float], rank: float
) -> None:
    found = percentile(values, rank)
    assert found in values
    assert sum(value <= found for value in values) >= rank / 100 * len(values) - 1e-6
    assert sum(value < found for value in values) < rank / 100 * len(values) + 1e-6


def test_percentiles_of_nothing_and_of_one() -> None:
    assert math.isnan(percentile([], 50))
    assert percentile([3.0], 1) == percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0


def test_failed_requests_do_not_count_as_work() -> None:
    samples = [
        Sample(ttft_s=0.1, total_s=1.0, tokens=10),
        Sample(ttft_s=0.3, total_s=2.0, tokens=30),
        Sample(ttft_s=0.0, total_s=0.0, tokens=99, error=Failure("HTTP 503")),
    ]
    level = summarize(2, samples, Window(2.0, 4, {}))
    assert (level.requests, level.errors) == (3, 1)
    assert level.requests_per_s == 1.0
    assert level.tokens_per_s == 20.0
    assert level.ttft_p50_ms == pytest.approx(100)
    assert level.ttft_p99_ms == pytest.approx(300)
    assert level.latency_p99_ms == pytest.approx(2000)


def test_gaps_chunks_and_cpu_time() -> None:
    samples = [
        Sample(num_chunks=3, gaps_s=[0.05, 0.07]),
        Sample(num_chunks=2, gaps_s=[0.06]),
        Sample(num_chunks=100, gaps_s=[9.0], error=Failure("HTTP 503")),
    ]
    level = summarize(2, samples, Window(2.5, 5, {SERVER: 0.001, "engine": 0.003}))
    assert level.gap_p50_ms == pytest.approx(60)
    assert level.gap_p99_ms == pytest.approx(70)
    assert level.chunks_per_s == 2.0
    assert level.cpu_us_per_chunk == pytest.approx(200)
    assert level.cpu_us_by_process["engine"] == pytest.approx(600)
    assert level.cpu_us_range is None
    assert summarize(2, samples, Window(2.5, 5, {})).cpu_us_per_chunk is None
    assert summarize(2, [], Window(2.5, 0, {SERVER: 0.001})).cpu_us_per_chunk is None


def test_enough_windows_count_in_place_of_the_whole() -> None:
    whole = Window(100.0, 1000, {SERVER: 9.0})
    costs = (0.002, 0.001, 0.009)
    windows = [Window(2.0, 100, {SERVER: cost}) for cost in costs]
    level = summarize(1, [], whole, windows)
    assert level.cpu_us_per_chunk == pytest.approx(20)
    assert level.cpu_us_range is not None
    assert [*level.cpu_us_range] == pytest.approx([10, 90])
    assert level.chunks_per_s == 50
    assert level.duration_s == 100
    assert summarize(1, [], whole, windows[:2]).cpu_us_per_chunk == pytest.approx(9000)


def test_failures_are_counted_by_reason_the_most_frequent_first() -> None:
    errors = [Failure("cut short", "1"), Failure("HTTP 503", "2"), Failure("HTTP 503", "3")]
    level = summarize(1, [Sample(error=one) for one in errors], Window(1.0, 0, {}))
    assert level.errors == 3
    assert level.failures == [
        FailureCount("HTTP 503", 2, "2"),
        FailureCount("cut short", 1, "1"),
    ]


def test_times_are_of_those_who_read_all() -> None:
    samples = [
        Sample(ttft_s=0.1, total_s=1.0, tokens=3, num_chunks=3, gaps_s=[0.01, 0.01]),
        Sample(total_s=9.0, num_chunks=1, reader=Reader.STALLED),
        Sample(total_s=0.2, num_chunks=2, gaps_s=[5.0], reader=Reader.LEAVING),
        Sample(ttft_s=7.0, total_s=7.0, tokens=5, gaps_s=[7.0], is_warm_up=True),
    ]
    level = summarize(3, samples, Window(1.0, 6, {SERVER: 0.006}))
    assert level.latency_p99_ms == 1000
    assert level.ttft_p99_ms == pytest.approx(100)
    assert level.gap_p99_ms == 10
    assert level.requests == 4
    assert level.tokens_per_s == 8
    assert (level.aborts, level.abort_p50_ms, level.memory) == (0, None, None)
