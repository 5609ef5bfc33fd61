"""A generation as server-sent events.

Whatever ends a stream, the generation is closed: its end, an error, the client's leaving (one that
stops reading is dropped by ``protocol``), or the server (``lifecycle``), which ends the generation.
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
from gateway.assembler import Delta
from gateway.disconnect import until_disconnect
from gateway.errors import ApiError
from gateway.generation import Generation
from gateway.outlet import Outlet
from gateway.reading import Sink
from gateway.schemas.common import Usage
from gateway.stream_log import StreamReader
from gateway.streams import Streams
from gateway.text_events import Around, Text, TextSink

# The library would cut all streams at the first SIGTERM; ``lifecycle`` lets them end instead.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]

STREAM_ID_HEADER = "x-sluice-stream-id"
"""Names a resumable stream to its client."""
_CONTENT_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")


class Chunks(Protocol):
    """Writes a stream's events: ``assembler.ChatChunks`` or ``text_completion.TextChunks``."""

    @property
    def heartbeat(self) -> bytes: ...

    def opening(self) -> bytes: ...

    def delta(self, delta: Delta) -> bytes: ...

    def around_text(self, index: int) -> Around | None: ...

    def closing(self, usage: Usage) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


class EventResponse(EventSourceResponse, ABC):
    """Sends a body of whole events, with a heartbeat whenever it is silent for long.

    Four inner steps of the library are replaced: its loop, for the cost of a chunk (it formats a
    log record and opens a cancel scope for each); its ping (a comment, which SDKs cannot read; it
    comes also while the stream flows; and it is a task of its own); its task group, which leaves a
    hundred objects of each stream to the garbage collector; and the way of its headers from bytes
    to text and back.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        heartbeat_s: float,
        close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``close`` is called once the response is over, however it ends."""
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
        """A chunk of the body waits for the reader: nothing that is made now may pass it."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        assert isinstance(headers, Headers)
        self.raw_headers = [*headers.raw, _CONTENT_TYPE]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = context.of(scope)
        self._outlet = Outlet(lambda chunk: known.send(_message(chunk)), known.write)
        try:
            if scope["method"] == "HEAD":  # the head alone
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
        """As a ``Sink`` says it."""
        return self._outlet.is_free and not self._is_sending

    def _write(self, chunk: bytes) -> None:
        """A chunk that leaves in no task; only while this ``is_free``."""
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
        await self._outlet.wait()  # for a heartbeat, if anything
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch(self) -> None:
        """A heartbeat whenever nothing was sent for so long."""
        wait_s = self._outlet.put_at + self._heartbeat_s - self._loop.time()
        if wait_s <= 0:
            wait_s = self._heartbeat_s
            self._outlet.put_at = self._loop.time()
            self._beat()
        self._silence = self._loop.call_later(wait_s, self._watch)

    @abstractmethod
    def _beat(self) -> None:
        """Say something that means nothing."""


class EventStream(EventResponse):
    """Streams one generation, and closes it. Its ``Sink``, too."""

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
        if self.is_free:  # or a reader that is slow has enough to read
            self._write(self._chunks.heartbeat)


class _TextSink:
    """A choice's content as events that are all alike, past the response that they belong to."""

    __slots__ = ("_head", "_offer", "_tail")

    def __init__(self, outlet: Outlet[bytes], around: Around) -> None:
        self._offer = outlet.offer
        self._head, self._tail = around

    def put(self, text: Text, now: float) -> bool:
        offer = self._offer
        return offer(self._head + text + self._tail, now)


class FollowingEventStream(EventResponse):
    """Sends what a resumable stream says; its generation does not depend on this response."""

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
        """Into the log and from there to the client, so that it can count its events."""
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
    """Like ``EventStream``, but resumable: ``streams`` owns the generation from here on."""
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
    """In events of content alone; None where they are not always alike."""
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
                    delta.finish_reason = "stop"  # OpenAI's clients know no nearer word
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
    """A blank line stands nowhere else: JSON has no bare line break."""
    return [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]


async def _followed(reader: StreamReader) -> AsyncGenerator[bytes, None]:
    try:
        async for events in reader:
            yield b"".join(events)
    except ApiError as exc:
        yield b"data: " + exc.body() + b"\n\n"
