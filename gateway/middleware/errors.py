"""Answers every failure in the form that the client understands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose, WebSocketDisconnect

from gateway.answers.refusals import refusal
from gateway.errors import ApiError, Draining, to_api_error

logger = logging.getLogger(__name__)


class Errors:
    """Answers exceptions with an error object, or closes the connection if an answer has begun."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        is_draining: Callable[[], bool] = lambda: False,
        on_refusal: Callable[[Scope, str], None] = lambda scope, code: None,
    ) -> None:
        """``is_draining``: whether the server shuts down, and so may cancel a request that it has
        waited for in vain, such as one whose body does not come. ``on_refusal`` is called with the
        request and the code of each error that is the whole answer."""
        self._app = app
        self._is_draining = is_draining
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False
        unsent: OSError | None = None
        answer: ASGIApp

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
            return
        except (ClientDisconnect, WebSocketDisconnect):
            return  # The client has left.
        except asyncio.CancelledError:
            if began or not self._is_draining():
                raise
            # Else the server would answer in plain text.
            answer = self._answer(scope, Draining("The server is shutting down.", retry_after_s=1))
        except Exception as exc:
            if exc is unsent:
                raise  # The server raised it, and expects it.
            if not began:
                answer = self._answer(scope, to_api_error(exc))
            elif scope["type"] == "websocket":
                answer = WebSocketClose(to_api_error(exc).close_code)
            else:
                to_api_error(exc)  # which logs it
                raise  # The server closes the connection in the middle of the answer.
        finally:
            unsent = None
        # The error has no name here, and none is left in this frame, which its traceback refers to:
        # such a cycle would keep the body of each refused request until the collector runs.
        await answer(scope, receive, send)

    def _answer(self, scope: Scope, error: ApiError) -> ASGIApp:
        self._on_refusal(scope, error.code or error.type)
        return refusal(scope, error)
