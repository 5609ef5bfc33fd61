"""Gives every request an id, which the client gets in ``x-request-id``."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context

_STARTS = {"http.response.start", "websocket.http.response.start", "websocket.accept"}


class RequestId:
    """The outermost middleware: makes the ``RequestContext``, and adds ``x-request-id`` and the
    rate-limit headers of admission to every answer."""

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
                own = {"x-request-id": request_id, **attached.rate_limits}  # set nowhere else
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in own.items()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            context.detach(scope)
