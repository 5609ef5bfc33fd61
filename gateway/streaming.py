"""A generation as server-sent events.

Whatever ends a stream, the generation is closed: its end, an error, the client's leaving (one that
stops reading is dropped by ``protocol``), the server's shutdown. These race in the task group of
sse-starlette's ``EventSourceResponse``; the first to end cancels the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from gateway.assembler import Delta
from gateway.errors import ApiError
from gateway.generation import Generation
from gateway.schemas.common import Usage

# The library would cut all streams at the first SIGTERM; ``lifecycle`` lets them end instead.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class Chunks(Protocol):
    """Writes a stream's events: ``assembler.ChatChunks`` or ``text_completion.TextChunks``."""

    @property
    def heartbeat(self) -> bytes: ...

    def opening(self) -> bytes: ...

    def delta(self, delta: Delta) -> bytes: ...

    def closing(self, usage: Usage) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


class EventStream(EventSourceResponse):
    """Streams one generation, and closes it.

    Two inner steps of the library are replaced, both for the cost of a chunk: its loop (which
    formats a log record and opens a cancel scope for each chunk) and its ping (a comment, which
    SDKs cannot read; and it comes also while the stream flows).
    """

    def __init__(self, generation: Generation, chunks: Chunks, *, heartbeat_s: float) -> None:
        self._chunks = _body(generation, chunks)
        super().__init__(
            self._chunks, headers={"cache-control": "no-cache"}, ping=heartbeat_s, sep="\n"
        )
        self._generation = generation
        self._heartbeat: Message = {
            "type": "http.response.body",
            "body": chunks.heartbeat,
            "more_body": True,
        }
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()

    async def _stream_response(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._sent_at = loop.time()
        async with self._send_lock:
            self.active = False
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        """A heartbeat whenever nothing was sent for so long."""
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        while self.active:
            wait_s = self._sent_at + self._ping_interval - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            async with self._send_lock:
                if self.active:
                    await send(self._heartbeat)
                    self._sent_at = loop.time()


async def _body(generation: Generation, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    if opening := chunks.opening():
        yield opening
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                yield chunks.delta(delta)
        yield chunks.closing(await generation.usage())
    except ApiError as exc:
        yield chunks.error(exc)
