"""Answers every failure in a form that OpenAI's clients understand."""

from __future__ import annotations

import logging

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway.errors import to_api_error

logger = logging.getLogger(__name__)


class Errors:
    """Answers exceptions with an error object, or closes the connection if an answer has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False
        unsent: OSError | None = None

        async def send_watched(message: Message) -> None:
            nonlocal began, unsent
            began = True
            try:
                await send(message)
            except OSError as exc:  # as of ASGI: the client has left
                unsent = exc
                raise

        try:
            await self._app(scope, receive, send_watched)
        except (ClientDisconnect, WebSocketDisconnect):
            return  # The client has left.
        except Exception as exc:
            if exc is unsent:
                raise  # The server raised it, and expects it.
            error = to_api_error(exc)
            if not began:
                response = Response(error.body(), error.status, error.headers())
                await response(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": error.close_code})
            else:
                raise  # The server closes the connection in the middle of the answer.
