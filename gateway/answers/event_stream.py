"""The channel of server-sent events (WHATWG HTML, section 9.2): over HTTP, straight or from a log.

The answer is closed when its stream ends, for whatever reason: the answer is complete, it
failed, the client has left (``protocol`` drops clients that stop reading), or the server shuts down
(``lifecycle``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from sse_starlette.sse import AppStatus, EventSourceResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from gateway import context
from gateway.errors import ApiError
from gateway.generation.answer import Answer
from gateway.generation.events import Event, TextForm, TextSink, as_sse, text_sink
from gateway.streams.log import StreamReader
from gateway.transport.disconnect import until_disconnect
from gateway.transport.outlet import Outlet

# sse-starlette would cut all streams at the first SIGTERM; ``lifecycle`` lets them end instead.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]

STREAM_ID_HEADER = "x-sluice-stream-id"
"""Tells the client the id of a resumable stream."""
_CONTENT_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")


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
        self._outlet: Outlet
        self._loop = asyncio.get_running_loop()
        self._heartbeat_s = heartbeat_s
        self._silence: asyncio.TimerHandle | None = None

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
                await until_disconnect(receive, self._stream_response(send), known.disconnect)
        except ClientDisconnect:
            pass
        finally:
            self._outlet.close()
            self._close()

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
                    await self._outlet.send(chunk)
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
    """Streams one answer, and closes it. It is the answer's ``Channel``."""

    def __init__(self, answer: Answer, *, heartbeat_s: float) -> None:
        super().__init__(_joined(answer.events(self)), heartbeat_s=heartbeat_s, close=answer.close)
        self._answer = answer

    @property
    def is_free(self) -> bool:
        return self._outlet.is_free

    def put(self, events: Sequence[Event]) -> None:
        self._outlet.offer(b"".join(map(as_sse, events)), self._loop.time())

    def text_sink(self, form: TextForm) -> TextSink:
        return text_sink(form, as_sse, self._outlet)

    def _beat(self) -> None:
        # If the outlet is not free, the client still has something to read.
        if self.is_free and (event := self._answer.heartbeat()) is not None:
            self.put([event])


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


def _message(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def _joined(body: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(body) as running:
        async for events in running:
            yield b"".join(map(as_sse, events))


async def _followed(reader: StreamReader) -> AsyncGenerator[bytes, None]:
    try:
        async for events in reader:
            yield b"".join(events)
    except ApiError as exc:
        yield b"data: " + exc.body() + b"\n\n"
