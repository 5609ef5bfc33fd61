"""Lets one request of a tenant begin in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID


class FairStarts:
    """Who sends hundreds of requests at once would have all of them worked on before anybody
    else's, again in each of the turns that a request needs. Here one begins in a turn, which takes
    the loop a fraction of a millisecond, or tens of them if its body holds thousands of values; and
    the next turn comes at once: they lose no time unless others have work, too."""

    def __init__(self) -> None:
        self._begun: set[UUID] = set()
        """Tenants of which a request has begun in this turn."""
        self._waiting: dict[UUID, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """The number of tenants of which somebody waits."""
        return len(self._waiting)

    async def next(self, tenant: UUID) -> None:
        """Return when one more request of the tenant may begin; first come, first served."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            loop.call_soon(self._begin_turn)
        if tenant not in self._begun:
            self._begun.add(tenant)
            return
        waiting = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(waiting)
        await waiting

    def _begin_turn(self) -> None:
        self._begun.clear()
        for tenant, queue in [*self._waiting.items()]:
            while queue:
                waiting = queue.popleft()
                if not waiting.done():  # else its client has left
                    waiting.set_result(None)
                    self._begun.add(tenant)
                    break
            if not queue:
                del self._waiting[tenant]
        if self._begun:
            asyncio.get_running_loop().call_soon(self._begin_turn)
