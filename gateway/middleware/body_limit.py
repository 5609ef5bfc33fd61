"""Bounds a request's body in size and in time, while it is read."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import InvalidRequestError, PayloadTooLarge, RequestTimeout


class BodyLimit:
    """Refuses as soon as the limit is passed, by the announced length before a byte is read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._check(_announced(scope))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        size, whole = 0, False

        async def receive_limited() -> Message:
            nonlocal size, whole
            if whole:  # from now on this waits for the client to leave
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"The body did not arrive within {self._timeout_s:g} s.",
                    headers={"connection": "close"},
                ) from None
            size += len(message.get("body", b""))
            self._check(size)
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_limited, send)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"The body exceeds {self._max_bytes} bytes.", headers={"connection": "close"}
            )


def _announced(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise InvalidRequestError("The content-length header is not a number.")
    return int(text)
