"""Runs many streams at once, and measures them.

Streams that begin together would get their tokens together, and end together. If the engine's rate
is known, each stream's first answer has another length, so that they end one after the other from
then on. So the load is the same at all times, and can be measured in windows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from gateway.bench.aborts import Aborts
from gateway.bench.failures import Failure
from gateway.bench.figures import Level, percentile, summarize
from gateway.bench.large_bodies import LargeBodies
from gateway.bench.process import NO_OTHERS, Processes, between
from gateway.bench.stream import (
    HttpStream,
    Prompt,
    Reader,
    ResponsesStream,
    Sample,
    Stream,
    Tally,
)
from gateway.bench.websocket import SocketStream
from gateway.commands.database import Address

STALL_S = 120.0
"""Longer than a server should wait for a reader."""
SMALL_BUFFER = 4096
"""The receive buffer of a stalled reader in bytes: small, so that the server must soon wait."""
STARTS_PER_S = 250.0
"""Streams that begin in a second, if they begin one after the other."""
RETRY_S = 0.2
"""Time between two attempts to connect to a server that has stopped answering."""
WARM_UP_TOKENS = 32
THIS = "benchmark"
"""The name of this process among those that are watched."""
_NAMES = ("Ada", "Bo", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou")
_ANIMALS = ("fox", "owl", "cat", "bear", "duck", "frog", "horse", "mouse", "rabbit", "wolf")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients do."""

    max_tokens: int
    replay_tokens_per_s: float | None = None
    """As in ``Target``."""
    uses_websocket: bool = False
    uses_responses: bool = False
    """Whether to use ``/v1/responses`` in place of ``/v1/chat/completions``."""
    resumable: bool = False
    """Whether streams are resumable."""
    stalled: float = 0.0
    """The share of the streams whose readers stall."""
    leaving: float = 0.0
    """The share of the requests whose readers leave."""
    large_bodies: float = 0.0
    """The number of bodies of the largest size that are sent in a second beside the streams."""


class Load:
    """Requests against one server."""

    def __init__(
        self,
        address: Address,
        model: str,
        workload: Workload,
        *,
        pids: Sequence[int] = (),
        others: Mapping[str, int] = NO_OTHERS,
        aborts: Aborts | None = None,
    ) -> None:
        """``pids``: the server's processes. ``others``: as for ``Processes``. ``aborts``: those
        that its engine records."""
        self._address = address
        self._model = model
        self._workload = workload
        parts = urlsplit(address.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        self._num_sent = 0
        self._ends_at = math.inf
        pace = workload.replay_tokens_per_s
        self._answer_s = workload.max_tokens / pace if pace else 0.0
        self._processes = Processes(pids, {**others, THIS: os.getpid()})
        self._aborts = aborts
        self._tally = Tally()
        self._steady_until = math.inf

    def ramp_s(self, concurrency: int) -> float:
        """The time until ``concurrency`` streams run."""
        return min(self._answer_s, concurrency / STARTS_PER_S)

    def cycle_s(self, concurrency: int) -> float:
        """The time until each of ``concurrency`` streams has begun and ended once."""
        return self.ramp_s(concurrency) + self._answer_s

    async def level(
        self,
        concurrency: int,
        num_requests: int,
        *,
        duration_s: float | None = None,
        is_cut: bool = False,
    ) -> Level:
        """Keep ``concurrency`` streams busy until ``num_requests`` have ended, or for so long;
        those which only set the streams apart come first, and are not among ``num_requests``.

        ``is_cut``: what still runs after ``duration_s`` is left, and not waited for.
        """
        remaining: Iterator[int] = iter(range(num_requests))
        if duration_s is not None:
            self._ends_at = time.monotonic() + duration_s
            remaining = itertools.takewhile(
                lambda _: time.monotonic() < self._ends_at, itertools.count()
            )
        samples: list[Sample] = []
        self._steady_until = self._ends_at
        steady_from = time.monotonic() + self.ramp_s(concurrency)
        before = self._processes.read(self._tally.num_chunks)
        watching = asyncio.create_task(self._processes.watch(lambda: self._tally.num_chunks))
        try:
            async with (
                asyncio.timeout(duration_s if is_cut else None),
                self._large_bodies(),
                asyncio.TaskGroup() as group,
            ):
                num_streams = concurrency if duration_s else min(concurrency, num_requests)
                for i in range(num_streams):
                    phase = i / num_streams
                    group.create_task(
                        self._worker(
                            phase * self.ramp_s(num_streams),
                            self._first_tokens(phase),
                            remaining,
                            samples,
                            stalls=duration_s is not None and _is_one_of(i, self._workload.stalled),
                        )
                    )
        except TimeoutError:
            assert is_cut
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        whole = between(before, self._processes.read(self._tally.num_chunks))
        windows = self._processes.windows(steady_from, self._steady_until)
        return msgspec.structs.replace(
            summarize(concurrency, samples, whole, windows),
            memory=self._processes.memory(),
            **self._abort_figures(samples),
        )

    @contextlib.asynccontextmanager
    async def _large_bodies(self) -> AsyncIterator[None]:
        if not self._workload.large_bodies:
            yield
            return
        bodies = LargeBodies(self._address, self._model, self._workload.large_bodies)
        sending = asyncio.create_task(bodies.run())
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.result()  # it failed

    async def warm_up(self, num_requests: int) -> None:
        """Send some short requests at once, which are not measured."""
        short = min(self._workload.max_tokens, WARM_UP_TOKENS)
        nothing: list[Sample] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(num_requests):
                group.create_task(self._worker(0.0, short, iter(()), nothing, stalls=False))

    def _first_tokens(self, phase: float) -> int | None:
        """The length of a stream's first answer, chosen so that streams do not end together.
        ``phase``: the stream's place among all, from 0 to 1."""
        return math.ceil((1 - phase) * self._workload.max_tokens) if self._answer_s else None

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
        self,
        delay_s: float,
        first_tokens: int | None,
        remaining: Iterator[int],
        samples: list[Sample],
        *,
        stalls: bool,
    ) -> None:
        """Run one stream after the other. ``first_tokens``: the length of an answer before those of
        ``remaining``."""
        await asyncio.sleep(delay_s)
        stream: Stream | None = None
        try:
            for prompt in self._prompts(first_tokens, remaining, stalls=stalls):
                try:
                    if stream is None or stream.closed:
                        stream = await self._connect(stalls=stalls)
                except OSError as exc:
                    failure = Failure("no connection", str(exc.strerror or exc))
                    samples.append(Sample(error=failure))
                    await asyncio.sleep(RETRY_S)
                else:
                    samples.append(await stream.request(prompt))
            self._steady_until = min(self._steady_until, time.monotonic())
        finally:
            if stream is not None:
                stream.close()

    def _prompts(
        self, first_tokens: int | None, remaining: Iterator[int], *, stalls: bool
    ) -> Iterator[Prompt]:
        if first_tokens is not None:
            first = self._next(stalls=stalls)
            yield msgspec.structs.replace(first, max_tokens=first_tokens, is_warm_up=True)
        for _ in remaining:
            yield self._next(stalls=stalls)

    async def _connect(self, *, stalls: bool = False) -> Stream:
        """Open a stream's connection. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        make: Callable[[Address], Stream] = HttpStream
        if self._workload.uses_websocket:
            make = SocketStream
        elif self._workload.uses_responses:
            make = ResponsesStream
        where = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, kind, proto, _, place = where[0]
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(socket.socket(family, kind, proto))
            connection.setblocking(False)
            if stalls:  # before it connects, which is when the TCP window is negotiated
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            await loop.sock_connect(connection, place)
            undo.pop_all()
        _, stream = await loop.create_connection(
            lambda: make(self._address),
            sock=connection,
            ssl=self._tls or None,
            server_hostname=self._host if self._tls else None,
        )
        stream.tally = self._tally
        await stream.open()
        return stream

    def _next(self, *, stalls: bool) -> Prompt:
        """A prompt that does not repeat for a long time."""
        number, self._num_sent = self._num_sent, self._num_sent + 1
        name, animal = _NAMES[number % len(_NAMES)], _ANIMALS[number % len(_ANIMALS)]
        max_tokens, reader = self._workload.max_tokens, Reader.WHOLE
        if stalls:
            reader = Reader.STALLED
        elif _is_one_of(number, self._workload.leaving):
            reader = Reader.LEAVING
        return Prompt(
            model=self._model,
            content=f"Tell me a story about a {animal} named {name}. ({number})",
            max_tokens=max_tokens,
            resumable=self._workload.resumable,
            reader=reader,
            stall_s=max(0.0, min(STALL_S, self._ends_at - time.monotonic())),
            leave_after=1 + number % max(1, max_tokens // 2),
        )


def _is_one_of(number: int, share: float) -> bool:
    """Whether the ``number``-th of all belongs to an evenly spread ``share`` of them."""
    return math.floor((number + 1) * share) > math.floor(number * share)
