"""Many streams at once, and the figures of what their clocks saw."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from gateway.bench.aborts import Aborts
from gateway.bench.process import Memory, Processes
from gateway.bench.stream import HttpStream, Prompt, Reader, ResponsesStream, Sample, Stream
from gateway.bench.websocket import SocketStream
from gateway.commands.database import Address
from gateway.errors import ClientError

STALL_S = 120.0
"""Longer than a server should wait for a reader."""
SMALL_BUFFER = 4096
"""Bytes that the system keeps for a reader that stalls: its server's turn to hold back comes soon.
"""
_NAMES = ("Ada", "Bo", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou")
_ANIMALS = ("fox", "owl", "cat", "bear", "duck", "frog", "horse", "mouse", "rabbit", "wolf")


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one number of concurrent streams. Of those read whole, but for the aborts."""

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
    """CPU time of the server's processes, all that they did included; None if unknown."""
    aborts: int = 0
    """Streams whose readers left, where the engine says when it heard of it."""
    abort_p50_ms: float | None = None
    """From the close of the client's connection."""
    abort_p99_ms: float | None = None
    memory: Memory | None = None


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients do."""

    max_tokens: int
    replay_tokens_per_s: float | None = None
    """As in ``Target``."""
    uses_websocket: bool = False
    uses_responses: bool = False
    """Asks ``/v1/responses``, not ``/v1/chat/completions``."""
    resumable: bool = False
    """Streams are logged, to be read on after a broken connection."""
    stalled: float = 0.0
    """Share of the streams whose readers stall."""
    leaving: float = 0.0
    """Share of the requests whose readers leave."""


class Load:
    """Requests against one server."""

    def __init__(
        self,
        address: Address,
        model: str,
        manner: Manner,
        *,
        pids: Sequence[int] = (),
        aborts: Aborts | None = None,
    ) -> None:
        """``pids``: the server's processes. ``aborts``: what its engine notes."""
        self._address = address
        self._model = model
        self._manner = manner
        parts = urlsplit(address.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        self._num_sent = 0
        self._ends_at = math.inf
        # Streams that begin together would also burst together, at every token.
        pace = manner.replay_tokens_per_s
        self._answer_s = manner.max_tokens / pace if pace else 0.0
        self._processes = Processes(pids)
        self._aborts = aborts

    async def level(
        self, concurrency: int, num_requests: int, *, duration_s: float | None = None
    ) -> Level:
        """Keep ``concurrency`` streams busy until ``num_requests`` have ended, or for so long."""
        remaining: Iterator[int] = iter(range(num_requests))
        if duration_s is not None:
            self._ends_at = time.monotonic() + duration_s
            remaining = itertools.takewhile(
                lambda _: time.monotonic() < self._ends_at, itertools.count()
            )
        samples: list[Sample] = []
        begun, cpu_begun_s = time.perf_counter(), self._processes.cpu_s()
        watching = asyncio.create_task(self._processes.watch())
        try:
            async with asyncio.TaskGroup() as group:
                num_streams = concurrency if duration_s else min(concurrency, num_requests)
                for i in range(num_streams):
                    delay_s = i / concurrency * self._answer_s
                    stalls = duration_s is not None and _is_one_of(i, self._manner.stalled)
                    group.create_task(self._worker(remaining, samples, delay_s, stalls=stalls))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        cpu_s = self._processes.cpu_s() - cpu_begun_s
        found = summarize(concurrency, samples, time.perf_counter() - begun, cpu_s)
        return msgspec.structs.replace(
            found, memory=self._processes.memory(), **self._abort_figures(samples)
        )

    def _abort_figures(self, samples: Sequence[Sample]) -> dict[str, float]:
        latencies_s = [] if self._aborts is None else self._aborts.latencies_s(samples)
        if not latencies_s:
            return {}
        return {
            "aborts": len(latencies_s),
            "abort_p50_ms": 1000 * percentile(latencies_s, 50),
            "abort_p99_ms": 1000 * percentile(latencies_s, 99),
        }

    async def _worker(
        self, remaining: Iterator[int], samples: list[Sample], delay_s: float, *, stalls: bool
    ) -> None:
        await asyncio.sleep(delay_s)
        stream = await self._connect(stalls=stalls)
        try:
            for _ in remaining:
                if stream.closed:
                    stream = await self._connect(stalls=stalls)
                samples.append(await stream.request(self._next(stalls=stalls)))
        finally:
            stream.close()

    async def _connect(self, *, stalls: bool = False) -> Stream:
        loop = asyncio.get_running_loop()
        make: Callable[[Address], Stream] = HttpStream
        if self._manner.uses_websocket:
            make = SocketStream
        elif self._manner.uses_responses:
            make = ResponsesStream
        try:
            where = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            family, kind, proto, _, place = where[0]
            connection = socket.socket(family, kind, proto)
            try:
                connection.setblocking(False)
                if stalls:  # before it connects: the window is agreed on then
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
                await loop.sock_connect(connection, place)
            except BaseException:
                connection.close()
                raise
            _, stream = await loop.create_connection(
                lambda: make(self._address),
                sock=connection,
                ssl=self._tls or None,
                server_hostname=self._host if self._tls else None,
            )
            await stream.open()
        except OSError as exc:
            reason = exc.strerror or exc
            raise ClientError(f"{self._address.url} does not answer ({reason})") from None
        return stream

    def _next(self, *, stalls: bool) -> Prompt:
        """One that no other one of this run equals for a long while."""
        number, self._num_sent = self._num_sent, self._num_sent + 1
        name, animal = _NAMES[number % len(_NAMES)], _ANIMALS[number % len(_ANIMALS)]
        max_tokens, reader = self._manner.max_tokens, Reader.WHOLE
        if stalls:
            reader = Reader.STALLED
        elif _is_one_of(number, self._manner.leaving):
            reader = Reader.LEAVING
        return Prompt(
            model=self._model,
            content=f"Tell me a story about a {animal} named {name}. ({number})",
            max_tokens=max_tokens,
            resumable=self._manner.resumable,
            reader=reader,
            stall_s=max(0.0, min(STALL_S, self._ends_at - time.monotonic())),
            leave_after=1 + number % max(1, max_tokens // 2),
        )


def _is_one_of(number: int, share: float) -> bool:
    """Whether the ``number``-th is among that ``share`` of all, evenly spread."""
    return math.floor((number + 1) * share) > math.floor(number * share)


def summarize(
    concurrency: int, samples: Sequence[Sample], duration_s: float, cpu_s: float = math.nan
) -> Level:
    """Figures over the requests that succeeded."""
    good = [sample for sample in samples if sample.error is None]
    whole = [sample for sample in good if sample.reader is Reader.WHOLE]
    ttft = [sample.ttft_s for sample in whole if not math.isnan(sample.ttft_s)]
    total = [sample.total_s for sample in whole]
    gaps = sorted(gap for sample in whole for gap in sample.gaps_s)
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
