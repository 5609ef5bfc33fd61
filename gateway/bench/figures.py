"""Summarizes the times of many streams in a few figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from gateway.bench.failures import FailureCount, by_reason
from gateway.bench.process import SERVER, Memory, Window
from gateway.bench.stream import Reader, Sample

MIN_WINDOWS = 3
"""With fewer windows, the whole time is used in place of their median."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The figures for one number of concurrent streams.

    Times are of requests that were read whole, and not among those that only set the streams apart
    in the beginning. What is said per chunk or second of chunks is the median over ``windows``,
    where there are enough of them, or else of the whole time.
    """

    concurrency: int
    requests: int
    errors: int
    failures: Sequence[FailureCount] = ()
    """The errors by reason."""
    duration_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    latency_p50_ms: float
    latency_p99_ms: float
    gap_p50_ms: float
    """Time from a chunk with text to the next one of its stream."""
    gap_p99_ms: float
    chunks_per_s: float
    cpu_us_per_chunk: float | None
    """CPU time of the server's processes for each chunk, with all their work; None if unknown."""
    cpu_us_by_process: Mapping[str, float] = {}
    """CPU time for each chunk, by name, of all processes that are known: the server's, those that
    work for it, and this benchmark's."""
    windows: Sequence[Window] = ()
    """While all streams ran."""
    aborts: int = 0
    """Streams whose readers left, where the engine says when it heard of it."""
    abort_p50_ms: float | None = None
    """The time from the closing of the client's connection to the abort in the engine."""
    abort_p99_ms: float | None = None
    memory: Memory | None = None

    @property
    def cpu_us_range(self) -> tuple[float, float] | None:
        """The server's least and most in any window."""
        found = [one for window in self.windows if (one := window.cpu_us_per_chunk.get(SERVER))]
        return (min(found), max(found)) if found else None


def summarize(
    concurrency: int, samples: Sequence[Sample], whole: Window, windows: Sequence[Window] = ()
) -> Level:
    """``whole``: from the first request to the end of the last one."""
    good = [sample for sample in samples if sample.error is None]
    told = [one for one in good if one.reader is Reader.WHOLE and not one.is_warm_up]
    ttft = [sample.ttft_s for sample in told if not math.isnan(sample.ttft_s)]
    total = [sample.total_s for sample in told]
    gaps = sorted(gap for sample in told for gap in sample.gaps_s)
    measured = windows if len(windows) >= MIN_WINDOWS else [whole]
    cpu_us = _medians([window.cpu_us_per_chunk for window in measured if window.num_chunks])
    return Level(
        concurrency=concurrency,
        requests=len(samples),
        errors=len(samples) - len(good),
        failures=by_reason(one.error for one in samples if one.error is not None),
        duration_s=whole.duration_s,
        requests_per_s=len(good) / whole.duration_s,
        tokens_per_s=sum(sample.tokens for sample in good) / whole.duration_s,
        ttft_p50_ms=1000 * percentile(ttft, 50),
        ttft_p99_ms=1000 * percentile(ttft, 99),
        latency_p50_ms=1000 * percentile(total, 50),
        latency_p99_ms=1000 * percentile(total, 99),
        gap_p50_ms=1000 * percentile(gaps, 50),
        gap_p99_ms=1000 * percentile(gaps, 99),
        chunks_per_s=median([window.num_chunks / window.duration_s for window in measured]),
        cpu_us_per_chunk=cpu_us.get(SERVER),
        cpu_us_by_process=cpu_us,
        windows=windows,
    )


def _medians(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median for each name."""
    return {name: median([one[name] for one in costs]) for name in (costs[0] if costs else ())}


def percentile(values: Sequence[float], rank: float) -> float:
    """The nearest-rank percentile: always a value that was measured; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)]
