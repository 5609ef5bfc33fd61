"""Sending that begins at once, in whatever callback has something to say.

To wake a task for each chunk of a stream costs as much as the rest of the chunk's way to the
socket, and an ASGI server hardly ever waits: it hands the bytes to a transport and returns. So a
message is sent as far as it goes without waiting; only what must wait, because the reader is slow,
goes on in a task. A server that can take a message without a coroutine (``protocol``) is asked
first: that halves what sending costs.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Outlet(Generic[T]):
    """Messages to one reader, in order, one at a time. ``close`` it, in a ``finally``.

    What sending raises, ``send`` and ``wait`` raise; until then the outlet is not free.
    """

    __slots__ = ("_error", "_rest", "_send", "_write", "is_free", "put_at")

    def __init__(
        self, send: Callable[[T], Awaitable[None]], write: Callable[[T], bool] | None = None
    ) -> None:
        """``write`` takes a message at once, or leaves it (False) to ``send``."""
        self.is_free = True
        """Nothing waits for the reader."""
        self.put_at = 0.0
        """When something was put, for whoever watches that: noted by ``offer``, else by them."""
        self._send = send
        self._write = write
        self._rest: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def offer(self, message: T, now: float) -> bool:
        """``put`` it, unless something waits: then False. ``now``: the event loop's time."""
        if not self.is_free:
            return False
        self.put_at = now
        write = self._write  # a local name: see ``RequestStream._deliver``
        try:
            if write is not None and write(message):
                return True
        except Exception as exc:
            self._fail(exc)
        else:
            self._begin(message)
        return True

    def put(self, message: T) -> None:
        """Begin to send; only while the outlet is free. Neither blocks nor raises."""
        assert self.is_free
        try:
            if self._write is not None and self._write(message):
                return
        except Exception as exc:
            self._fail(exc)
        else:
            self._begin(message)

    def _begin(self, message: T) -> None:
        """As far as it goes without waiting; the rest in a task."""
        try:
            sending = self._send(message).__await__()
            waited_for = next(sending)
        except StopIteration:
            return
        except Exception as exc:
            self._fail(exc)
            return
        self.is_free = False
        self._rest = asyncio.create_task(self._go_on(sending, waited_for), name="outlet")
        self._rest.add_done_callback(self._sent)

    async def send(self, message: T) -> None:
        """Returns when the message is sent, after all before it."""
        if not self.is_free:
            await self.wait()
        self.put(message)
        if not self.is_free:
            await self.wait()

    async def wait(self) -> None:
        """Until all is sent."""
        while self._rest is not None:
            await asyncio.wait((self._rest,))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Give up what still waits for the reader. Idempotent."""
        if self._rest is not None:
            self._rest.cancel()

    def _fail(self, error: Exception) -> None:
        self.is_free = False
        self._error = error

    async def _go_on(self, sending: Generator[Any, Any, None], waited_for: object) -> None:
        await _rest(sending, waited_for)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._rest = None
        self._error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.is_free = self._error is None


@types.coroutine
def _rest(sending: Generator[Any, Any, None], waited_for: object) -> Generator[Any, Any, None]:
    """What is left of something awaited that waits for ``waited_for`` first."""
    while True:
        try:
            try:
                answer = yield waited_for
            except BaseException as exc:
                waited_for = sending.throw(exc)
            else:
                waited_for = sending.send(answer)
        except StopIteration:
            return
