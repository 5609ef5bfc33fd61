"""The client's end of one stream: cheap, because it shares the machine with the server.

httptools for HTTP, msgspec for the chunks, one connection for each stream.
"""

from __future__ import annotations

import asyncio
import math
import time

import httptools
import msgspec

REQUEST_TIMEOUT_S = 300.0


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta


class Usage(msgspec.Struct, frozen=True):
    completion_tokens: int


class ErrorMessage(msgspec.Struct, frozen=True):
    message: str


class Chunk(msgspec.Struct, frozen=True):
    """As much of a chunk as is measured."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorMessage | None = None


class Sample(msgspec.Struct):
    """One request. Times in seconds since it was sent."""

    ttft_s: float = math.nan
    total_s: float = math.nan
    tokens: int = 0
    num_chunks: int = 0
    """Chunks with text."""
    gaps_s: list[float] = []
    """From each of them to the next."""
    error: str | None = None


class Stream(asyncio.Protocol):
    """One keep-alive connection that sends one request at a time and times its events."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Chunk)
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._buffer = b""
        self._sample = Sample()
        self._sent_at = self._chunk_at = 0.0
        self._finished: asyncio.Future[None] | None = None

    async def request(self, head: bytes, body: bytes) -> Sample:
        """Send one request; its sample when the response has ended."""
        assert self._transport is not None
        self._sample, self._buffer = Sample(), b""
        self._parser = httptools.HttpResponseParser(self)
        self._finished = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(head + body)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._finished
        except TimeoutError:
            self._sample.error = f"no end after {REQUEST_TIMEOUT_S:g} s"
            self._transport.abort()
        self._sample.total_s = time.perf_counter() - self._sent_at
        return self._sample

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._finished is not None and not self._finished.done():
            self._sample.error = self._sample.error or "the connection was closed"
            self._finished.set_result(None)

    # -- httptools

    def on_body(self, body: bytes) -> None:
        *events, self._buffer = (self._buffer + body).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    self._on_chunk(self._decoder.decode(line[6:]))

    def on_message_complete(self) -> None:
        assert self._parser is not None
        assert self._finished is not None
        status = self._parser.get_status_code()
        if status != 200:
            self._sample.error = f"HTTP {status}: {self._buffer.decode(errors='replace')[:200]}"
        if not self._finished.done():
            self._finished.set_result(None)

    def _on_chunk(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._sample.error = chunk.error.message
        if chunk.usage is not None:
            self._sample.tokens = chunk.usage.completion_tokens
        if not (chunk.choices and chunk.choices[0].delta.content):
            return
        now = time.perf_counter()
        if self._sample.num_chunks == 0:
            self._sample.ttft_s = now - self._sent_at
        else:
            self._sample.gaps_s.append(now - self._chunk_at)
        self._sample.num_chunks += 1
        self._chunk_at = now
