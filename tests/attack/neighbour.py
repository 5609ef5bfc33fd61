"""A well-behaved client beside an attack: what does it feel of it?

It runs in a process of its own, so that the attacker's Python does not slow it. It keeps a few
streams going, one request after the other on each connection, and notes the time to the first
token and each gap between chunks with text. A timer in the same process measures how late the
machine itself wakes a process that has nothing to do: what a busy machine adds to everyone's gaps
is not held against the server.

    async with Neighbour(deployment, key) as neighbour:
        calm = await neighbour.watch_for(5)
        async with neighbour.watch() as attacked:
            ...
        attacked.assert_unharmed(calm)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from gateway.bench.figures import percentile
from gateway.bench.stream import HttpStream, Prompt, ResponsesStream, Stream
from gateway.bench.websocket import SocketStream
from gateway.commands.database import Address

if TYPE_CHECKING:  # a neighbour's own process starts in half the time without it
    from tests.attack.serving import Deployment

ROOT = Path(__file__).parents[2]
MAX_GAP_S = 0.25
"""The longest gap of a neighbour under attack, on a machine that is otherwise idle."""
ENOUGH = 40
"""Gaps without which a watch says nothing."""
TICK_S = 0.01
RETRY_S = 0.1

Api = Literal["chat", "responses", "websocket"]
_STREAMS: dict[Api, type[Stream]] = {
    "chat": HttpStream,
    "responses": ResponsesStream,
    "websocket": SocketStream,
}


class Watch(msgspec.Struct):
    """What a neighbour felt for a while. Times in seconds."""

    gaps_s: list[float] = []
    """Times between chunks with text that ended meanwhile; at the end also those that still last,
    from the last chunk until then."""
    ttfts_s: list[float] = []
    """Times to the first token; at the end also of those who still wait, until then."""
    lags_s: list[float] = []
    """How late a timer in the same process ran."""
    errors: list[str] = []
    """Of requests that failed, and connections that could not be made."""

    def assert_unharmed(
        self, calm: Watch, *, times: float = 2.0, max_s: float = MAX_GAP_S, ttft_times: float = 0.0
    ) -> None:
        """Compare with the calm before: the 99th percentile of the gaps is at most ``times`` as
        long, none is longer than ``max_s``, no request failed. ``ttft_times``: the bound for the
        99th percentile of the times to the first token, if they are compared, too."""
        told = f"under attack {self}, calm {calm}"
        assert not self.errors, told
        assert min(len(self.gaps_s), len(calm.gaps_s)) >= ENOUGH, told
        slack_p99_s = self._slack_s(calm, 99)
        assert percentile(self.gaps_s, 99) <= times * percentile(calm.gaps_s, 99) + slack_p99_s, (
            told
        )
        assert max(self.gaps_s) <= max(max_s, max(calm.gaps_s)) + self._slack_s(calm, 100), told
        if ttft_times:
            self.assert_first_tokens(calm, times=ttft_times)

    def assert_first_tokens(self, calm: Watch, *, times: float) -> None:
        """No request failed, and the 99th percentile of the times to the first token is at most
        ``times`` as long as in the calm. Gaps are not compared: who floods the engine itself makes
        its batches larger, and so everybody's steps longer."""
        told = f"under attack {self}, calm {calm}"
        assert not self.errors, told
        assert min(len(self.ttfts_s), len(calm.ttfts_s)) > 0, told
        bound = times * percentile(calm.ttfts_s, 99) + self._slack_s(calm, 99)
        assert percentile(self.ttfts_s, 99) <= bound, told

    def _slack_s(self, calm: Watch, rank: float) -> float:
        """What the machine adds to a chunk's way through three processes: engine, worker, client.
        In the calm, that is part of the gaps themselves."""
        return 3 * max(0.0, percentile(self.lags_s, rank) - percentile(calm.lags_s, rank))

    def __str__(self) -> str:
        def figures(values: list[float]) -> str:
            ranks = "/".join(f"{1000 * percentile(values, rank):.0f}" for rank in (50, 99, 100))
            return f"{len(values)}: {ranks} ms"

        return (
            f"(p50/p99/max of gaps {figures(self.gaps_s)}, to the first token "
            f"{figures(self.ttfts_s)}, of the machine {figures(self.lags_s)}, "
            f"{len(self.errors)} errors {self.errors[:3]})"
        )


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """What a neighbour does."""

    url: str
    model: str
    key: str
    api: Api = "chat"
    num_streams: int = 8
    """As each has its own connection, the kernel spreads them over the workers."""
    max_tokens: int = 40
    pause_s: float = 0.0
    """Between the end of an answer and the next request."""
    fields: dict[str, Any] = {}
    """More fields of each request of ``chat``."""


class Neighbour:
    """Use it as an asynchronous context manager; its streams run when the block begins."""

    def __init__(
        self,
        deployment: Deployment,
        key: str,
        *,
        api: Api = "chat",
        num_streams: int = 8,
        max_tokens: int = 40,
        pause_s: float = 0.0,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._manner = Manner(
            url=deployment.url,
            model=deployment.model,
            key=key,
            api=api,
            num_streams=num_streams,
            max_tokens=max_tokens,
            pause_s=pause_s,
            fields=dict(fields or {}),
        )
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Neighbour:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.attack.neighbour"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            limit=64 * 2**20,
        )
        try:
            await self._ask(msgspec.json.encode(self._manner))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()  # its end is the client's
        try:
            async with asyncio.timeout(30):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def give_way(self) -> None:
        """Leave the cores to the server, as a client on a machine of its own does."""
        assert self._process is not None
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """The watch is filled when the block ends."""
        watch = Watch()
        await self._felt()
        yield watch
        felt = await self._felt()
        for name in Watch.__struct_fields__:
            setattr(watch, name, getattr(felt, name))

    async def watch_for(self, seconds: float) -> Watch:
        async with self.watch() as watch:
            await asyncio.sleep(seconds)
        return watch

    async def _felt(self) -> Watch:
        """Since the last call."""
        return msgspec.json.decode(await self._ask(b"felt"), type=Watch)

    async def _ask(self, line: bytes) -> bytes:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + b"\n")
        async with asyncio.timeout(60):
            answer = await self._process.stdout.readline()
        assert answer, "the neighbour's process has ended"
        return answer


# -- in the process of its own


class _Client:
    """One connection at a time, and one request at a time."""

    def __init__(self, manner: Manner, felt: _Felt) -> None:
        self._manner, self._felt = manner, felt
        self._stream: Stream | None = None
        self.waits_since: float | None = None
        """When the request was sent whose first token has not come yet."""
        self.last_chunk_at: float | None = None
        """In mid-answer."""
        self.has_had_text = False

    @property
    def fields(self) -> dict[str, Any]:
        return self._manner.fields

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        number = 0
        while True:
            try:
                if self._stream is None or self._stream.closed:
                    self._stream = await self._connect()
                await self._request(self._stream, number)
                number += 1
                await asyncio.sleep(self._manner.pause_s)
            except OSError as error:
                self._felt.watch.errors.append(repr(error))
                await asyncio.sleep(RETRY_S)

    async def _request(self, stream: Stream, number: int) -> None:
        content = f"Tell me a story about a fox. ({os.getpid()} {number})"
        prompt = Prompt(
            model=self._manner.model, content=content, max_tokens=self._manner.max_tokens
        )
        self.waits_since, self.last_chunk_at = time.perf_counter(), None
        sample = await stream.request(prompt)
        self.waits_since = self.last_chunk_at = None
        if sample.error is not None:
            self._felt.watch.errors.append(str(sample.error))
            await asyncio.sleep(RETRY_S)

    def on_text(self) -> None:
        now = time.perf_counter()
        if self.last_chunk_at is not None:
            self._felt.watch.gaps_s.append(now - self.last_chunk_at)
        elif self.waits_since is not None:
            self._felt.watch.ttfts_s.append(now - self.waits_since)
        self.waits_since, self.last_chunk_at, self.has_had_text = None, now, True

    async def _connect(self) -> Stream:
        client, kind = self, _STREAMS[self._manner.api]

        class Felt(kind):  # type: ignore[valid-type,misc]
            def _on_text(self) -> None:
                super()._on_text()
                client.on_text()

            def _body(self, prompt: Prompt) -> dict[str, object]:
                body: dict[str, object] = super()._body(prompt)
                return body | client.fields

        parts = urlsplit(self._manner.url)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(
            lambda: Felt(Address(self._manner.url, self._manner.key)),
            parts.hostname or "",
            parts.port or 0,
            family=socket.AF_INET,
        )
        stream = cast(Stream, protocol)
        await stream.open()
        return stream


class _Felt:
    """All that the streams of one neighbour feel."""

    def __init__(self, manner: Manner) -> None:
        self.watch = Watch()
        self._clients = [_Client(manner, self) for _ in range(manner.num_streams)]
        self._manner = manner

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            for number, client in enumerate(self._clients):
                group.create_task(client.run(number / len(self._clients)))

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.watch.lags_s.append(max(0.0, time.perf_counter() - due))

    async def all_stream(self) -> None:
        """Return when each stream has had text, so that a watch begins in the middle of things."""
        while not all(client.has_had_text for client in self._clients):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)

    def take(self) -> Watch:
        """What was felt since the last call, with what still lasts."""
        watch, self.watch = self.watch, Watch()
        now = time.perf_counter()
        for client in self._clients:
            if client.last_chunk_at is not None:
                watch.gaps_s.append(now - client.last_chunk_at)
            elif client.waits_since is not None:
                watch.ttfts_s.append(now - client.waits_since)
        return watch


async def main() -> None:
    """One line of the manner, answered when all streams run; then a watch for each further line,
    until stdin ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    felt = _Felt(msgspec.json.decode(await reader.readline(), type=Manner))
    running = asyncio.create_task(felt.run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            await felt.all_stream()
    _say(json.dumps("ready").encode())
    while await reader.readline():
        _say(msgspec.json.encode(felt.take()))
        if running.done():
            running.result()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(main())
