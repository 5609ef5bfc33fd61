"""Bounds how many requests of a tenant are in a worker's memory with all that they hold."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.transport.disconnect import until_disconnect
from tenants.lanes import Lanes, Turn

MOST = 8
"""Such requests of one tenant at once, in each worker."""
LARGE_BYTES = 256 * 1024
"""A body of this size or more is large."""

_API = "/v1/"


class MemoryShare:
    """Lets few requests of a tenant at a time be read, and answered with a whole body: those that
    no limit of tokens or concurrency holds back, and those with large bodies until they are
    admitted. The others wait before their bodies are read, so that they hold nothing but their
    connections.

    A body has up to ``server.max_body_bytes``, and an answer may be as large; thousands of clients
    that send slowly, or read slowly, would hold gigabytes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lanes = Lanes(MOST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _holds_much(scope):
            await self._app(scope, receive, send)
            return
        known = context.of(scope)
        waiting = self._lanes.turn(context.principal_of(scope).tenant.id)
        if known.disconnect is None:
            turn = await waiting
        else:
            turn = await until_disconnect(receive, waiting, known.disconnect)
        known.on_admitted = turn.leave
        try:
            await self._app(scope, receive, _watched(send, turn))
        finally:
            turn.leave()


def _watched(send: Send, turn: Turn) -> Send:
    async def send_watched(message: Message) -> None:
        if _comes_in_pieces(message):
            turn.leave()
        elif len(message.get("body", b"")) >= LARGE_BYTES:
            # A server takes a message at once and waits before the next one until the client has
            # read most of it.
            await send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return send_watched


def _comes_in_pieces(message: Message) -> bool:
    """Whether the answer is sent as it is made, so that there is never much of it."""
    if message["type"] == "http.response.start":
        return "content-length" not in Headers(raw=list(message["headers"]))
    return message["type"] == "http.response.body" and bool(message.get("more_body"))


def _holds_much(scope: Scope) -> bool:
    known = context.of(scope)
    operation = known.operation
    if operation is None or known.principal is None or not scope["path"].startswith(_API):
        return False
    if operation.body is None:
        return operation.method == "GET"  # Who cancels or deletes must not wait for those who read.
    return not operation.reserves or _is_large(Headers(scope=scope))


def _is_large(headers: Headers) -> bool:
    length = headers.get("content-length")
    if length is None:
        return "transfer-encoding" in headers
    # What is not a number is refused behind this.
    return not length.isdecimal() or len(length) > 15 or int(length) >= LARGE_BYTES
