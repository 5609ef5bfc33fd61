"""Answers every failure in a form that OpenAI's clients understand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from gateway.errors import ApiError, Draining, to_api_error

logger = logging.getLogger(__name__)


class Errors:
    """Answers exceptions with an error object, or closes the connection if an answer has begun."""

    def __init__(self, app: ASGIApp, *, is_draining: Callable[[], bool] = lambda: False) -> None:
        """``is_draining``: whether the server shuts down, and so may cancel a request that it has
        waited for in vain, such as one whose body does not come."""
        self._app = app
        self._is_draining = is_draining

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
        except asyncio.CancelledError:
            if began or not self._is_draining():
                raise
            # Else the server would answer in plain text.
            draining = Draining("The server is shutting down.", retry_after_s=1)
            await _answer(draining)(scope, receive, send)
        except Exception as exc:
            if exc is unsent:
                raise  # The server raised it, and expects it.
            error = to_api_error(exc)
            if not began:
                await _answer(error)(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": error.close_code})
            else:
                raise  # The server closes the connection in the middle of the answer.


def _answer(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers())
