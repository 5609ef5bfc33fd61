"""Gives every request an id, under which the ledger and the log have it.

A client may send a name of its own in ``x-request-id``. The answer then has that name in this
header, and our id in ``x-sluice-request-id``; without one it has our id in both.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context

HEADER, OWN_HEADER = "x-request-id", "x-sluice-request-id"
_CLIENTS_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""Names that are kept: they cannot forge a line or a field of the log."""
STARTS = {"http.response.start", "websocket.http.response.start", "websocket.accept"}


class RequestId:
    """The outermost middleware: makes the ``RequestContext``, and adds the request's ids and
    its ``headers`` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        attached = context.attach(scope, send)
        own_id = str(attached.request_id)
        attached.client_request_id = _clients_id(scope)
        ids = {HEADER: attached.client_request_id or own_id, OWN_HEADER: own_id}

        async def send_with_id(message: Message) -> None:
            if message["type"] in STARTS:
                own = {**ids, **attached.headers}  # set nowhere else
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in own.items()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            context.detach(scope)


def _clients_id(scope: Scope) -> str | None:
    """The client's name for its request; None if it has none that can be kept."""
    found = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(found) != 1 or _CLIENTS_ID.fullmatch(found[0]) is None:
        return None
    return str(found[0], "ascii")
