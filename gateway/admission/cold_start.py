"""Has requests for a model that no engine serves wait until one has been started for them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from engine.client.fleet import Fleet

ASK_S = 1.0
"""How often an engine is asked for, while requests wait."""
MAX_WAITING = 1024
"""Requests that wait, where the settings have no limit for queues."""


class ColdStart:
    """Of one model, of which there may be no engine while nobody asks for it."""

    def __init__(
        self,
        engine: Fleet,
        ask: Callable[[], Awaitable[bool]],
        *,
        wait_s: float,
        max_waiting: int,
    ) -> None:
        """``ask``: asks for an engine, and says whether anybody is there to start one. It must not
        raise. ``max_waiting``: beyond that, requests of tenants that have their part of it do not
        wait."""
        self._engine = engine
        self._ask = ask
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._waiting: Counter[str] = Counter()
        """Requests that wait, by tenant."""
        self._asked_at = 0.0
        self._asking: asyncio.Future[bool] | None = None
        """The last question and its answer, which all share."""
        self._ended = False

    @property
    def num_waiting(self) -> int:
        return self._waiting.total()

    def end(self) -> None:
        """Nobody waits any more: the server shuts down."""
        self._ended = True

    async def wait(self, tenant: str) -> None:
        """Wait until an engine takes requests; at most ``wait_s``, and not at all if nobody is
        there to start one."""
        if self._engine.serving.is_set():
            return
        until = time.monotonic() + self._wait_s
        if self._is_full_for(tenant):
            return
        self._waiting[tenant] += 1
        try:
            while await self._is_coming() and not self._ended:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return
                try:
                    async with asyncio.timeout(min(left_s, ASK_S)):
                        await self._engine.serving.wait()
                except TimeoutError:
                    continue
                return
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def _is_full_for(self, tenant: str) -> bool:
        if self.num_waiting < self._max_waiting:
            return False
        num_tenants = len(self._waiting) + (tenant not in self._waiting)
        return (self._waiting[tenant] + 1) * num_tenants > self._max_waiting

    async def _is_coming(self) -> bool:
        """Ask for an engine, unless that was done a moment ago."""
        now = time.monotonic()
        if self._asking is None or now - self._asked_at >= ASK_S:
            self._asked_at = now
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)
