"""Sends a response as server-sent events, or records these so that they can be read again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from gateway.answers.event_stream import EventResponse
from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.reading import Sink
from gateway.generation.text_events import Text, TextSink
from gateway.responses.events import as_sse, text_as_sse
from gateway.responses.run import ResponseRun
from gateway.streams.streams import LocalReader, Streams
from gateway.transport.outlet import Outlet


class ResponseEventStream(EventResponse):
    """Streams one response, and closes it. It is the generation's ``Sink``."""

    def __init__(self, run: ResponseRun, *, heartbeat_s: float) -> None:
        super().__init__(_body(run, self), heartbeat_s=heartbeat_s, close=run.close)
        self._run = run

    def put(self, delta: Delta) -> None:
        if events := self._run.delta_events(delta):
            self._write(b"".join(map(as_sse, events)))

    def text_sink(self, index: int) -> TextSink | None:
        return _TextSink(self._run, self._outlet) if self._run.has_plain_text else None

    def _beat(self) -> None:
        if self.is_free and (event := self._run.heartbeat()) is not None:
            self._write(as_sse(event))


class _TextSink:
    """Sends content straight to the outlet."""

    __slots__ = ("_offer", "_outlet", "_text")

    def __init__(self, run: ResponseRun, outlet: Outlet[bytes]) -> None:
        self._text = run.text
        self._outlet = outlet
        self._offer = outlet.offer

    def put(self, text: Text, now: float) -> bool:
        # Asked first, because an event that is made but not sent would leave a gap in the numbers.
        if not self._outlet.is_free or (data := self._text(text)) is None:
            return False
        return self._offer(text_as_sse(data), now)


async def record(streams: Streams, run: ResponseRun, *, is_detached: bool) -> LocalReader:
    """Record the events under the response's id. An event's position is its sequence number.

    ``streams`` owns the run from here on. ``is_detached``: it runs to its end without readers.
    """
    sink = streams.sink(
        run.id,
        lambda delta: [*map(as_sse, run.delta_events(delta))],
        partial(_text_item, run) if run.has_plain_text else None,
    )
    return await streams.open(
        run.id,
        run,
        _events(run, sink),
        tenant_id=run.tenant_id,
        kind="sse",
        cut=_cut,
        heartbeat=partial(_heartbeat_item, run),
        is_detached=is_detached,
    )


def _text_item(run: ResponseRun, text: Text) -> bytes | None:
    data = run.text(text)
    return None if data is None else text_as_sse(data)


def _heartbeat_item(run: ResponseRun) -> bytes | None:
    event = run.heartbeat()
    return None if event is None else as_sse(event)


async def _body(run: ResponseRun, sink: Sink) -> AsyncGenerator[bytes, None]:
    async with aclosing(run.events(sink)) as running:
        async for events in running:
            yield b"".join(map(as_sse, events))


async def _events(run: ResponseRun, sink: Sink) -> AsyncGenerator[list[bytes], None]:
    async with aclosing(run.events(sink)) as running:
        async for events in running:
            yield [as_sse(event) for event in events]


def _cut(error: ApiError) -> bytes:
    return b"event: error\ndata: %s\n\n" % error.body()
