"""Sends a generation as server-sent events (WHATWG HTML, section 9.2).

The generation is closed when its stream ends, for whatever reason: the answer is complete, it
failed, the client has left (``protocol`` drops clients that stop reading), or the server shuts down
(``lifecycle``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from gateway import context
from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.generation import Generation
from gateway.generation.reading import Sink
from gateway.generation.text_events import Around, Text, TextSink
from gateway.schemas.common import Usage
from gateway.streams.log import StreamReader
from gateway.streams.streams import Streams
from gateway.transport.disconnect import until_disconnect
from gateway.transport.outlet import Outlet

# sse-starlette would cut all streams at the first SIGTERM; ``lifecycle`` lets them end instead.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]

STREAM_ID_HEADER = "x-sluice-stream-id"
"""Tells the client the id of a resumable stream."""
_CONTENT_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")


class Chunks(Protocol):
    """Writes a stream's events: ``ChatChunks`` or ``TextChunks``."""

    @property
    def heartbeat(self) -> bytes: ...

    def opening(self) -> bytes: ...

    def delta(self, delta: Delta) -> bytes: ...

    def around_text(self, index: int) -> Around | None: ...

    def closing(self, usage: Usage) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


class EventResponse(EventSourceResponse, ABC):
    """Sends a body of whole events, and a heartbeat whenever nothing was sent for long.

    It replaces four parts of sse-starlette's response:

    - its loop, which formats a log record and opens a cancel scope for each chunk;
    - its ping, which is a comment (some SDKs fail on it), comes even while events are sent, and
      needs a task;
    - its task group, which leaves a hundred objects of each stream to the garbage collector;
    - its headers, which it converts from bytes to text and back.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        heartbeat_s: float,
        close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``heartbeat_s``: seconds of silence before a heartbeat. ``close`` is called when the
        response has ended, for whatever reason."""
        super().__init__(
            body,
            headers={"cache-control": "no-cache", **(headers or {})},
            ping=heartbeat_s,
            sep="\n",
        )
        self._body = body
        self._close = close
        self._outlet: Outlet[bytes]
        self._loop = asyncio.get_running_loop()
        self._heartbeat_s = heartbeat_s
        self._silence: asyncio.TimerHandle | None = None
        self._is_sending = False
        """Whether a chunk of the body waits for the client: what is made now must not overtake
        it."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        assert isinstance(headers, Headers)
        self.raw_headers = [*headers.raw, _CONTENT_TYPE]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = context.of(scope)
        self._outlet = Outlet(lambda chunk: known.send(_message(chunk)), known.write)
        try:
            if scope["method"] == "HEAD":  # answered with the headers alone
                await super().__call__(scope, receive, send)
            else:
                await until_disconnect(receive, self._stream_response(send), known.departure)
        except ClientDisconnect:
            pass
        finally:
            self._outlet.close()
            self._close()

    @property
    def is_free(self) -> bool:
        """As ``Sink.is_free``."""
        return self._outlet.is_free and not self._is_sending

    def _write(self, chunk: bytes) -> None:
        """Send a chunk without a task; only while ``is_free``."""
        self._outlet.put(chunk)
        self._outlet.put_at = self._loop.time()

    async def _stream_response(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        self._outlet.put_at = self._loop.time()
        self._watch()
        try:
            async with aclosing(self._body) as body:
                async for chunk in body:
                    self._is_sending = True
                    await self._outlet.send(chunk)
                    self._is_sending = False
                    self._outlet.put_at = self._loop.time()
        finally:
            assert self._silence is not None
            self._silence.cancel()
        await self._outlet.wait()  # A heartbeat may still be on its way.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch(self) -> None:
        """Send a heartbeat whenever nothing was sent for ``heartbeat_s``."""
        wait_s = self._outlet.put_at + self._heartbeat_s - self._loop.time()
        if wait_s <= 0:
            wait_s = self._heartbeat_s
            self._outlet.put_at = self._loop.time()
            self._beat()
        self._silence = self._loop.call_later(wait_s, self._watch)

    @abstractmethod
    def _beat(self) -> None:
        """Send a heartbeat."""


class EventStream(EventResponse):
    """Streams one generation, and closes it. It is the generation's ``Sink``."""

    def __init__(self, generation: Generation, chunks: Chunks, *, heartbeat_s: float) -> None:
        body = _body(generation, chunks, self)
        super().__init__(body, heartbeat_s=heartbeat_s, close=generation.close)
        self._chunks = chunks

    def put(self, delta: Delta) -> None:
        self._write(self._chunks.delta(delta))

    def text_sink(self, index: int) -> TextSink | None:
        around = self._chunks.around_text(index)
        return None if around is None else _TextSink(self._outlet, around)

    def _beat(self) -> None:
        if self.is_free:  # If not, the client still has something to read.
            self._write(self._chunks.heartbeat)


class _TextSink:
    """Sends content of one choice straight to the outlet, as events with the same head and tail."""

    __slots__ = ("_head", "_offer", "_tail")

    def __init__(self, outlet: Outlet[bytes], around: Around) -> None:
        self._offer = outlet.offer
        self._head, self._tail = around

    def put(self, text: Text, now: float) -> bool:
        offer = self._offer
        return offer(self._head + text + self._tail, now)


class FollowingEventStream(EventResponse):
    """Sends the events of a resumable stream, whose generation continues without this response."""

    def __init__(self, reader: StreamReader, *, heartbeat_s: float) -> None:
        super().__init__(
            _followed(reader),
            heartbeat_s=heartbeat_s,
            close=reader.close,
            headers={STREAM_ID_HEADER: reader.stream_id},
        )
        self._reader = reader
        self._beating: asyncio.Task[None] | None = None

    def _beat(self) -> None:
        """Write the heartbeat to the stream's log, which sends it: clients count it as an event."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._reader.beat(), name="heartbeat")

    async def _stream_response(self, send: Send) -> None:
        self._reader.divert(self._outlet.offer)
        try:
            await super()._stream_response(send)
        finally:
            if self._beating is not None:
                self._beating.cancel()


async def open_event_stream(
    streams: Streams, generation: Generation, chunks: Chunks, *, heartbeat_s: float
) -> FollowingEventStream:
    """As ``EventStream``, but resumable: ``streams`` owns the generation from here on."""
    stream_id = streams.new_id()
    sink = streams.sink(
        stream_id, lambda delta: _single(chunks.delta(delta)), _around_text(generation, chunks)
    )
    reader = await streams.open(
        stream_id,
        generation,
        _events(generation, chunks, sink),
        tenant_id=generation.admitted.principal.tenant.id,
        kind="sse",
        cut=chunks.error,
        heartbeat=lambda: chunks.heartbeat,
    )
    return FollowingEventStream(reader, heartbeat_s=heartbeat_s)


def _around_text(generation: Generation, chunks: Chunks) -> Around | None:
    """The head and tail of events with content alone; None if they differ from event to event."""
    return None if generation.num_choices > 1 else chunks.around_text(0)


def _message(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def _body(
    generation: Generation, chunks: Chunks, sink: Sink | None = None
) -> AsyncGenerator[bytes, None]:
    if opening := chunks.opening():
        yield opening
    try:
        async with aclosing(generation.deltas(sink)) as deltas:
            async for delta in deltas:
                if delta.finish_reason == "cancelled":
                    delta.finish_reason = "stop"  # the closest one that OpenAI's clients know
                yield chunks.delta(delta)
        yield chunks.closing(await generation.usage())
    except ApiError as exc:
        yield chunks.error(exc)


async def _events(
    generation: Generation, chunks: Chunks, sink: Sink
) -> AsyncGenerator[list[bytes], None]:
    async with aclosing(_body(generation, chunks, sink)) as body:
        async for some in body:
            yield _single(some)


def _single(events: bytes) -> list[bytes]:
    """Split at blank lines. Events contain no others, because JSON escapes line breaks."""
    return [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]


async def _followed(reader: StreamReader) -> AsyncGenerator[bytes, None]:
    try:
        async for events in reader:
            yield b"".join(events)
    except ApiError as exc:
        yield b"data: " + exc.body() + b"\n\n"
