"""Gives every request an id and tells it to the client."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context

_STARTS = {"http.response.start", "websocket.http.response.start", "websocket.accept"}


class RequestId:
    """Outermost: makes the ``RequestContext`` and adds ``x-request-id`` to every answer,
    and what admission notes of the limits.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        attached = context.attach(scope, send)
        request_id = str(attached.request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] in _STARTS:
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers.update(attached.rate_limits)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            context.detach(scope)
