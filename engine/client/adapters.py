"""Loading and unloading adapters, from the client's side: ``EngineClient.adapters``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from engine.errors import AdapterLoadError, EngineDead
from engine.messages import AdapterAnswer, AdapterRef, ClientMessage, LoadAdapter, UnloadAdapter


class AdapterCalls:
    """Questions about adapters that the engine has not answered yet."""

    def __init__(self, send: Callable[[ClientMessage], None]) -> None:
        """``send`` raises ``EngineDead`` while none runs, ``QueueFull`` if it reads nothing."""
        self._send = send
        self._waiters: dict[int, asyncio.Future[AdapterAnswer]] = {}
        self._ids = itertools.count()

    async def load(self, adapter: AdapterRef) -> AdapterAnswer:
        """Have the engine read and check an adapter while it goes on serving; returns its digest,
        rank and base model. Optional: a request may name an adapter that was never loaded this way.

        Raises ``AdapterLoadError``, and what ``send`` raises.
        """
        answer = await self._ask(lambda call_id: LoadAdapter(call_id, adapter))
        if answer.error is not None:
            raise AdapterLoadError(answer.error)
        return answer

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; running ones go on to their end. Unknown names are
        ignored.

        Raises what ``send`` raises. An engine that died has forgotten the adapter anyway.
        """
        await self._ask(lambda call_id: UnloadAdapter(call_id, name))

    async def _ask(self, message: Callable[[int], ClientMessage]) -> AdapterAnswer:
        call_id = next(self._ids)
        self._send(message(call_id))
        waiter: asyncio.Future[AdapterAnswer] = asyncio.get_running_loop().create_future()
        self._waiters[call_id] = waiter
        try:
            return await waiter
        finally:
            del self._waiters[call_id]

    def answer(self, answer: AdapterAnswer) -> None:
        """Take in an answer of the engine."""
        waiter = self._waiters.get(answer.call_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def fail(self, reason: str) -> None:
        """The engine is dead: fail all open questions."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(EngineDead(f"the engine died: {reason}"))
