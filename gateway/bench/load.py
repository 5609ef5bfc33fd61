"""Many streams at once, and the figures of what their clocks saw."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec
import psutil

from gateway.bench.stream import Sample, Stream
from gateway.commands.database import Address
from gateway.errors import ClientError

_NAMES = ("Ada", "Bo", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou")
_ANIMALS = ("fox", "owl", "cat", "bear", "duck", "frog", "horse", "mouse", "rabbit", "wolf")


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one number of concurrent streams."""

    concurrency: int
    requests: int
    errors: int
    duration_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    latency_p50_ms: float
    latency_p99_ms: float
    gap_p50_ms: float
    """From a chunk with text to the next one of its stream."""
    gap_p99_ms: float
    chunks_per_s: float
    cpu_us_per_chunk: float | None
    """CPU time of the server's process; None where it is not known."""


class Load:
    """Requests against one server."""

    def __init__(
        self,
        address: Address,
        model: str,
        *,
        max_tokens: int,
        replay_tokens_per_s: float | None = None,
        pid: int | None = None,
    ) -> None:
        """``replay_tokens_per_s``, ``pid``: as in ``Target``."""
        self._address = address
        self._model = model
        self._max_tokens = max_tokens
        parts = urlsplit(address.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        self._num_sent = 0
        # Streams that begin together would also burst together, at every token.
        self._answer_s = max_tokens / replay_tokens_per_s if replay_tokens_per_s else 0.0
        self._process = None if pid is None else psutil.Process(pid)

    async def level(self, concurrency: int, num_requests: int) -> Level:
        """Keep ``concurrency`` streams busy until ``num_requests`` have ended."""
        remaining = iter(range(num_requests))
        samples: list[Sample] = []
        begun, cpu_begun_s = time.perf_counter(), self._cpu_s()
        async with asyncio.TaskGroup() as group:
            for i in range(min(concurrency, num_requests)):
                delay_s = i / concurrency * self._answer_s
                group.create_task(self._worker(remaining, samples, delay_s))
        cpu_s = self._cpu_s() - cpu_begun_s
        return summarize(concurrency, samples, time.perf_counter() - begun, cpu_s)

    def _cpu_s(self) -> float:
        """CPU time of the server so far; NaN if its process is not known."""
        if self._process is None:
            return math.nan
        times = self._process.cpu_times()
        return times.user + times.system

    async def _worker(
        self, remaining: Iterator[int], samples: list[Sample], delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        stream = await self._connect()
        try:
            for _ in remaining:
                if stream.closed:
                    stream = await self._connect()
                samples.append(await stream.request(*self._next()))
        finally:
            stream.close()

    async def _connect(self) -> Stream:
        loop = asyncio.get_running_loop()
        try:
            _, stream = await loop.create_connection(
                Stream, self._host, self._port, ssl=self._tls or None
            )
        except OSError as exc:
            reason = exc.strerror or exc
            raise ClientError(f"{self._address.url} does not answer ({reason})") from None
        return stream

    def _next(self) -> tuple[bytes, bytes]:
        """Head and body of a request that no other one of this run equals for a long while."""
        number, self._num_sent = self._num_sent, self._num_sent + 1
        name, animal = _NAMES[number % len(_NAMES)], _ANIMALS[number % len(_ANIMALS)]
        content = f"Tell me a story about a {animal} named {name}. ({number})"
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self._max_tokens,
                "ignore_eos": True,  # every answer is as long as the others
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"Host: {self._host}:{self._port}\r\n"
            f"Authorization: Bearer {self._address.key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode(), body


def summarize(
    concurrency: int, samples: Sequence[Sample], duration_s: float, cpu_s: float = math.nan
) -> Level:
    """Figures over the requests that succeeded."""
    good = [sample for sample in samples if sample.error is None]
    ttft = [sample.ttft_s for sample in good if not math.isnan(sample.ttft_s)]
    total = [sample.total_s for sample in good]
    gaps = sorted(gap for sample in good for gap in sample.gaps_s)
    num_chunks = sum(sample.num_chunks for sample in good)
    return Level(
        concurrency=concurrency,
        requests=len(samples),
        errors=len(samples) - len(good),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        tokens_per_s=sum(sample.tokens for sample in good) / duration_s,
        ttft_p50_ms=1000 * percentile(ttft, 50),
        ttft_p99_ms=1000 * percentile(ttft, 99),
        latency_p50_ms=1000 * percentile(total, 50),
        latency_p99_ms=1000 * percentile(total, 99),
        gap_p50_ms=1000 * percentile(gaps, 50),
        gap_p99_ms=1000 * percentile(gaps, 99),
        chunks_per_s=num_chunks / duration_s,
        cpu_us_per_chunk=(
            1e6 * cpu_s / num_chunks if num_chunks and not math.isnan(cpu_s) else None
        ),
    )


def percentile(values: Sequence[float], rank: float) -> float:
    """The nearest-rank percentile: always a value that was measured; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(rank / 100 * len(ordered)) - 1)]
