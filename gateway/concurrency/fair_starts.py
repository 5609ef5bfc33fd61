"""Lets only a few requests of a tenant begin in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID

MOST = 4
"""Requests of a tenant that may begin in one turn. Each takes the loop a fraction of a millisecond
there, and as much in some of the next turns."""
LARGE_BYTES = 32_768
"""A body of this size or more can hold thousands of values, and take the loop tens of milliseconds:
nothing else of its tenant begins in the same turn."""


class FairStarts:
    """Who sends hundreds of requests at once would have all of them worked on before anybody
    else's, again in each of the turns that a request needs. Here they begin one after the other,
    and the next turn comes at once: they lose no time unless others have work, too."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._num_begun: dict[UUID, int] = {}
        """In this turn."""
        self._waiting: dict[UUID, deque[tuple[asyncio.Future[None], int]]] = {}
        """With the part of a turn that each takes."""

    def __len__(self) -> int:
        """The number of tenants of which somebody waits."""
        return len(self._waiting)

    async def next(self, tenant: UUID, num_bytes: int = 0) -> None:
        """Return when one more request of the tenant may begin, whose body has so many bytes; first
        come, first served."""
        num_begun = self._num_begun.get(tenant, 0)
        weight = self._most if num_bytes >= LARGE_BYTES else 1
        loop = asyncio.get_running_loop()
        if not self._num_begun:
            loop.call_soon(self._begin_turn)
        if num_begun + weight <= self._most and tenant not in self._waiting:
            self._num_begun[tenant] = num_begun + weight
            return
        self._num_begun.setdefault(tenant, 0)
        waiting = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append((waiting, weight))
        await waiting

    def _begin_turn(self) -> None:
        self._num_begun.clear()
        for tenant, queue in [*self._waiting.items()]:
            num_left = self._most
            while queue and queue[0][1] <= num_left:
                waiting, weight = queue.popleft()
                if not waiting.done():  # else its client has left
                    waiting.set_result(None)
                    num_left -= weight
            self._num_begun[tenant] = self._most - num_left
            if not queue:
                del self._waiting[tenant]
        if self._num_begun:
            asyncio.get_running_loop().call_soon(self._begin_turn)
