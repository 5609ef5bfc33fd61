"""One response of the Responses API, from its admission to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import orjson

from gateway.errors import ApiError, Gone
from gateway.generation.delta import Delta
from gateway.generation.generation import Generation
from gateway.generation.reading import Sink
from gateway.generation.text_events import Text
from gateway.responses.events import Event, ResponseEvents
from gateway.responses.items import plain_items
from gateway.schemas.common import PromptTokensDetails, Usage
from gateway.schemas.responses import Item
from tenants.shared import StoredResponse

_NO_USAGE = Usage(
    prompt_tokens=0,
    completion_tokens=0,
    total_tokens=0,
    prompt_tokens_details=PromptTokensDetails(),
)


class ResponseRun:
    """A running response, made by ``Responses.begin``. It is a ``streams.Work``.

    Read ``events`` to the end, and call ``close`` in a ``finally``.
    """

    def __init__(
        self,
        response: dict[str, Any],
        generation: Generation | None,
        *,
        tenant_id: UUID,
        earlier: Sequence[Item],
        own: Sequence[Item],
        is_stored: bool,
        is_obfuscated: bool,
        on_end: Callable[[ResponseRun], Awaitable[None]],
        on_abandon: Callable[[ResponseRun], None],
    ) -> None:
        """earlier: the items of the responses that it continues. own: its own input items.
        generation: None if nothing is generated, and the response only stores its input.
        on_end: stores the response, before its last event is sent. on_abandon: must call
        ``give_up`` in a task of its own."""
        self.generation = generation
        self.tenant_id = tenant_id
        self.is_stored = is_stored
        self.has_failed = False
        self._failure: ApiError | None = None
        """For ``result``."""
        self._events = ResponseEvents(response, is_obfuscated=is_obfuscated)
        self._earlier = earlier
        self._own = own
        self._on_end = on_end
        self._on_abandon = on_abandon
        self._is_read = False
        self._has_ended = False
        self._stored = asyncio.Event()
        self._source: AsyncGenerator[list[Event], None] | None = None
        """Makes all events; begun by whoever asks for the first. Take from it under the lock."""
        self._source_lock = asyncio.Lock()
        self._unread: deque[list[Event]] = deque()
        """What ``end`` took from the source before the reader did."""
        self._is_ending = False

    @property
    def id(self) -> str:
        response_id: str = self._events.response["id"]
        return response_id

    def body(self) -> bytes:
        """The response object as it is now, as JSON."""
        return self._events.body()

    def context(self) -> list[Item]:
        """The items that a response which continues this one begins with."""
        said = [msgspec.Raw(msgspec.json.encode(item)) for item in self._events.response["output"]]
        return [*self._earlier, *self._own, *plain_items(said)]

    def heartbeat(self) -> Event | None:
        # Once numbered events wait to be read, a heartbeat would overtake them.
        return None if self._is_ending else self._events.heartbeat()

    def delta_events(self, delta: Delta) -> list[Event]:
        """The events of a delta, for a sink."""
        return self._events.delta(delta)

    def text(self, text: Text) -> bytes | None:
        """The data of the event for content alone, for a ``TextSink``; None if this text needs more
        than one event."""
        return self._events.text(text)

    @property
    def has_plain_text(self) -> bool:
        """Whether ``text`` can be used, because events are not padded."""
        return not self._events.is_obfuscated

    async def events(self, sink: Sink | None = None) -> AsyncGenerator[list[Event], None]:
        """All events, except for the deltas that ``sink`` gets.

        The failure of a response is an event as well, and is not raised.
        """
        assert not self._is_read
        self._is_read = True
        source = self._begin_source(sink)
        try:
            while (events := await self._next(source)) is not None:
                yield events
        finally:
            self._is_read = False
            async with self._source_lock:
                await source.aclose()

    def _begin_source(self, sink: Sink | None = None) -> AsyncGenerator[list[Event], None]:
        if self._source is None:
            self._source = self._make_events(sink)
        return self._source

    async def _next(self, source: AsyncGenerator[list[Event], None]) -> list[Event] | None:
        async with self._source_lock:
            return self._unread.popleft() if self._unread else await anext(source, None)

    async def _make_events(self, sink: Sink | None) -> AsyncGenerator[list[Event], None]:
        yield self._events.opening()
        reason = None
        try:
            async with aclosing(self._deltas(sink)) as deltas:
                async for delta in deltas:
                    if events := self._events.delta(delta):
                        yield events
                    reason = delta.finish_reason or reason
            last = self._events.closing(reason, await self._usage())
        except Gone:  # nobody read it any more
            last = self._events.closing("cancelled", await self._usage())
        except ApiError as exc:
            self.has_failed, self._failure = True, exc
            last = self._events.failure(exc)
        await self._end()
        yield [*last, self._events.last()]

    def _deltas(self, sink: Sink | None) -> AsyncGenerator[Delta, None]:
        return _nothing() if self.generation is None else self.generation.deltas(sink)

    async def result(self) -> bytes:
        """Run to the end, and return the response object. Raises ``ApiError`` if it has failed."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        if self._failure is not None:
            raise self._failure
        return self.body()

    def cancel(self) -> None:
        """Cancel it because the client asked for it: it ends soon, with the output so far."""
        if self.generation is not None:
            self.generation.cancel()

    async def end(self) -> None:
        """``cancel`` it; returns when it is stored and settled, whatever its reader does.

        A reader that stands still would keep its slot until it is dropped. What it has not read
        waits for it here: no more than a reader leaves unread before its request is parked.
        """
        self._is_ending = True
        self.cancel()
        async with self._source_lock:
            async for events in self._begin_source():
                self._unread.append(events)
            if not self._has_ended:  # its reader left just now
                await self.give_up()
        await self._stored.wait()
        if self.generation is not None:
            self.generation.close()
            await self.generation.settled()

    def close(self) -> None:
        """Stop it if it still runs. Idempotent."""
        self._failure = None  # Its traceback refers to this object.
        if self.generation is not None:
            self.generation.close()
        if not self._has_ended and not self._is_read and not self._is_ending:
            self._has_ended = True
            self._on_abandon(self)

    def refuse(self) -> None:
        """Drop it without storing it: it failed before the client knew of it."""
        self.is_stored = False
        self.close()

    async def give_up(self) -> None:
        """End it as cancelled, with the output so far, because its reader has left."""
        self._events.closing("cancelled", await self._usage())
        await self._end()

    def record(self) -> StoredResponse:
        """The record to store."""
        response = self._events.response
        return StoredResponse(
            id=self.id,
            tenant_id=self.tenant_id,
            status=response["status"],
            body=self.body(),
            input=orjson.dumps([msgspec.to_builtins(item) for item in self._own]),
            previous_response_id=response["previous_response_id"],
            created_at=datetime.fromtimestamp(response["created_at"], UTC),
        )

    def mark_unstored(self) -> None:
        """Let the last event say that the response is not stored and cannot be retrieved."""
        self._events.response["store"] = False

    async def _usage(self) -> Usage:
        return _NO_USAGE if self.generation is None else await self.generation.usage()

    async def _end(self) -> None:
        self._has_ended = True
        try:
            await self._on_end(self)
        finally:
            self._stored.set()


async def _nothing() -> AsyncGenerator[Delta, None]:
    nothing: tuple[Delta, ...] = ()
    for delta in nothing:
        yield delta
