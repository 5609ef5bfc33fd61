"""Lets each tenant use a slow and scarce resource for one thing at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID


class Lanes:
    """One lane for each tenant: however much work a tenant has, it delays another tenant's by one
    piece of work at most."""

    def __init__(self) -> None:
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._num_users: dict[UUID, int] = {}

    def __len__(self) -> int:
        """The number of tenants that have a turn or wait for one."""
        return len(self._locks)

    @asynccontextmanager
    async def turn(self, tenant: UUID) -> AsyncIterator[None]:
        """Wait until no other turn of this tenant is under way; first come, first served."""
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        self._num_users[tenant] = self._num_users.get(tenant, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._num_users[tenant] -= 1
            if not self._num_users[tenant]:
                del self._locks[tenant], self._num_users[tenant]
