"""Sends messages from callbacks, with a task only where sending must wait.

To wake a task for each chunk of a stream costs as much as everything else between the engine's
output and the socket, and an ASGI server hardly ever waits: it gives the bytes to a transport and
returns. So the coroutine of ``send`` is started in the callback, and only if it waits, because the
client is slow, a task continues it. A server that can take a message without a coroutine
(``protocol``) is asked first, which halves the cost of sending.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Outlet:
    """Sends messages to one client, in order, one at a time. ``close`` it in a ``finally``.

    An exception of sending is raised by the next ``send`` or ``wait``; from then on nothing can be
    sent.
    """

    __slots__ = ("_error", "_is_claimed", "_rest", "_send", "_write", "is_free", "put_at")

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        write: Callable[[bytes], bool] | None = None,
    ) -> None:
        """``write`` takes a message at once, or returns False to have it sent by ``send``."""
        self.is_free = True
        """Whether a message can be sent: none waits for the client, and none has failed."""
        self.put_at = 0.0
        """When ``offer`` last sent a message, by the event loop's clock."""
        self._is_claimed = False
        """Whether ``send`` has the next turn: what comes now must not overtake its message."""
        self._send = send
        self._write = write
        self._rest: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def offer(self, message: bytes, now: float) -> bool:
        """Begin to send a message; False if the outlet is not free. Neither blocks nor raises.
        ``now``: the event loop's time."""
        if not self.is_free:
            return False
        self.put_at = now
        write = self._write  # ``RequestStream.deliver`` says why it has a local name.
        try:
            if write is not None and write(message):
                return True
        except Exception as exc:
            self._fail(exc)
        else:
            self._begin(message)
        return True

    def put(self, message: bytes) -> None:
        """As ``offer``, with ``put_at`` unchanged; only while the outlet is free."""
        assert self.is_free
        self.offer(message, self.put_at)

    def _begin(self, message: bytes) -> None:
        """Run ``send`` until it waits for something; a task does the rest."""
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

    async def send(self, message: bytes) -> None:
        """Send a message after those before it, and wait until it is sent."""
        if not self.is_free:
            self._is_claimed = True
            try:
                await self.wait()
            finally:
                self._is_claimed = False
                self.is_free = self._rest is None and self._error is None
        self.put(message)
        if not self.is_free:
            await self.wait()

    async def wait(self) -> None:
        """Wait until all messages are sent."""
        while self._rest is not None:
            await asyncio.wait((self._rest,))
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Give up a message that still waits for the client. Idempotent."""
        self._error = None  # Once raised, it refers to this object by its traceback.
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
        self.is_free = self._error is None and not self._is_claimed


@types.coroutine
def _rest(sending: Generator[Any, Any, None], waited_for: object) -> Generator[Any, Any, None]:
    """Continue a coroutine that has been started outside a task, and waits for ``waited_for``.

    It passes on results and exceptions in both directions, as ``yield from`` would (PEP 380); that
    cannot be used because the first value has been taken out already.
    """
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
