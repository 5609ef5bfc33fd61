"""Records an HTTP answer as the items of a stream, so that it can be repeated byte for byte.

head    status and headers, once
body    a part of the body, as the route sent it
end     the answer is whole; without it, it broke off
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope, Send

from gateway import context
from gateway.answers.refusals import refusal
from gateway.errors import ApiError, InternalError, StreamNotFound, to_api_error
from gateway.generation.events import Channel, Event
from gateway.streams.log import StreamReader
from gateway.transport.extensions import Disconnect

_HEAD, _BODY, _END, _BROKEN = b"h", b"b", b"e", b"x"
_GOOD_ENDS = (b"data: [DONE]\n\n", b"event: message_stop\n")
"""The last part of an event stream contains one of these, unless the stream failed."""
_FAILURE = b"event: response.failed\n"
"""After this, an event stream ends as after success."""

REPLAYED_HEADER = (b"idempotent-replayed", b"true")


class _Head(msgspec.Struct, array_like=True):
    status: int
    headers: list[tuple[bytes, bytes]]


_head_decoder = msgspec.msgpack.Decoder(_Head)


class AnswerWork:
    """Runs a route without a connection, and yields its answer. It is a ``streams.Work``.

    The route runs from ``start`` on. If this is closed early, the route learns that its client
    has left.
    """

    def __init__(
        self,
        app: ASGIApp,
        scope: Scope,
        body: bytes,
        on_end: Callable[[bool, bool], Awaitable[None]],
    ) -> None:
        """on_end: called before the last item is yielded, with whether the answer may be replayed,
        and whether it is whole."""
        self._app = app
        self._on_end = on_end
        self._body: bytes | None = body
        self._may_start = asyncio.Event()
        self._left = asyncio.Event()
        self._messages = asyncio.Queue[Message | None](maxsize=64)
        self._disconnect = Disconnect()
        self._scope = context.fork(scope, self._messages.put, self._disconnect)
        self._status = 0
        self._is_events = False
        self._last = b""
        self._has_failed = False

    def start(self) -> None:
        self._may_start.set()

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        self._left.set()
        self._disconnect.leave()
        self._may_start.set()

    def heartbeat(self) -> None:
        """The recorded answer has its own."""

    def cut(self, error: ApiError) -> Event:
        """Marks where an answer broke off."""
        return Event("", _BROKEN)

    async def events(self, channel: Channel) -> AsyncGenerator[list[Event], None]:
        """The items of the answer."""
        await self._may_start.wait()
        if self._left.is_set():
            return
        running = asyncio.create_task(self._run(), name="idempotent request")
        has_ended = False
        try:
            while (message := await self._messages.get()) is not None:
                has_ended = message["type"].endswith("body") and not message.get("more_body")
                if has_ended:
                    await self._on_end(self._is_good(message), True)
                yield [Event("", item) for item in self._items_of(message)]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if not has_ended:
                await self._on_end(False, False)

    def _items_of(self, message: Message) -> list[bytes]:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            head = _Head(message["status"], list(message["headers"]))
            self._is_events = _is_events(head.headers)
            return [_HEAD + msgspec.msgpack.encode(head)]
        body = message.get("body", b"")
        self._last = body or self._last
        self._has_failed |= self._is_events and _FAILURE in body
        items = [_BODY + body] if body else []
        return items if message.get("more_body") else [*items, _END]

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._messages.put)
        except ClientDisconnect:
            pass  # This object was closed.
        except Exception as exc:  # Outside of a recording, ``middleware.errors`` would answer it.
            error = to_api_error(exc)
            if (attempt := context.of(self._scope).attempt) is not None:
                attempt.failed(exc, is_ours=error.status >= 500)
            if not self._status:
                answer = refusal(self._scope, error)
                await answer(self._scope, self._receive, self._messages.put)
        await self._messages.put(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    def _is_good(self, last: Message) -> bool:
        if self._status != 200 or not self._is_events:
            return self._status == 200
        said = last.get("body") or self._last
        return not self._has_failed and any(end in said for end in _GOOD_ENDS)


async def give(reader: StreamReader, send: Send, *, is_replay: bool) -> None:
    """Send a recorded answer.

    If it breaks off, an event stream ends with an error event. Any other answer, and one that
    breaks off before its head, raises ``ApiError``.
    """
    has_begun = has_ended = is_events = False
    error: ApiError = InternalError("The answer broke off.", code="answer_broken")
    try:
        async for items in reader:
            for item in items:
                kind, rest = item[:1], item[1:]
                if kind == _HEAD:
                    head = _head_decoder.decode(rest)
                    is_events = _is_events(head.headers)
                    headers = [*head.headers, *([REPLAYED_HEADER] if is_replay else [])]
                    await send(
                        {
                            "type": "http.response.start",
                            "status": head.status,
                            "headers": headers,
                        }
                    )
                    has_begun = True
                elif kind == _BODY:
                    await send({"type": "http.response.body", "body": rest, "more_body": True})
                else:
                    has_ended = kind == _END
    except StreamNotFound:
        pass  # An answer that broke off is not kept.
    except ApiError as exc:  # The worker that ran it is gone.
        error = exc
    last = b""
    if not (has_begun and has_ended):
        if not is_events:
            raise error
        last = b"data: " + error.body() + b"\n\n"
    await send({"type": "http.response.body", "body": last, "more_body": False})


def _is_events(headers: list[tuple[bytes, bytes]]) -> bool:
    return Headers(raw=headers).get("content-type", "").startswith("text/event-stream")
