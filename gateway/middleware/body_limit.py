"""Limits a request's body while it is read: its size, its time, and the number of its values."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.errors import InvalidRequestError, PayloadTooLarge, RequestTimeout
from gateway.transport.body_shape import JsonCounts, cut

DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_S = 5.0
"""How much of a refused body is read at most, and for how long."""
FORM_BYTES = 64 * 1024
"""How much larger than its file a form may be."""
LEAST_UPLOAD_BYTES_PER_S = 64 * 1024
MAX_DIGITS = 100
"""Digits of a content-length that are read as a number."""


class BodyLimit:
    """Refuses a body as soon as it exceeds a limit; by its content-length, before it is read.

    The rest of a refused body is read and dropped, within ``DRAIN_BYTES`` and ``DRAIN_S``, because
    many clients read no answer before they have sent everything. If the connection were closed
    before, they would see a reset in place of the answer.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_file_bytes: int, timeout_s: float
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_form_bytes = max_file_bytes + FORM_BYTES
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        operation = context.of(scope).operation
        uploads = operation is not None and operation.uploads
        most = self._max_form_bytes if uploads else self._max_bytes
        try:
            _check(_announced(scope), most)
        except PayloadTooLarge:
            # With ``Expect: 100-continue`` (RFC 9110, section 10.1.1) the client waits.
            if "expect" not in Headers(scope=scope):
                await drain(receive)
            raise
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        size, whole, counts = 0, False, JsonCounts()

        async def receive_limited() -> Message:
            nonlocal size, whole
            if whole:  # From now on, ``receive`` waits for the client to leave.
                return await receive()
            grace_s = size / LEAST_UPLOAD_BYTES_PER_S if uploads else 0.0
            try:
                async with asyncio.timeout_at(deadline + grace_s):
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(
                    f"The body did not arrive within {self._timeout_s + grace_s:.3g} s.",
                    headers={"connection": "close"},
                ) from None
            body = message.get("body", b"")
            size += len(body)
            try:
                _check(size, most)
                for piece in () if uploads else cut(body):
                    counts.feed(piece)
                    if len(body) > len(piece):
                        await asyncio.sleep(0)
            except PayloadTooLarge:
                if message.get("more_body", False):
                    await drain(receive)
                raise
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_limited, send)


def _check(size: int, most: int) -> None:
    if size > most:
        raise PayloadTooLarge(f"The body exceeds {most} bytes.", headers={"connection": "close"})


def _announced(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "0")
    # ``int`` raises ValueError for a number of thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise InvalidRequestError("The content-length header is not a number.")
    return int(text)


async def drain(receive: Receive) -> None:
    """Read what a client still sends of a body that is refused."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
