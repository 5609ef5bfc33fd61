"""One WebSocket of ``/v1/responses`` after its handshake; the protocol is in
``schemas.responses_ws``.

reader ──► lane ──► its responses, one after the other ──┐
     └───► lane ──► ...                                  ┼──► outbox ──► writer
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict, deque
from contextlib import aclosing
from typing import NamedTuple
from uuid import UUID

import msgspec
from starlette.websockets import WebSocket

from gateway.errors import (
    ApiError,
    Draining,
    InvalidRequestError,
    RateLimited,
    ResponseNotFound,
    UnsupportedParameter,
    quoted,
    to_api_error,
)
from gateway.responses.conversations import History
from gateway.responses.responses import Responses
from gateway.responses.run import ResponseRun
from gateway.schemas.responses_ws import (
    Cancel,
    ClientMessage,
    Create,
    SocketError,
    SocketErrorObject,
)
from gateway.sockets.outbox import SocketChannel
from gateway.sockets.session import Close, Shared, SocketSession
from gateway.transport import bodies, body_shape
from tenants.request_ids import new_request_id
from tenants.types import Principal

MAX_LANES = 32
"""The most named lanes of one connection."""
MAX_REMEMBERED = 16
"""The most responses that can be continued on their connection without being stored."""
MAX_REMEMBERED_BYTES = 4 * 1024 * 1024
MAX_TENANT_BYTES = 256 * 1024 * 1024
"""Of all that the connections of one tenant remember, in each worker."""
ITEM_BYTES = 640
"""What an item takes as an object, beside its text."""
_Waiting = deque[tuple[Create, Principal, int]]
"""Each with the bytes of its message."""
_LANE = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)


class ResponsesSession(SocketSession):
    """Runs the responses of one WebSocket: those of a lane one after the other, lanes at once."""

    def __init__(
        self, socket: WebSocket, api_key: str | None, shared: Shared, responses: Responses
    ) -> None:
        super().__init__(socket, api_key, shared)
        self._responses = responses
        self._lanes: dict[str | None, _Waiting] = {}
        """The responses of each lane that has any; the first one runs, the others wait."""
        self._names: set[str] = set()
        self._num_in_flight = 0
        self._running: dict[str, ResponseRun] = {}
        self._remembered = RecentResponses(responses.remembered)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._remembered.clear()

    # -- reading

    async def _read(self) -> None:
        await self._admitted("responses")
        try:
            async with asyncio.timeout(self._config.ws_max_connection_s):
                while True:
                    await self._handle(await self._receive())
        except TimeoutError:
            await self._end_slowly()

    async def _end_slowly(self) -> None:
        """Let running responses end, and refuse others, because the connection is too old."""
        too_old = InvalidRequestError(
            f"This connection is {self._config.ws_max_connection_s:.0f} seconds old, the most "
            "there may be; open another one.",
            code="websocket_connection_limit_reached",
        )
        await self._send_error(too_old)
        reading = asyncio.create_task(self._refuse_all(too_old), name="ws last reader")
        try:
            while self._tasks:
                await asyncio.wait([reading, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        raise Close(1001, "the connection is too old")

    async def _refuse_all(self, error: ApiError) -> None:
        while True:
            text = await self._receive()
            if (lane := _envelope(text).lane) is not None:
                await self._send_error_to(lane, error)
            else:
                await self._handle(text)

    async def _handle(self, text: str) -> None:
        try:
            data = text.encode()
            await body_shape.check(data)
            message = bodies.decode(_decoder, data, what="message")
            if isinstance(message, Create):
                self._enqueue(message, await self._authenticate(), len(data))
            else:
                self._cancel(message)
        except ApiError as exc:
            envelope = _envelope(text)
            self._remembered.forget(envelope.previous_response_id, envelope.lane)
            await self._send_error_to(envelope.lane, exc)

    def _cancel(self, message: Cancel) -> None:
        run = self._running.get(message.response_id)
        if run is not None:
            self._responses.begin_to_end(run)  # Its reader may stand still.
        elif message.response_id not in self._remembered:
            raise ResponseNotFound(
                f"This connection has no response {quoted(message.response_id)}.",
                param="response_id",
            )

    # -- lanes

    def _enqueue(self, message: Create, principal: Principal, num_bytes: int) -> None:
        """Run a response, after those before it in its lane. Raises ``ApiError``."""
        self._check(message)
        lane = message.stream_id
        if lane is not None:
            self._names.add(lane)
        self._num_in_flight += 1
        if lane in self._lanes:
            self._lanes[lane].append((message, principal, num_bytes))
            return
        waiting = self._lanes[lane] = deque([(message, principal, num_bytes)])
        self._begin_task(self._work_off(lane, waiting), name=f"lane {lane}")

    def _check(self, message: Create) -> None:
        lane = message.stream_id
        if lane is not None and _LANE.fullmatch(lane) is None:
            raise InvalidRequestError(
                "Must be 1 to 256 characters of A-Z, a-z, 0-9 and _ . : -",
                param="stream_id",
                code="invalid_stream_id",
            )
        if lane is not None and lane not in self._names and len(self._names) >= MAX_LANES:
            raise RateLimited(
                f"This connection has {MAX_LANES} named lanes already.",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        if self._num_in_flight >= self._config.ws_max_turns:
            raise RateLimited(
                f"{self._num_in_flight} responses run or wait on this connection already.",
                code="websocket_in_flight_limit_reached",
            )
        for name in ("background", "stream"):
            if getattr(message, name) not in (None, name == "stream"):
                raise UnsupportedParameter(
                    "Over a WebSocket every response is streamed; leave it out.", param=name
                )
        if self._draining:
            raise Draining("The server is shutting down.")

    async def _work_off(self, lane: str | None, waiting: _Waiting) -> None:
        while waiting:
            await self._run(*waiting[0])
            waiting.popleft()
            self._num_in_flight -= 1
        del self._lanes[lane]

    async def _run(self, message: Create, principal: Principal, num_bytes: int) -> None:
        lane = message.stream_id
        try:
            run = await self._start(message, principal)
        except Exception as exc:  # Whatever it is, the client must learn of it.
            self._remembered.forget(message.previous_response_id, lane)
            await self._send_error_to(lane, to_api_error(exc))
            return
        run.is_of_socket = True
        self._running[run.id] = run
        if lane is not None:
            run.encoder.set_lane(lane)
        try:
            channel = SocketChannel(self._outbox, run.id)
            async with aclosing(run.events(channel)) as running:
                async for events in running:
                    for event in events:
                        await self._outbox.put(run.id, event.data)
        finally:
            run.close()
            del self._running[run.id]
        if run.has_failed:
            self._remembered.forget(message.previous_response_id, lane)
        else:
            self._remembered.add(run, num_bytes, lane)

    async def _start(self, message: Create, principal: Principal) -> ResponseRun:
        previous = message.previous_response_id
        return await self._responses.begin(
            message,
            principal=principal,
            request_id=new_request_id(),
            earlier=None if previous is None else self._remembered.get(previous),
            generate=message.generate is not False,
            is_continued=True,
        )

    # -- sending

    def _error_frame(self, error: ApiError, lane: str | None = None) -> bytes:
        known = error.object()
        event = SocketError(
            status=error.status,
            error=SocketErrorObject(
                message=known.message,
                type=known.type,
                param=known.param,
                code=known.code,
                headers=error.limit_headers() or msgspec.UNSET,
            ),
            stream_id=msgspec.UNSET if lane is None else lane,
        )
        return msgspec.json.encode(event)

    async def _send_error_to(self, lane: str | None, error: ApiError) -> None:
        await self._outbox.put(None, self._error_frame(error, lane))


class _Known(NamedTuple):
    earlier: History
    size: int
    lane: str | None


class RecentResponses:
    """The last responses of a connection, which others can continue."""

    def __init__(self, of_tenants: Counter[UUID]) -> None:
        """``of_tenants``: the bytes that all connections of each tenant remember."""
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0
        self._tenant: UUID | None = None
        self._of_tenants = of_tenants

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._known

    def get(self, response_id: str) -> History | None:
        found = self._known.get(response_id)
        return None if found is None else found.earlier

    def forget(self, response_id: str | None, lane: str | None) -> None:
        """Forget a response whose continuation has failed in its own lane: Open Responses wants a
        client to begin anew from what it knows, unless the response is stored. As at OpenAI, a
        continuation that failed in another lane leaves it."""
        found = None if response_id is None else self._known.get(response_id)
        if response_id is not None and found is not None and found.lane == lane:
            self._drop(response_id)

    def add(self, run: ResponseRun, num_bytes: int, lane: str | None) -> None:
        """Remember a response, whose message had ``num_bytes``. Its size is that of its own items,
        because responses that continue each other share the items that they have in common."""
        size = num_bytes + len(run.body()) + ITEM_BYTES * len(run.said())
        self._tenant = run.tenant_id
        self._known[run.id] = _Known(History(run.id, run.context()), size, lane)
        self._grow(size)
        while len(self._known) > MAX_REMEMBERED or self._is_too_much():
            self._drop(next(iter(self._known)))

    def clear(self) -> None:
        while self._known:
            self._drop(next(iter(self._known)))

    def _drop(self, response_id: str) -> None:
        self._grow(-self._known.pop(response_id).size)

    def _is_too_much(self) -> bool:
        if not self._known or self._tenant is None:
            return False
        of_tenant = self._of_tenants[self._tenant]
        return self._size > MAX_REMEMBERED_BYTES or of_tenant > MAX_TENANT_BYTES

    def _grow(self, num_bytes: int) -> None:
        self._size += num_bytes
        assert self._tenant is not None
        self._of_tenants[self._tenant] += num_bytes
        if not self._of_tenants[self._tenant]:
            del self._of_tenants[self._tenant]


class _Envelope(msgspec.Struct):
    stream_id: str | None = None
    previous_response_id: str | None = None

    @property
    def lane(self) -> str | None:
        lane = self.stream_id
        return None if lane is None or _LANE.fullmatch(lane) is None else lane


def _envelope(text: str) -> _Envelope:
    """What can be known of a message that is refused."""
    try:
        return msgspec.json.decode(text, type=_Envelope)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()
