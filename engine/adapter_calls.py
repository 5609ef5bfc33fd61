"""What the engine was asked about adapters and has not answered yet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from engine.errors import EngineDead
from engine.messages import AdapterAnswer, LoadAdapter, UnloadAdapter


class AdapterCalls:
    """Of one ``EngineClient``."""

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Future[AdapterAnswer]] = {}
        self._ids = itertools.count()

    async def ask(
        self,
        send: Callable[[LoadAdapter | UnloadAdapter], None],
        message: Callable[[int], LoadAdapter | UnloadAdapter],
    ) -> AdapterAnswer:
        """Send ``message`` of a new id, and wait for its answer. Raises what ``fail`` says."""
        call_id = next(self._ids)
        send(message(call_id))
        waiter: asyncio.Future[AdapterAnswer] = asyncio.get_running_loop().create_future()
        self._waiters[call_id] = waiter
        try:
            return await waiter
        finally:
            self._waiters.pop(call_id, None)

    def hear(self, answer: AdapterAnswer) -> None:
        waiter = self._waiters.get(answer.call_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def fail(self, reason: str) -> None:
        """No answer will come."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(EngineDead(f"the engine died: {reason}"))
