"""One response of the Responses API, from its admission to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import orjson

from gateway.answers.chunks import DONE
from gateway.errors import ApiError, Gone
from gateway.generation.answer import Answer, Delivery
from gateway.generation.delta import Delta
from gateway.generation.events import Channel, Event
from gateway.generation.generation import Generation
from gateway.responses.events import ResponseEvents
from gateway.responses.items import bare, plain_items
from gateway.responses.remote import RemoteTools
from gateway.schemas.common import NO_USAGE, Usage
from gateway.schemas.responses import Item
from tenants.shared import StoredResponse

T = TypeVar("T")


class Agent(NamedTuple):
    """What makes a response of several turns."""

    tools: RemoteTools
    begin_turn: Callable[[Sequence[Any], int], Awaitable[Generation | None]]
    """Begins a generation that goes on from these output items, for which so many tokens were
    generated; None if there may be no more. Raises ``ApiError``."""


class ResponseRun(Answer):
    """A running response, made by ``Responses.begin``.

    Read ``events`` to the end, and call ``close`` in a ``finally``.
    """

    def __init__(
        self,
        encoder: ResponseEvents,
        generation: Generation | None,
        *,
        tenant_id: UUID,
        earlier: Sequence[Item],
        own: Sequence[Item],
        on_end: Callable[[ResponseRun], Awaitable[None]],
        on_abandon: Callable[[ResponseRun], None],
        agent: Agent | None = None,
    ) -> None:
        """earlier: the items of the responses that it continues, if it is asked for them. own: its
        own input items. generation: None if nothing is generated, and the response only stores its
        input. on_end: stores the response, before its last event is sent. on_abandon: must call
        ``give_up`` in a task of its own. agent: makes further turns; None if there is one only."""
        super().__init__(generation, encoder)
        self.encoder: ResponseEvents = encoder
        self.tenant_id = tenant_id
        self.is_stored: bool = encoder.response["store"]
        self._earlier = earlier
        self._own = own
        self._on_end = on_end
        self._on_abandon = on_abandon
        self.is_of_socket = False
        """Whether its events are messages of a WebSocket, of which none says that it is done."""
        self._is_read = False
        self._has_ended = False
        self._stored = asyncio.Event()
        self._all: AsyncGenerator[Sequence[Event], None] | None = None
        """Makes all events; begun by whoever asks for the first. Take from it under the lock."""
        self._source_lock = asyncio.Lock()
        self._unread: deque[Sequence[Event]] = deque()
        """What ``end`` took from the source before the reader did."""
        self._is_ending = False
        self._agent = agent
        self._is_cancelled = False
        self._work: asyncio.Task[Any] | None = None
        """A call of a tool that runs now."""
        self._spent = NO_USAGE
        """By the turns before this one."""

    @property
    def id(self) -> str:
        response_id: str = self.encoder.response["id"]
        return response_id

    @property
    def status(self) -> str:
        status: str = self.encoder.response["status"]
        return status

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it goes on with."""
        named = self.encoder.response.get("conversation")
        return None if named is None else str(named["id"])

    def leave_conversation(self) -> None:
        """Let the last event say that the response is not in its conversation."""
        self.encoder.response["conversation"] = None

    def asked(self) -> list[Item]:
        """The items of the responses that it continues, then its own input items."""
        return [*self._earlier, *self._own]

    def said(self) -> list[Any]:
        """Its own input items, then its output items."""
        return [*self._own, *self.encoder.response["output"]]

    def body(self) -> bytes:
        """The response object as it is now, as JSON."""
        return self.encoder.body()

    def context(self) -> list[Item]:
        """The items that a response which continues this one begins with."""
        said = [msgspec.Raw(msgspec.json.encode(item)) for item in self.encoder.response["output"]]
        return [*self._earlier, *self._own, *plain_items(said)]

    def heartbeat(self) -> Event | None:
        # Once numbered events wait to be read, a heartbeat would overtake them.
        return None if self._is_ending else super().heartbeat()

    def cut(self, error: ApiError) -> Event:
        return Event("error", error.body())

    @property
    def has_failed(self) -> bool:
        return self.status == "failed"

    async def events(self, channel: Channel | None = None) -> AsyncGenerator[Sequence[Event], None]:
        assert not self._is_read
        self._is_read = True
        source = self._begin_source(channel)
        try:
            while (events := await self._next(source)) is not None:
                yield events
        finally:
            self._is_read = False
            async with self._source_lock:
                await source.aclose()

    def _begin_source(
        self, channel: Channel | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        if self._all is None:
            self._all = super().events(channel)
        return self._all

    async def _next(self, source: AsyncGenerator[Sequence[Event], None]) -> Sequence[Event] | None:
        async with self._source_lock:
            return self._unread.popleft() if self._unread else await anext(source, None)

    async def _deltas(self, delivery: Delivery | None) -> AsyncGenerator[Delta, None]:
        try:
            async with aclosing(super()._deltas(delivery)) as deltas:
                async for delta in deltas:
                    yield delta
        except Gone:  # nobody read it any more
            self.encoder.finish_reason = "cancelled"

    async def _said(self, delivery: Delivery | None) -> AsyncGenerator[Sequence[Event], None]:
        """One turn, or as long as the model calls tools of MCP servers."""
        agent, encoder = self._agent, self.encoder
        if agent is None:
            async with aclosing(super()._said(delivery)) as said:
                async for events in said:
                    yield events
            return
        for label, tools in agent.tools.listed:
            yield encoder.listed(label, tools)
        for function, request in agent.tools.approved:
            yield encoder.approved(function, request)
        while True:
            if self.generation is not None:
                async with aclosing(super()._said(delivery)) as said:
                    async for events in said:
                        yield events
                if encoder.finish_reason != "tool_calls":
                    return
                yield encoder.end_turn()
                if not encoder.called:
                    return
            while encoder.called:
                call = encoder.called[0]
                outcome = await self._unless_cancelled(agent.tools.call(call))
                if outcome is None:
                    encoder.finish_reason = "cancelled"
                    return
                yield encoder.carried_out(call, *outcome)
            if encoder.waits_for_client:
                return
            await self._begin_turn(agent)
            if self.generation is None:
                encoder.finish_reason = "length"
                return

    async def _unless_cancelled(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of work that belongs to the response; None once this is cancelled. Raises
        ``ApiError`` when its request fails."""
        generation = self.generation
        self._work = task = asyncio.create_task(work, name=f"call of {self.id}")
        if generation is not None:
            generation.on_abort = self._stop_work
        if self._is_cancelled:
            task.cancel()
        try:
            await asyncio.wait((task,))
        finally:
            self._work = None
            if generation is not None:
                generation.on_abort = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if generation is not None:
            generation.raise_failure()
        return None if task.cancelled() else task.result()

    async def _begin_turn(self, agent: Agent) -> None:
        """Let the model go on from what the tools have answered. Raises ``ApiError``."""
        if self.generation is not None:
            self._spent = await self._usage()
            self.generation.close()
            await self.generation.settled()  # which gives back what it had reserved
            self.generation = None
        output, num_spent = self.encoder.response["output"], self._spent.completion_tokens
        self.generation = await agent.begin_turn(output, num_spent)
        if self._is_cancelled and self.generation is not None:
            self.generation.cancel()

    def cancel(self) -> None:
        self._is_cancelled = True
        super().cancel()
        self._stop_work()

    def _stop_work(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def _usage(self) -> Usage:
        return self._spent + await super()._usage()

    async def _end(self, last: Sequence[Event]) -> Sequence[Event]:
        await self._store()
        return [*last, self.encoder.last(), *([] if self.is_of_socket else [DONE])]

    async def result(self) -> bytes:
        """Run to the end, and return the response object. Raises ``ApiError`` if it has failed."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        if self.failure is not None:
            raise self.failure
        return self.body()

    @property
    def has_begun(self) -> bool:
        """Whether something was generated, or called."""
        generation = self.generation
        is_first = generation is None or generation.num_generated_tokens == 0
        return not is_first or bool(self.encoder.response["output"])

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
        super().close()
        if not self._has_ended and not self._is_read and not self._is_ending:
            self._has_ended = True
            self._on_abandon(self)

    def refuse(self) -> None:
        """Drop it without storing it: it failed before the client knew of it."""
        self.is_stored = False
        self.close()

    async def give_up(self) -> None:
        """End it as cancelled, with the output so far, because its reader has left."""
        self.encoder.finish_reason = "cancelled"
        self.encoder.closing(await self._usage())
        await self._store()

    def record(self) -> StoredResponse:
        """The record to store."""
        response = self.encoder.response
        return StoredResponse(
            id=self.id,
            tenant_id=self.tenant_id,
            status=response["status"],
            body=self.body(),
            input=orjson.dumps([bare(item) for item in self._own]),
            previous_response_id=response["previous_response_id"],
            created_at=datetime.fromtimestamp(response["created_at"], UTC),
        )

    def mark_unstored(self) -> None:
        """Let the last event say that the response is not stored and cannot be retrieved."""
        self.encoder.response["store"] = False

    async def _store(self) -> None:
        self._has_ended = True
        try:
            await self._on_end(self)
        finally:
            self._stored.set()
